"""From a task's events to what happens in a turn. Sans-IO; a delta costs a few microseconds.

Everything that a task has is told: texts and reasoning as they grow, calls of tools with their arguments, whoever runs
them, and what came of them, files and data. Texts grow side by side, as artifacts do. An agent that knows nothing of our
extension is read as well: its artifacts are text, files and data.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tailrace.server.facade.events import (
    ArtifactUpdateView,
    ArtifactView,
    PartView,
    SaidView,
    StatusUpdateView,
    TaskView,
    TurnEnd,
    channel_of,
    is_mapping,
    is_said_by_caller,
    number_of,
    read_end,
    says_arguments,
    view_event,
)
from tailrace.server.facade.lanes import DivergedError, GrowingText
from tailrace.server.facade.markdown import markdown_of
from tailrace.server.ui_streams.happenings import (
    ArgumentsAdded,
    Begun,
    CallAnswered,
    CallBegun,
    CallEnded,
    CallLeft,
    Channel,
    DataGiven,
    Ended,
    FileGiven,
    Happening,
    RoundBegun,
    StateChanged,
    TextAdded,
    TextBegun,
    TextEnded,
)
from tailrace.streaming.conversation import to_common_message
from tailrace.streaming.extension import extension_facts
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.task import Event
from tailrace.wrappers import (
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
)
from tailrace.wrappers import Message as CommonMessage
from tailrace.wrappers.openai.history import arguments_text

_OTHERS = frozenset({"tool_call", "tool_result", "choice"})  # channels of no text that is told

_ANY_TYPE = "application/octet-stream"


class _Text:
    """A text that is told, in one stretch or several."""

    __slots__ = ("_artifact_id", "_stretches", "channel", "id", "open", "text")

    def __init__(self, artifact_id: str, channel: Channel) -> None:
        self._artifact_id = artifact_id
        self._stretches = 0
        self.id = ""
        self.channel: Channel = channel
        self.text = GrowingText()
        self.open = False

    @property
    def begun(self) -> bool:
        """Something of it was told."""
        return bool(self._stretches)

    def tell(self) -> list[Happening]:
        """What has yet to be told of it."""
        text = self.text.take()
        if not text:
            return []
        if self.open:
            return [TextAdded(self.id, self.channel, text)]
        self.open = True
        self._stretches += 1
        self.id = self._artifact_id if self._stretches == 1 else f"{self._artifact_id}-{self._stretches}"
        return [TextBegun(self.id, self.channel), TextAdded(self.id, self.channel, text)]

    def pause(self) -> list[Happening]:
        """What follows, if anything does, is another stretch."""
        if not self.open:
            return []
        self.open = False
        return [TextEnded(self.id, self.channel)]

    def end(self) -> list[Happening]:
        """It is complete."""
        self.text.check_repeated()
        return self.pause()


class _Call:
    """A call, from its first piece on."""

    __slots__ = ("declared", "ended", "id", "name", "text")

    def __init__(self, name: str, *, declared: bool) -> None:
        self.id = ""  # until it is told
        self.name = name
        self.declared = declared
        self.text = GrowingText()
        self.ended = False

    def tell(self) -> list[Happening]:
        """What has yet to be told of its arguments."""
        if not self.id:
            return []
        text = self.text.take()
        return [ArgumentsAdded(self.id, text)] if text else []


class TurnReader:
    """Reads the events of one turn, or of several that are one answer for the client.

    Args:
        tools: The names of the tools that the client has declared.
        known_ids: Ids of calls that the conversation has already: a call of the same id is given another one in the
            end, and is not told before.
        whole_answer: Tell of all turns that are one answer for the client, and not of the newest alone: a turn in which
            the client gives the results of its tools goes on with the answer before.

    Attributes:
        task_id: The task; empty before its first event, and for an answer without a task.
        context_id: The conversation, likewise.
        over: The turn has come to its end.
    """

    def __init__(
        self,
        *,
        tools: Collection[str] = (),
        known_ids: Collection[str] = (),
        whole_answer: bool = False,
    ) -> None:
        self.task_id = ""
        self.context_id = ""
        self._first_turn = 1
        self.over = False
        self._tools = frozenset(tools)
        self._known_ids = set(known_ids)
        self._whole_answer = whole_answer
        self._turn = 1  # the newest
        self._place = (0, 0)  # turn and round
        self._channels: dict[str, str] = {}
        self._before: set[str] = set()  # artifacts that belong to earlier turns
        self._texts: dict[str, _Text] = {}
        self._thoughts: list[_Text] = []  # that grow
        self._calls: dict[str, _Call] = {}
        self._told_calls: dict[str, _Call] = {}  # by id
        self._answered: set[str] = set()  # calls
        self._given: dict[str, int] = {}  # how many files and data of an artifact

    def take(self, event: Event) -> list[Happening]:
        """What an event amounts to.

        A text that was replaced by one that does not begin with what was told ends the turn in an error.
        """
        if self.over:
            return []
        try:
            return self._take(event)
        except DivergedError as error:
            self.over = True
            return [Ended(TaskState.WORKING, error=error)]

    def _take(self, event: Event) -> list[Happening]:
        update = view_event(event.body)
        if update.artifact_update is not None:
            return self._take_artifact(update.artifact_update, is_copy=not event.number)
        if update.status_update is not None:
            return self._take_status(event.state, update.status_update)
        if update.task is not None:
            return self._begin(update.task, event.state)
        return self._answer_directly(update.message)

    def _begin(self, task: TaskView, state: TaskState | None) -> list[Happening]:
        """The task as it stands, which may have come some way already."""
        self.task_id, self.context_id = task.id, task.context_id
        callers = [said for said in task.history if is_said_by_caller(said)]
        self._turn = self._first_turn = max(1, len(callers))
        if self._whole_answer:
            while self._first_turn > 1 and _is_results(callers[self._first_turn - 1]):
                self._first_turn -= 1
        happened: list[Happening] = [Begun(task.id, task.context_id, self._first_turn)]
        for artifact in task.artifacts:
            happened += self._take_artifact(ArtifactUpdateView(artifact), is_copy=True)
        for said in callers[self._first_turn :]:
            happened += self._take_results(said.parts, by_caller=True)
        if state is not None and (state.terminal or state.interrupted):
            facts = extension_facts(task.metadata)
            happened += self._end(state, read_end(state, task.status.message, facts), facts)
        return happened

    # --- artifacts ----------------------------------------------------------------------------------------------

    def _take_artifact(self, update: ArtifactUpdateView, *, is_copy: bool) -> list[Happening]:
        artifact = update.artifact
        artifact_id = artifact.artifact_id
        channel = self._channels.get(artifact_id) if update.append else None
        if channel is not None:
            return self._take_content(update, channel)
        channel = self._channels[artifact_id] = channel_of(artifact)
        facts = extension_facts(artifact.metadata)
        turn = number_of(facts.get("turn"))
        if is_copy and (artifact_id in self._before or turn < self._first_turn):
            # Of an earlier turn.
            self._before.add(artifact_id)
            return []
        self._before.discard(artifact_id)
        happened: list[Happening] = []
        if channel != "tool_result":
            # An agent that knows nothing of turns makes all artifacts in the first.
            happened += self._come_to(
                turn if is_copy else max(turn, self._turn), number_of(facts.get("round"))
            )
        return happened + self._take_content(update, channel, is_copy=is_copy)

    def _come_to(self, turn: int, round_: int) -> list[Happening]:
        place = (turn, round_)
        if place <= self._place:
            return []
        self._place = place
        ended: list[Happening] = []
        for text in self._texts.values():
            ended += text.end()
        return [*ended, RoundBegun(turn, round_)]

    def _take_content(
        self, update: ArtifactUpdateView, channel: str, *, is_copy: bool = False
    ) -> list[Happening]:
        artifact = update.artifact
        parts = artifact.parts
        if len(parts) == 1 and parts[0].text is not None and channel not in _OTHERS:  # as nearly always
            return self._take_text(update, parts[0].text, channel)
        if channel == "tool_call":
            return self._take_call(update)
        if channel == "tool_result":
            return self._take_results([{"data": part.data} for part in parts])
        if channel in _OTHERS:
            return []
        happened: list[Happening] = []
        texts = [part.text for part in parts if part.text is not None]
        if texts:
            happened += self._take_text(update, "".join(texts), channel)
        others = [part for part in parts if part.text is None]
        given = self._given.get(artifact.artifact_id, 0) if is_copy or update.append else 0
        self._given[artifact.artifact_id] = given + len(others) if update.append else len(others)
        return happened + [_given(artifact, part, channel) for part in others[given if is_copy else 0 :]]

    def _take_text(self, update: ArtifactUpdateView, text: str, channel: str) -> list[Happening]:
        artifact_id = update.artifact.artifact_id
        told = self._texts.get(artifact_id)
        if told is None:
            kind: Channel = "reasoning" if channel == "reasoning" else "text"
            told = self._texts[artifact_id] = _Text(artifact_id, kind)
            told.text.add(text)
        elif update.append:
            told.text.add(text)
        else:
            told.text.replace(text)
        happened = told.tell()
        if happened and told.channel == "text" and self._thoughts:
            happened = [*self._end_thoughts(), *happened]
        elif happened and told.channel == "reasoning" and told not in self._thoughts:
            self._thoughts.append(told)
        return happened + told.end() if update.last_chunk else happened

    def _end_thoughts(self) -> list[Happening]:
        """The model has come to speak or to act: what it thinks after that is another thought."""
        ended = [happening for thought in self._thoughts for happening in thought.pause()]
        self._thoughts.clear()
        return ended

    def _take_results(
        self, parts: Iterable[Mapping[str, Any]], *, by_caller: bool = False
    ) -> list[Happening]:
        happened: list[Happening] = []
        for result in _results_of(parts):
            if result.id in self._told_calls and result.id not in self._answered:
                self._answered.add(result.id)
                happened.append(CallAnswered(result.id, result.output, result.is_error, by_caller))
        return happened

    # --- calls --------------------------------------------------------------------------------------------------

    def _take_call(self, update: ArtifactUpdateView) -> list[Happening]:
        artifact = update.artifact
        call = self._calls.get(artifact.artifact_id)
        data = artifact.parts[0].data if artifact.parts else None
        if is_mapping(data):  # the whole call, in place of its text
            return self._end_call(call, _call_of(data))
        text = "".join(part.text or "" for part in artifact.parts)
        if call is None:
            call = self._calls[artifact.artifact_id] = self._new_call(artifact.name)
            call.text.add(text)
            call_id = extension_facts(artifact.metadata).get("callId")
            if not isinstance(call_id, str) or not call_id or call_id in self._known_ids:
                return []
            return [*self._tell_call(call, call_id), *call.tell()]
        if update.append:
            call.text.add(text)
        else:
            call.text.replace(text)
        return call.tell()

    def _new_call(self, name: str) -> _Call:
        return _Call(name, declared=name in self._tools)

    def _tell_call(self, call: _Call, call_id: str) -> list[Happening]:
        call.id = call_id
        self._told_calls[call_id] = call
        self._known_ids.add(call_id)
        return [*self._end_thoughts(), CallBegun(call_id, call.name, call.declared)]

    def _end_call(self, call: _Call | None, whole: ContentPartToolCall | None) -> list[Happening]:
        if whole is None or (call is not None and call.ended):
            return []
        if whole.id in self._told_calls and (call is None or not call.id):
            return []  # an agent's second call of that id: one result answers both
        happened: list[Happening] = []
        if call is None:
            call = self._new_call(whole.name)
        if not call.id:
            happened += self._tell_call(call, whole.id)
            happened += call.tell()
        if not call.text.sent:
            call.text.add(arguments_text(whole))
            happened += call.tell()
        elif call.id != whole.id or call.name != whole.name:
            raise DivergedError
        call.ended = True
        as_written = says_arguments(call.text.sent, whole)
        error = whole.arguments_error or ""
        given = whole.arguments if whole.arguments_text is None else whole.arguments_text
        happened.append(CallEnded(call.id, call.name, call.declared, given, error, as_written))
        return happened

    # --- statuses -----------------------------------------------------------------------------------------------

    def _take_status(self, state: TaskState | None, update: StatusUpdateView) -> list[Happening]:
        facts = extension_facts(update.metadata)
        received = facts.get("received")
        if is_mapping(received):
            self._turn += 1
            return self._take_results(received.get("parts", ()), by_caller=True)
        if state is None:
            return []
        said = update.status.message
        if not state.terminal and not state.interrupted:
            words = markdown_of(to_common_message(said).content) if said is not None else ""
            return [StateChanged(state, words)]
        return self._end(state, read_end(state, said, facts), facts)

    def _end(self, state: TaskState, end: TurnEnd, facts: Mapping[str, Any]) -> list[Happening]:
        self.over = True
        happened: list[Happening] = []
        for text in self._texts.values():
            # Why an answer broke off counts more than that it was begun anew.
            happened += text.end() if end.error is None else text.pause()
        shown = any(text.begun and text.channel == "text" for text in self._texts.values())
        if end.words and end.error is None and (not shown or state.interrupted):
            happened += _whole_text("status", "text", end.words)
        for call in end.calls:
            happened += self._leave_call(call)
        response = facts.get("response")
        extra = facts.get("extra")
        annotations = extra.get("annotations") if is_mapping(extra) else None
        ended = Ended(
            state,
            end.finish,
            end.error,
            end.usage,
            tuple(call.id for call in end.calls),
            tuple(annotations) if isinstance(annotations, list) else (),  # pyright: ignore[reportUnknownArgumentType]
            response if is_mapping(response) else {},
        )
        return [*happened, ended]

    def _leave_call(self, call: ContentPartToolCall) -> list[Happening]:
        """A call waits for the client."""
        told = self._told_calls.get(call.id)
        happened: list[Happening] = []
        if told is None or not told.ended:
            happened += self._end_call(told, call)
            told = self._told_calls[call.id]
        if not told.declared:
            happened.append(CallLeft(call.id, call.name, call.arguments))
        return happened

    def _answer_directly(self, said: dict[str, Any] | None) -> list[Happening]:
        """An answer without a task."""
        self.over = True
        message = (
            to_common_message(said) if said is not None else CommonMessage.model_validate({"role": "model"})
        )
        happened: list[Happening] = [RoundBegun(1, 1)]
        for at, part in enumerate(message.content):
            if isinstance(part, ContentPartReasoning):
                happened += _whole_text(f"reasoning-{at}", "reasoning", part.text)
            elif isinstance(part, ContentPartText):
                happened += _whole_text(f"text-{at}", "text", part.text)
            elif isinstance(part, ContentPartFile):
                view = PartView(url=part.url, filename=part.filename, media_type=part.media_type)
                view.raw = part.model_dump(mode="json")["data"]
                happened.append(_file(f"file-{at}", view))
        return [*happened, Ended(TaskState.COMPLETED)]


def _whole_text(text_id: str, channel: Channel, text: str) -> list[Happening]:
    if not text:
        return []
    return [TextBegun(text_id, channel), TextAdded(text_id, channel, text), TextEnded(text_id, channel)]


def _given(artifact: ArtifactView, part: PartView, channel: str) -> Happening:
    if part.url is not None or part.raw is not None:
        return _file(artifact.artifact_id, part)
    return DataGiven(artifact.artifact_id, artifact.name, part.data, channel == "output")


def _file(artifact_id: str, part: PartView) -> FileGiven:
    media_type = part.media_type or _ANY_TYPE
    url = part.url if part.url is not None else f"data:{media_type};base64,{part.raw}"
    return FileGiven(artifact_id, url, media_type, part.filename)


def _is_results(said: SaidView) -> bool:
    """Whether a message holds results of tools, and nothing else."""
    return bool(said.parts) and all(
        is_mapping(data := part.get("data")) and isinstance(data.get("tool_results"), list)
        for part in said.parts
    )


def _results_of(parts: Iterable[Mapping[str, Any]]) -> Sequence[ContentPartToolResult]:
    results = [part for part in parts if is_mapping(data := part.get("data")) and "tool_results" in data]
    return to_common_message({"role": "ROLE_USER", "parts": results}).tool_results if results else ()


def _call_of(data: Mapping[str, Any]) -> ContentPartToolCall | None:
    """The call that a data part holds."""
    said = {"role": "ROLE_AGENT", "parts": [{"data": dict(data)}]}
    calls = to_common_message(said).tool_calls
    return calls[0] if calls else None

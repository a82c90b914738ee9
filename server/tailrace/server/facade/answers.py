"""From a task's events to the pieces of an answer. Sans-IO; a delta costs a few microseconds.

What is shown of a task: the text of its artifacts, files and data as Markdown, reasoning, refusals, and the calls that
wait for the caller. Tools that run on this server, and their results, are none of the client's business. An agent that
knows nothing of our extension is read as well: its artifacts are text, and what it says with its last status is the
answer where no artifact holds one.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from typing_extensions import TypeIs

from tailrace.server.facade.errors import OpenAIError
from tailrace.server.facade.lanes import DivergedError, GrowingText, Lane
from tailrace.server.facade.last_round import LastRound
from tailrace.server.facade.markdown import data_markdown, file_markdown, markdown_of
from tailrace.server.facade.pieces import (
    CallArguments,
    CallBegun,
    Ending,
    Piece,
    ReasoningPiece,
    RefusalPiece,
    TextPiece,
)
from tailrace.streaming.conversation import to_common_message
from tailrace.streaming.extension import extension_facts
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.task import Event
from tailrace.wrappers import ContentPartFile, ContentPartToolCall
from tailrace.wrappers.openai.history import arguments_text

# What a task's last status says of a model's answer that is not whole for a reason that OpenAI has a word for.
_CUT = {"length": "length", "content_filter": "content_filter", "recitation": "content_filter"}


class _Part(msgspec.Struct, gc=False):
    text: str | None = None
    data: Any = None
    url: str | None = None
    raw: str | None = None
    filename: str = ""
    media_type: str = msgspec.field(default="", name="mediaType")


class _Artifact(msgspec.Struct):
    artifact_id: str = msgspec.field(name="artifactId")
    parts: list[_Part]
    name: str = ""
    metadata: dict[str, Any] = {}


class _ArtifactUpdate(msgspec.Struct):
    artifact: _Artifact
    append: bool = False
    last_chunk: bool = msgspec.field(default=False, name="lastChunk")


class _Status(msgspec.Struct):
    message: dict[str, Any] | None = None


class _StatusUpdate(msgspec.Struct):
    status: _Status
    metadata: dict[str, Any] = {}


class _Said(msgspec.Struct):
    role: str
    metadata: dict[str, Any] = {}


class _Task(msgspec.Struct):
    id: str
    context_id: str = msgspec.field(name="contextId")
    artifacts: list[_Artifact] = []
    history: list[_Said] = []


class _Event(msgspec.Struct):
    task: _Task | None = None
    message: dict[str, Any] | None = None
    status_update: _StatusUpdate | None = msgspec.field(default=None, name="statusUpdate")
    artifact_update: _ArtifactUpdate | None = msgspec.field(default=None, name="artifactUpdate")


_decode = msgspec.json.Decoder(_Event).decode


class _Call:
    """The artifact of one call."""

    __slots__ = ("id", "index", "name", "text")

    def __init__(self, name: str) -> None:
        self.name = name
        self.id = ""
        self.index = -1  # among the calls that were sent
        self.text = GrowingText()


class AnswerReader:
    """Reads the events of one turn.

    Args:
        tools: The names of the caller's tools.
        known_ids: Ids of calls that the conversation has already: a call of the same id is given another one in the
            end, and is not sent before.
        live: False: everything is given at the end.
        last_round: The text of the agent's last round alone is the answer, as where it is to be JSON.

    Attributes:
        task_id: The task; empty before its first event, and for an answer without a task.
        context_id: The conversation, likewise.
        turn: Which of the task's turns this is.
        over: The answer has come to its end.
    """

    def __init__(
        self,
        *,
        tools: Collection[str] = (),
        known_ids: Collection[str] = (),
        live: bool = True,
        last_round: bool = False,
    ) -> None:
        self.task_id = ""
        self.context_id = ""
        self.turn = 1
        self.over = False
        self._live = live
        self._tools = frozenset(tools)
        self._known_ids = set(known_ids)
        self._text = Lane(live=live)
        self._reasoning = Lane(live=live, between_rounds="\n\n")
        self._refusal = Lane(live=live)
        self._last_round = LastRound(self._text, self._reasoning, live=live) if last_round else None
        self._channels: dict[str, str] = {}
        self._before: dict[str, str] = {}
        self._calls: dict[str, _Call] = {}
        self._sent_calls: dict[str, _Call] = {}  # by id

    def take(self, events: Iterable[Event]) -> list[Piece]:
        """The pieces that events amount to.

        An answer that was replaced by one that does not begin with what was sent ends in an error.
        """
        pieces: list[Piece] = []
        try:
            for event in events:
                pieces += self._take(event)
        except DivergedError as error:
            self.over = True
            pieces.append(Ending(error=error))
        return pieces

    def _take(self, event: Event) -> list[Piece]:
        update = _decode(event.body)
        if update.artifact_update is not None:
            return self._take_artifact(update.artifact_update, is_copy=not event.number)
        if update.status_update is not None:
            state = event.state
            if state is None or not (state.terminal or state.interrupted):
                return []
            status = update.status_update
            return self._end(state, status.status.message, dict(extension_facts(status.metadata)))
        if update.task is not None:
            self._begin(update.task)
            return []
        return self._end(TaskState.COMPLETED, update.message, {})

    def _begin(self, task: _Task) -> None:
        self.task_id, self.context_id = task.id, task.context_id
        self.turn = max(1, sum(map(_is_callers, task.history)))
        for artifact in task.artifacts:
            # Of earlier turns.
            self._channels[artifact.artifact_id] = _channel(artifact)
            self._before[artifact.artifact_id] = _text_of(artifact.parts)

    def _take_artifact(self, update: _ArtifactUpdate, *, is_copy: bool) -> list[Piece]:
        artifact = update.artifact
        artifact_id = artifact.artifact_id
        channel = self._channels.get(artifact_id) if update.append else None
        if channel is None:
            channel = self._channels[artifact_id] = _channel(artifact)
        if self._last_round is not None and not update.append:
            facts = extension_facts(artifact.metadata)
            before = self._last_round.come_to(_number(facts.get("turn")), _number(facts.get("round")))
            return [*before, *self._take_content(update, channel, is_copy=is_copy)]
        return self._take_content(update, channel, is_copy=is_copy)

    def _take_content(self, update: _ArtifactUpdate, channel: str, *, is_copy: bool) -> list[Piece]:
        artifact = update.artifact
        artifact_id = artifact.artifact_id
        if channel == "tool_call":
            return self._take_call(update)
        if channel in _UNSHOWN:
            return []
        text = _text_of(artifact.parts)
        if is_copy and self._before.get(artifact_id) == text:
            return []  # the overview of a task, of which this belongs to an earlier turn
        if channel == "text" and self._last_round is not None:
            return self._last_round.take(artifact_id, text, append=update.append, last=update.last_chunk)
        if channel == "text" or channel == "":
            lane, piece = self._text, TextPiece
        elif channel == "reasoning":
            lane, piece = self._reasoning, ReasoningPiece
        elif channel == "refusal":
            lane, piece = self._refusal, RefusalPiece
        else:
            text = self._text.block(artifact_id, text)
            return [TextPiece(text)] if text else []
        text = lane.take(
            artifact_id, text, append=update.append, last=update.last_chunk, is_round=bool(channel)
        )
        return [piece(text)] if text else []

    def _take_call(self, update: _ArtifactUpdate) -> list[Piece]:
        artifact = update.artifact
        call = self._calls.get(artifact.artifact_id)
        if update.append and call is not None:
            call.text.add(_text_of(artifact.parts))
            return _arguments(call)
        data = artifact.parts[0].data if artifact.parts else None
        if _is_mapping(data):  # the whole call, in place of its text
            if call is not None and call.index < 0:
                call.id = _call_id(data)
            return []
        if call is not None:
            call.text.replace(_text_of(artifact.parts))
            return _arguments(call)
        call = self._calls[artifact.artifact_id] = _Call(artifact.name)
        call.text.add(_text_of(artifact.parts))
        call_id = extension_facts(artifact.metadata).get("callId")
        if not (self._live and isinstance(call_id, str) and call_id and call.name in self._tools):
            return []
        if call_id in self._known_ids:
            return []
        return [*self._send_call(call, call_id), *_arguments(call)]

    def _send_call(self, call: _Call, call_id: str) -> list[Piece]:
        call.id, call.index = call_id, len(self._sent_calls)
        self._sent_calls[call_id] = call
        self._known_ids.add(call_id)
        return [CallBegun(call.index, call_id, call.name)]

    # --- the end ------------------------------------------------------------------------------------------------

    def _end(self, state: TaskState, said: dict[str, Any] | None, facts: dict[str, Any]) -> list[Piece]:
        self.over = True
        message = to_common_message(said) if said is not None else None
        words = markdown_of(message.content) if message is not None else ""
        given = facts.get("usage")
        usage = dict(given) if _is_mapping(given) else None
        reason = facts.get("finishReason")
        if state in (TaskState.FAILED, TaskState.REJECTED, TaskState.CANCELED):
            if state is TaskState.FAILED and reason in _CUT and "error" not in facts:
                return [*self._rest(), Ending(_CUT[reason], usage)]
            return [Ending(usage=usage, error=OpenAIError.of_task(state, words, facts))]
        calls = message.tool_calls if message is not None and state is TaskState.INPUT_REQUIRED else ()
        pieces = self._rest(is_answer=not calls)
        if words and (self._text.empty or state.interrupted):
            text = self._text.take("status", words, append=False, last=True, is_round=False)
            text = text or self._text.close()
            pieces += [TextPiece(text)] if text else []
        if message is not None and self._text.empty and message.reasoning and not self.task_id:
            pieces.insert(0, ReasoningPiece(message.reasoning))
        pieces += self._end_calls(calls)
        if calls:
            return [*pieces, Ending("tool_calls", usage)]
        return [*pieces, Ending(_CUT.get(str(reason), "stop"), usage)]

    def _rest(self, *, is_answer: bool = True) -> list[Piece]:
        """What was held back of the texts.

        Args:
            is_answer: What was said last answers the caller; False where the turn ends with calls instead.
        """
        pieces = self._last_round.settle(is_answer=is_answer) if self._last_round is not None else []
        reasoning, text, refusal = self._reasoning.close(), self._text.close(), self._refusal.close()
        if reasoning:
            pieces.append(ReasoningPiece(reasoning))
        if text:
            pieces.append(TextPiece(text))
        if refusal:
            pieces.append(RefusalPiece(refusal))
        return pieces

    def _end_calls(self, calls: Collection[ContentPartToolCall]) -> list[Piece]:
        """The calls that wait for the caller, as far as they were not sent."""
        pieces: list[Piece] = []
        written = {call.id: call for call in self._calls.values() if call.index < 0}
        if self._sent_calls.keys() - {call.id for call in calls}:
            raise DivergedError
        for call in calls:
            sent = self._sent_calls.get(call.id)
            if sent is None:
                sent = _Call(call.name)
                pieces += self._send_call(sent, call.id)
                sent.text.add(_as_written(call, written.get(call.id)))
                pieces += _arguments(sent)
            elif not sent.text.sent:
                sent.text.add(arguments_text(call))
                pieces += _arguments(sent)
            elif sent.name != call.name or not _says(sent.text.sent, call):
                raise DivergedError
        return pieces


_UNSHOWN = frozenset({"tool_result", "output", "choice"})


def _channel(artifact: _Artifact) -> str:
    """What kind of content an artifact holds; empty for one of an agent that does not say."""
    facts = extension_facts(artifact.metadata)
    if facts.get("choice"):
        return "choice"  # one answer was asked for
    channel = facts.get("channel")
    return channel if isinstance(channel, str) else ""


def _number(fact: object) -> int:
    """Which turn or round a fact says; the first where it is not said."""
    return fact if isinstance(fact, int) else 1


def _is_mapping(value: object) -> TypeIs[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def _call_id(data: Mapping[str, Any]) -> str:
    calls = data.get("tool_calls")
    first = cast("Sequence[object]", calls)[0] if isinstance(calls, list) and calls else None
    return str(first.get("call_id", "")) if _is_mapping(first) else ""


def _is_callers(said: _Said) -> bool:
    return said.role == "ROLE_USER" and extension_facts(said.metadata).get("by") != "agent"


def _text_of(parts: list[_Part]) -> str:
    if len(parts) == 1 and parts[0].text is not None:
        return parts[0].text  # as nearly always
    texts: list[str] = []
    for part in parts:
        if part.text is not None:
            texts.append(part.text)
            continue
        if part.url is not None or part.raw is not None:
            fields = {"url": part.url, "data": part.raw, "media_type": part.media_type}
            block = file_markdown(ContentPartFile.model_validate({**fields, "filename": part.filename}))
        elif _is_mapping(part.data) and ("tool_calls" in part.data or "tool_results" in part.data):
            continue
        else:
            block = data_markdown(part.data)
        texts.append(f"\n\n{block}\n\n" if len(parts) > 1 else block)
    return "".join(texts)


def _arguments(call: _Call) -> list[Piece]:
    if call.index < 0:
        return []
    text = call.text.take()
    return [CallArguments(call.index, text)] if text else []


def _as_written(call: ContentPartToolCall, written: _Call | None) -> str:
    """A call's arguments as the model wrote them, where that is known."""
    text = written.text.take() if written is not None and written.name == call.name else ""
    return text if text and _says(text, call) else arguments_text(call)


def _says(text: str, call: ContentPartToolCall) -> bool:
    """Whether a text says a call's arguments."""
    if call.arguments_text is not None:
        return text == call.arguments_text
    try:
        return (json.loads(text) or {}) == call.arguments
    except ValueError:
        return False

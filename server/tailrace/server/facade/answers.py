"""From a task's events to the pieces of an answer. Sans-IO; a delta costs a few microseconds.

What is shown of a task: the text of its artifacts, files and data as Markdown, reasoning, refusals, and the calls that
wait for the caller. Tools that run on this server, and their results, are none of the client's business. An agent that
knows nothing of our extension is read as well: its artifacts are text, and what it says with its last status is the
answer where no artifact holds one.
"""

from collections.abc import Collection, Iterable
from typing import Any

from tailrace.server.facade.events import (
    ArtifactUpdateView,
    TaskView,
    call_id_of,
    channel_of,
    is_mapping,
    is_said_by_caller,
    number_of,
    read_end,
    says_arguments,
    text_of,
    view_event,
)
from tailrace.server.facade.lanes import DivergedError, GrowingText, Lane
from tailrace.server.facade.last_round import LastRound
from tailrace.server.facade.pieces import (
    CallArguments,
    CallBegun,
    Ending,
    Piece,
    ReasoningPiece,
    RefusalPiece,
    TextPiece,
)
from tailrace.streaming.extension import extension_facts
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.task import Event
from tailrace.wrappers import ContentPartToolCall
from tailrace.wrappers.openai.history import arguments_text

_UNSHOWN = frozenset({"tool_result", "output", "choice"})


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
        update = view_event(event.body)
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

    def _begin(self, task: TaskView) -> None:
        self.task_id, self.context_id = task.id, task.context_id
        self.turn = max(1, sum(map(is_said_by_caller, task.history)))
        for artifact in task.artifacts:
            # Of earlier turns.
            self._channels[artifact.artifact_id] = channel_of(artifact)
            self._before[artifact.artifact_id] = text_of(artifact.parts)

    def _take_artifact(self, update: ArtifactUpdateView, *, is_copy: bool) -> list[Piece]:
        artifact = update.artifact
        artifact_id = artifact.artifact_id
        channel = self._channels.get(artifact_id) if update.append else None
        if channel is None:
            channel = self._channels[artifact_id] = channel_of(artifact)
        if self._last_round is not None and not update.append:
            facts = extension_facts(artifact.metadata)
            before = self._last_round.come_to(number_of(facts.get("turn")), number_of(facts.get("round")))
            return [*before, *self._take_content(update, channel, is_copy=is_copy)]
        return self._take_content(update, channel, is_copy=is_copy)

    def _take_content(self, update: ArtifactUpdateView, channel: str, *, is_copy: bool) -> list[Piece]:
        artifact = update.artifact
        artifact_id = artifact.artifact_id
        if channel == "tool_call":
            return self._take_call(update)
        if channel in _UNSHOWN:
            return []
        text = text_of(artifact.parts)
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

    def _take_call(self, update: ArtifactUpdateView) -> list[Piece]:
        artifact = update.artifact
        call = self._calls.get(artifact.artifact_id)
        if update.append and call is not None:
            call.text.add(text_of(artifact.parts))
            return _arguments(call)
        data = artifact.parts[0].data if artifact.parts else None
        if is_mapping(data):  # the whole call, in place of its text
            if call is not None and call.index < 0:
                call.id = call_id_of(data)
            return []
        if call is not None:
            call.text.replace(text_of(artifact.parts))
            return _arguments(call)
        call = self._calls[artifact.artifact_id] = _Call(artifact.name)
        call.text.add(text_of(artifact.parts))
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
        end = read_end(state, said, facts)
        if end.error is not None:
            return [Ending(usage=end.usage, error=end.error)]
        ending = Ending(end.finish, end.usage)
        if end.cut:
            return [*self._rest(), ending]
        pieces = self._rest(is_answer=not end.calls)
        if end.words and (self._text.empty or state.interrupted):
            text = self._text.take("status", end.words, append=False, last=True, is_round=False)
            text = text or self._text.close()
            pieces += [TextPiece(text)] if text else []
        if end.message is not None and self._text.empty and end.message.reasoning and not self.task_id:
            pieces.insert(0, ReasoningPiece(end.message.reasoning))
        return [*pieces, *self._end_calls(end.calls), ending]

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
            elif sent.name != call.name or not says_arguments(sent.text.sent, call):
                raise DivergedError
        return pieces


def _arguments(call: _Call) -> list[Piece]:
    if call.index < 0:
        return []
    text = call.text.take()
    return [CallArguments(call.index, text)] if text else []


def _as_written(call: ContentPartToolCall, written: _Call | None) -> str:
    """A call's arguments as the model wrote them, where that is known."""
    text = written.text.take() if written is not None and written.name == call.name else ""
    return text if text and says_arguments(text, call) else arguments_text(call)

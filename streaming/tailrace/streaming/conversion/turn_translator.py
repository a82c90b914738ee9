"""Translates an agent's turn to a task's updates: its responses, tool results, and messages."""

from collections.abc import Callable, Sequence
from functools import partial
from uuid import uuid4

from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.agent.events import AgentError, ResponseEnded, RoundEnded, Step, ToolEnded
from tailrace.streaming.agent.turn import open_calls
from tailrace.streaming.conversion.conversation import results_message, to_a2a_message
from tailrace.streaming.conversion.translator import ResponseTranslator
from tailrace.streaming.schemas.output import OutputReader
from tailrace.streaming.task.task import agent_message
from tailrace.streaming.task.updates import MessageAdded, StatusUpdate, Update
from tailrace.streaming.turn_accumulator import TurnAccumulator
from tailrace.wrappers import Change, Role


class TurnTranslator:
    """Translates the steps of one turn (`tailrace.streaming.agent.agent.Agent.steps`) into updates of a task. Sans-IO.

    Artifacts of every response but the first have the number of their round. A message is added to the conversation with
    the first event after it.

    Args:
        folded: The fold of the turn, which the caller feeds.
        turn: The number of the task's turn.
        rounds: The number of earlier responses of this turn, in another process.
        reader: Parses a structured response.
        max_event_bytes: As for `ResponseTranslator`.
        opening: Updates before the first response.
    """

    def __init__(
        self,
        folded: TurnAccumulator,
        *,
        turn: int = 1,
        rounds: int = 0,
        reader: OutputReader | None = None,
        max_event_bytes: int = 0,
        opening: Sequence[Update | MessageAdded] = (),
    ) -> None:
        self._opening = opening
        self._folded = folded
        self._turn = turn
        self._round = rounds
        self._reader = reader
        self._max_event = max_event_bytes
        self._response = ResponseTranslator(turn=turn)
        self._recorded = 0  # the number of the turn's messages that were added
        self._complete = 0  # the number of those whose artifacts are complete

    def begin_response(
        self, response: Accumulator
    ) -> Callable[[list[Change]], Sequence[Update | MessageAdded]]:
        """Begin a response; return the function that translates its changes: `ResponseTranslator.take`."""
        self._round += 1
        self._response = ResponseTranslator(
            turn=self._turn,
            round=self._round,
            accumulator=response,
            taken_ids=partial(_call_ids, self._folded),  # without a reference to this object
            max_event_bytes=self._max_event,
        )
        return self._response.take

    def take(self, step: Step) -> Sequence[Update | MessageAdded]:
        """Translate a step outside of a response."""
        items = self._new_messages()
        if isinstance(step, ResponseEnded):
            # The calls of the message have the ids that are unique in the conversation.
            calls = (
                self._folded.messages[-1].tool_calls if len(self._folded.messages) > self._complete else ()
            )
            items += self._response.finish(step.changes, calls)
        elif isinstance(step, ToolEnded):
            items.append(self._response.result(step.result))
        self._complete = len(self._folded.messages)
        if isinstance(step, ResponseEnded) and self._folded.unanswered_calls and items:
            # Persisted before the tools run: after a crash it is known that they may have run.
            items[-1:] = [*self._new_messages(), items[-1]]
        if isinstance(step, RoundEnded):
            items += self._new_messages()
        return items

    def begin(self) -> Sequence[Sequence[Update | MessageAdded]]:
        """Return the updates before the first request: the opening."""
        return (self._opening,) if self._opening else ()

    def close(self, error: AgentError | None = None) -> Sequence[Sequence[Update | MessageAdded]]:
        """End the turn; the very last update is its final status.

        Args:
            error: The reason why the turn has no result.
        """
        items = self._new_messages()
        usage = self._folded.total_usage if self._round > 1 else None
        ending = self._response.ending(open_calls(self._folded), usage=usage)
        if error is not None:
            ending = StatusUpdate(TaskState.FAILED, agent_message(str(error)), ending.metadata)
        elif self._reader is not None and ending.state is TaskState.COMPLETED:
            try:
                items.append(self._response.output(self._reader.read(self._folded.last_text)))
            except ValueError as problem:
                ending = StatusUpdate(TaskState.FAILED, agent_message(str(problem)), ending.metadata)
        return ([*items, *self._new_messages(), ending],)

    def _new_messages(self) -> list[Update | MessageAdded]:
        """Return the messages whose artifacts are complete, and that were not added before."""
        start, self._recorded = self._recorded, self._complete
        items: list[Update | MessageAdded] = []
        for message in self._folded.messages[start : self._complete]:
            if not message.content:
                continue
            is_results = message.role is Role.TOOL
            a2a = results_message(message) if is_results else to_a2a_message(message, message_id=str(uuid4()))
            items.append(MessageAdded(a2a))
        return items


def _call_ids(folded: TurnAccumulator) -> set[str]:
    """Return the ids of all calls of a turn and of the conversation before it."""
    return {call.id for message in folded.history.conversation for call in message.tool_calls}

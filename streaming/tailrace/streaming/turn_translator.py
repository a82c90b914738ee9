"""From an agent's turn to a task's updates: its responses one after the other, the results of tools, what was said."""

from collections.abc import Sequence
from functools import partial
from uuid import uuid4

from tailrace.streaming.conversation import results_message, to_a2a_message
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.output import OutputReader
from tailrace.streaming.run import AgentError, Received, ResponseEnded, Step, ToolEnded
from tailrace.streaming.task import agent_message
from tailrace.streaming.translator import ResponseTranslator
from tailrace.streaming.turn import TurnAccumulator
from tailrace.streaming.updates import Said, StatusUpdate, Update
from tailrace.wrappers import ContentPartToolCall, Role


class TurnTranslator:
    """Translates the steps of one turn (`tailrace.streaming.agent.Agent.steps`) into updates of a task. Sans-IO.

    Artifacts of every response but the first say which round they belong to. A message joins the conversation with the
    first event behind it.

    Args:
        folded: What folds the turn; whoever runs the steps feeds it.
        turn: Which of the task's turns this is.
        rounds: How many responses of this turn came before, in another process.
        reader: Reads the answer where it is to be JSON.
        max_event_bytes: As `ResponseTranslator` takes it.
    """

    def __init__(
        self,
        folded: TurnAccumulator,
        *,
        turn: int = 1,
        rounds: int = 0,
        reader: OutputReader | None = None,
        max_event_bytes: int = 0,
    ) -> None:
        self._folded = folded
        self._turn = turn
        self._round = rounds
        self._reader = reader
        self._max_event = max_event_bytes
        self._response = ResponseTranslator(turn=turn)
        self._said = 0  # of the turn's messages
        self._complete = 0  # those whose artifacts are complete

    def take(self, step: Step) -> Sequence[Update | Said]:
        """What a step amounts to."""
        if isinstance(step, Received):
            if self._said == self._complete and self._response.accumulator is self._folded.response:
                return self._response.take(step.changes)  # as nearly always
            return [*self._say(), *self._current().take(step.changes)]
        items = self._say()
        if isinstance(step, ResponseEnded):
            # The message has the ids of its calls as the conversation has them.
            calls = (
                self._folded.messages[-1].tool_calls if len(self._folded.messages) > self._complete else ()
            )
            items += self._current().finish(step.changes, calls)
        elif isinstance(step, ToolEnded):
            items.append(self._response.result(step.result))
        self._complete = len(self._folded.messages)
        if isinstance(step, ResponseEnded) and self._folded.unanswered_calls and items:
            # Kept before the tools run: whoever goes on after a crash knows that they may have.
            items[-1:] = [*self._say(), items[-1]]
        return items

    def close(
        self, open_calls: Sequence[ContentPartToolCall] = (), error: AgentError | None = None
    ) -> list[Update | Said]:
        """The turn is over; the very last update is the status that it ends with.

        Args:
            open_calls: Those that the caller is to run.
            error: Why it came to no answer.
        """
        items = self._say()
        usage = self._folded.total_usage if self._round > 1 else None
        ending = self._response.ending(open_calls, usage=usage)
        if error is not None:
            ending = StatusUpdate(TaskState.FAILED, agent_message(str(error)), ending.metadata)
        elif self._reader is not None and ending.state is TaskState.COMPLETED:
            try:
                items.append(self._response.output(self._reader.read(self._folded.last_text)))
            except ValueError as problem:
                ending = StatusUpdate(TaskState.FAILED, agent_message(str(problem)), ending.metadata)
        return [*items, *self._say(), ending]

    def _current(self) -> ResponseTranslator:
        """What translates the response that is being received."""
        if self._response.accumulator is not self._folded.response:
            self._round += 1
            self._response = ResponseTranslator(
                turn=self._turn,
                round=self._round,
                accumulator=self._folded.response,
                taken_ids=partial(_call_ids, self._folded),  # which does not hold this
                max_event_bytes=self._max_event,
            )
        return self._response

    def _say(self) -> list[Update | Said]:
        """The messages whose artifacts are complete, and that were not said yet."""
        said, self._said = self._said, self._complete
        items: list[Update | Said] = []
        for message in self._folded.messages[said : self._complete]:
            if not message.content:
                continue
            is_results = message.role is Role.TOOL
            a2a = results_message(message) if is_results else to_a2a_message(message, message_id=str(uuid4()))
            items.append(Said(a2a))
        return items


def _call_ids(folded: TurnAccumulator) -> set[str]:
    """The ids of all calls of a turn and of the conversation before it."""
    return {call.id for said in folded.history.conversation for call in said.tool_calls}

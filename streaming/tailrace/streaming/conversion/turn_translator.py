"""Translation of an agent's turn into updates of an A2A task: responses, tool results and messages."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec

from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.accumulator import Accumulator, Attempt
from tailrace.streaming.agent.continuation import attempts_to_json
from tailrace.streaming.agent.events import (
    AgentError,
    ExecutionStarting,
    ResponseBegun,
    ResponseContinued,
    ResponseEnded,
    RoundEnded,
    Step,
    ToolEnded,
)
from tailrace.streaming.agent.turn import open_calls
from tailrace.streaming.conversion.approval_parts import RequestOf, waiting_message
from tailrace.streaming.conversion.message_conversion import results_message, to_a2a_message
from tailrace.streaming.conversion.published_artifacts import (
    PublishedArtifact,
    PublishedArtifacts,
    emptying_updates,
)
from tailrace.streaming.conversion.response_translator import ResponseTranslator
from tailrace.streaming.schemas.structured_output import OutputReader
from tailrace.streaming.task.task_record import agent_message
from tailrace.streaming.task.updates import MessageAdded, StatusUpdate, Update
from tailrace.streaming.turn_accumulator import TurnAccumulator
from tailrace.wrappers import Change, Role
from tailrace.wrappers.continuation import Route


class TurnTranslator:
    """Translates the steps of one turn (`Agent.steps`) into updates of a task. Sans-IO.

    A message is added to the conversation after its artifacts are complete, together with the next update.

    Args:
        accumulator: The accumulator of the turn, to which the caller adds the content.
        turn: The number of the turn in the task.
        rounds: The number of responses of this turn that another process received before.
        results: The number of tool results of this turn that another process published before.
        reader: Parses a structured response; None for text.
        max_event_bytes: See `ResponseTranslator`.
        first_updates: Updates to publish before the first step.
        request_of: Function that returns the approval request of a call without a result; None if the caller must run the call.
        published: The artifacts of the first response, if another process published a part of it; otherwise empty.
    """

    def __init__(
        self,
        accumulator: TurnAccumulator,
        *,
        turn: int = 1,
        rounds: int = 0,
        results: int = 0,
        reader: OutputReader | None = None,
        max_event_bytes: int = 0,
        first_updates: Sequence[Update | MessageAdded] = (),
        request_of: RequestOf = lambda _: None,
        published: Sequence[PublishedArtifact] = (),
    ) -> None:
        self._first_updates = first_updates
        self._request_of = request_of
        self._accumulator = accumulator
        self._turn = turn
        self._round = rounds
        self._reader = reader
        self._max_event = max_event_bytes
        # Round 0: the results of approved calls must not have the artifact ids of results of the first response.
        self._response = ResponseTranslator(turn=turn, round=0, results=results)
        self._published = published
        self._received_again: PublishedArtifacts | None = None
        self._is_stored = False  # True if an event contains the id of a response that the provider stores
        self._attempts: list[Attempt] = []  # of the responses that broke off
        self._model = ""  # of the latest attempt
        self._route: Route | None = None
        self._recorded = 0  # number of messages of the turn that have been added to the conversation
        self._complete = 0  # number of messages of the turn whose artifacts are complete

    def begin_response(
        self, response: Accumulator
    ) -> Callable[[list[Change]], Sequence[Update | MessageAdded]]:
        """Begin a response. Return the function that translates its changes (`ResponseTranslator.translate`)."""
        self._round += 1
        self._response = ResponseTranslator(
            turn=self._turn,
            round=self._round,
            accumulator=response,
            taken_ids=partial(
                _call_ids, self._accumulator
            ),  # the partial object must not refer to this translator (a reference cycle)
            max_event_bytes=self._max_event,
        )
        return self._translate_interrupted if self._published else self._response.translate

    def _translate_interrupted(self, changes: list[Change]) -> Sequence[Update]:
        updates = self._response.translate(changes)
        if self._received_again is not None:
            return self._received_again.unpublished(updates)
        published, self._published = self._published, ()
        return [*emptying_updates(published, updates), *updates]

    def translate(self, step: Step) -> Sequence[Update | MessageAdded]:
        """Return the updates for a step of any type except `Received`."""
        if isinstance(step, ResponseContinued):
            return self._translate_continuation(step)
        if isinstance(step, ResponseBegun):
            return self._translate_begin(step)
        if isinstance(step, ExecutionStarting):
            return [
                StatusUpdate(TaskState.WORKING, metadata={EXTENSION_URI: {"executing": list(step.call_ids)}})
            ]
        items = self._new_messages()
        if isinstance(step, ResponseEnded):
            self._add_attempts()
            # The ids of calls in the message are unique in the conversation.
            calls = (
                self._accumulator.messages[-1].tool_calls
                if len(self._accumulator.messages) > self._complete
                else ()
            )
            updates = self._response.finish(step.changes, calls)
            items += updates if self._received_again is None else self._received_again.unpublished(updates)
            self._received_again, self._published = None, ()
        elif isinstance(step, ToolEnded):
            items.append(self._response.result(step.result))
        self._complete = len(self._accumulator.messages)
        if isinstance(step, ResponseEnded) and self._accumulator.calls_without_result and items:
            # Persist the messages before the tools run. After a crash, the server then knows that the tools may have run.
            items[-1:] = [*self._new_messages(), items[-1]]
        if isinstance(step, RoundEnded):
            items += self._new_messages()
        return items

    def _translate_begin(self, step: ResponseBegun) -> list[Update | MessageAdded]:
        self._response.model = step.model
        if not step.stored_id or step.route is Route.ATTACH:
            return []
        self._is_stored = True
        fields = {"id": step.stored_id, "model": step.model, "turn": self._turn, "round": self._round}
        return [StatusUpdate(TaskState.WORKING, metadata={EXTENSION_URI: {"storedResponse": fields}})]

    def _translate_continuation(self, step: ResponseContinued) -> list[Update | MessageAdded]:
        attempts = self._response.accumulator.attempts
        self._model, self._route = step.model, step.route
        metadata: dict[str, Any] = {
            "attempt": len(attempts) + 1,
            "route": str(step.route),
            "model": step.model,
            "after": attempts_to_json((step.attempt,))[0],
        }
        # After a crash, the server needs these fields.
        if len(attempts) > 1:
            metadata["before"] = attempts_to_json(attempts[:-1])
        numbers = {"turn": self._turn, "round": self._round}
        metadata |= {name: number for name, number in numbers.items() if number != 1}
        fields: dict[str, Any] = {"continuation": metadata}
        if step.route is Route.ATTACH:
            self._is_stored = True
            if self._published and self._received_again is None:
                self._received_again = PublishedArtifacts(self._published)
        else:
            self._received_again = None
            if self._is_stored:  # after a crash, the server must not request the stored response again
                self._is_stored, fields["storedResponse"] = False, {}
        if step.route is Route.PREFILL:
            self._published = ()
        if step.has_text:
            self._response.resume_text()
        return [StatusUpdate(TaskState.WORKING, metadata={EXTENSION_URI: fields})]

    def _add_attempts(self) -> None:
        response = self._response.accumulator
        if response.attempts:
            last = Attempt(self._model, self._route, response.error, response.usage)
            self._attempts += [*response.attempts, last]

    def begin(self) -> Sequence[Sequence[Update | MessageAdded]]:
        """Return the updates to publish before the first step."""
        return (self._first_updates,) if self._first_updates else ()

    def close(self, error: AgentError | None = None) -> Sequence[Sequence[Update | MessageAdded]]:
        """End the turn. Return the last updates, ending with the final status.

        Args:
            error: The reason why the turn has no result; None if it has a result.
        """
        items = self._new_messages()
        usage = self._accumulator.total_usage if self._round > 1 else None
        ending = self._response.ending(open_calls(self._accumulator), usage=usage)
        if ending.state is TaskState.INPUT_REQUIRED:
            message = waiting_message(open_calls(self._accumulator), self._request_of)
            ending = msgspec.structs.replace(ending, message=message)
        if self._attempts and ending.metadata is not None:
            ending.metadata[EXTENSION_URI]["attempts"] = attempts_to_json(self._attempts)
        if error is not None:
            ending = StatusUpdate(TaskState.FAILED, agent_message(str(error)), ending.metadata)
        elif self._reader is not None and ending.state is TaskState.COMPLETED:
            try:
                items.append(self._response.output(self._reader.read(self._accumulator.last_text)))
            except ValueError as problem:
                ending = StatusUpdate(TaskState.FAILED, agent_message(str(problem)), ending.metadata)
        return ([*items, *self._new_messages(), ending],)

    def _new_messages(self) -> list[Update | MessageAdded]:
        """Return the messages whose artifacts are complete and that have not been added to the conversation."""
        start, self._recorded = self._recorded, self._complete
        items: list[Update | MessageAdded] = []
        for message in self._accumulator.messages[start : self._complete]:
            if not message.content:
                continue
            is_results = message.role is Role.TOOL
            a2a = results_message(message) if is_results else to_a2a_message(message, message_id=str(uuid4()))
            items.append(MessageAdded(a2a))
        return items


def _call_ids(accumulator: TurnAccumulator) -> set[str]:
    return {call.id for message in accumulator.history.conversation for call in message.tool_calls}

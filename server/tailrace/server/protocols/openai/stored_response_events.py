"""The events of a stored response or completion, read from the task's events or created from a snapshot of the task.

A stream depends only on the events of the task, and begins with the first event of the turn. Therefore, the original stream, a
resumed stream and a stream of another node have the same bytes. Some time after the end of a task, its events are deleted
(``docs/storage.md``). Later streams are created from a snapshot of the task.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from tailrace.server.protocols.conversation_lookup import read_response_id
from tailrace.server.protocols.openai.stored_request import Kind, StoredRequest, read_stored_request
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.server.protocols.task_events import number_of
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.event_stream import EventStream
from tailrace.server.runtime.operations import Operations
from tailrace.server.store.store import EventsDropped
from tailrace.streaming.a2a.errors import TaskNotFoundError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.json_value_counts import cost_of_task
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, StreamResponse, Task, TaskStatus
from tailrace.streaming.a2a.requests import SubscribeToTaskRequest
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.streaming.conversion.message_conversion import is_callers
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.wrappers.concurrency.worker_thread import json_cost, json_text_cost, run_bounded

_PREFIXES: dict[Kind, str] = {"response": "resp_", "chat.completion": "chatcmpl-"}
_NOUNS: dict[Kind, str] = {"response": "Response", "chat.completion": "Chat completion"}


class StoredTurn(NamedTuple):
    """A response or completion of a caller. It is one turn of a task.

    Attributes:
        id: The id of the response or completion.
        task: The current state of the task, including its history.
        turn: The number of the turn.
        message: The caller's message that began the turn.
        request: The record of the request.
    """

    id: str
    task: Task
    turn: int
    message: Message
    request: StoredRequest

    @property
    def is_newest(self) -> bool:
        """True if the turn is the newest turn of the task."""
        return sum(map(is_callers, self.task.history)) == self.turn

    @property
    def is_over(self) -> bool:
        """True if the turn has ended."""
        state = self.task.status.state
        return state.terminal or state.interrupted or not self.is_newest

    @property
    def has_started(self) -> bool:
        """True if the agent has begun to process the request."""
        return self.is_over or self.task.status.state is not TaskState.SUBMITTED

    async def batches(self) -> AsyncGenerator[Sequence[Event]]:
        """Yield one batch that contains only the event of `snapshot`."""
        yield [self.snapshot()]

    def snapshot(self) -> Event:
        """Return an event with the task at the end of the turn. If the turn is running, the task has its current state."""
        task = self.task
        if not self.is_newest:
            task = _as_of_turn(task, self.turn)
        return Event(0, StreamResponse(task=task).to_json(), task.status.state)


def not_found(given: str, kind: Kind) -> OpenAIError:
    """Return the error for a response or completion that does not exist or belongs to another caller."""
    return OpenAIError(404, f"{_NOUNS[kind]} with id '{given}' not found.", param="id")


def turn_id(task_id: str, turn: int, kind: Kind) -> str:
    """Return the id of a response or completion for a turn of a task."""
    return f"{_PREFIXES[kind]}{task_id}{'_' if kind == 'response' else '-'}{turn}"


def read_turn_id(given: str, kind: Kind) -> tuple[str, int]:
    """Return the task id and the number of the turn in the id of a response or completion.

    The task id is empty if this server did not create the id.
    """
    prefix = _PREFIXES[kind]
    if not given.startswith(prefix):
        return "", 0
    task_id, _, turn = given.removeprefix(prefix).rpartition("_" if kind == "response" else "-")
    return read_response_id(f"resp_{task_id}_{turn}")


async def find_turn(operations: Operations, given: str, caller: Caller, kind: Kind) -> StoredTurn:
    """Return a stored response or completion of the caller.

    Args:
        operations: Reads the task.
        given: The id of the response or completion.
        caller: The caller.
        kind: The API that created it.

    Raises:
        OpenAIError: The caller has no such stored response or completion.
        StoreError: The task cannot be read.
    """
    task_id, turn = read_turn_id(given, kind)
    if not task_id:
        raise not_found(given, kind)
    try:
        task = await operations.snapshot(task_id, caller)
    except TaskNotFoundError:
        raise not_found(given, kind) from None
    messages = [message for message in task.history if is_callers(message)]
    message = messages[turn - 1] if 0 < turn <= len(messages) else None
    request = None
    if message is not None:
        cost = json_cost(message.metadata)
        request = await run_bounded(cost, read_stored_request, message.metadata)
    if message is None or request is None or request.kind != kind or task.id != task_id:
        raise not_found(given, kind)
    return StoredTurn(given, task, turn, message, request)


async def subscribe_to_turn(operations: Operations, stored: StoredTurn, caller: Caller) -> "TurnEvents":
    """Return the events of a turn from its first event on. If the turn is running, new events follow.

    Raises:
        EventsDropped: The events are no longer stored.
        StoreError: The events cannot be read.
        RateLimitError: The caller has too many streams.
    """
    request = SubscribeToTaskRequest(id=stored.task.id)
    stream = await operations.stream(Operation.SUBSCRIBE_TO_TASK, request, caller, after=0)
    return TurnEvents(stream, stored.turn)


async def read_turn(operations: Operations, stored: StoredTurn, caller: Caller) -> "TurnEvents":
    """Return the stored events of a turn that has ended, for a response without streaming.

    Raises:
        EventsDropped: The events are no longer stored.
        StoreError: The events cannot be read.
    """
    return TurnEvents(await operations.read_events(stored.task.id, caller), stored.turn)


class TurnEvents:
    """The events of a turn.

    Args:
        stream: The events of the task, from the first event of the turn or of the task on.
        turn: The number of the turn if ``stream`` begins with the first event of the task; 0 if it begins with the turn.
    """

    def __init__(self, stream: EventStream, turn: int = 0) -> None:
        stream.read_every_event()
        self._stream = stream
        self._turn = turn

    async def batches(self) -> AsyncGenerator[Sequence[Event]]:
        """Yield the events in batches, and close the stream at the end.

        Raises:
            EventsDropped: An event is no longer stored.
            StoreError: Events cannot be read.
        """
        replay = _Replay(self._turn) if self._turn > 1 else None
        last = 0 if self._turn else None
        async with aclosing(self._stream.batches()) as batches:
            async for events in batches:
                last = _checked(events, last)
                if replay is not None:
                    cost = sum(json_text_cost(event.body) for event in events)
                    events = await run_bounded(cost, replay.feed, events)
                    if not events:
                        continue
                    replay = None
                yield events


def _checked(events: Sequence[Event], last: int | None) -> int:
    """Check that no event is missing, and return the number of the last event."""
    for event in events:
        if last is not None and event.number != last + 1:
            raise EventsDropped(event.number)
        last = event.number
    return last or 0


class _Replay:
    """Replays the events of a task up to the first event of a turn.

    This event is replaced with an event that contains the task at that time.

    Args:
        turn: The number of the turn.
    """

    def __init__(self, turn: int) -> None:
        self._turn = turn
        self._record: TaskRecord | None = None

    def feed(self, events: Sequence[Event]) -> Sequence[Event]:
        """Return the events of the batch that belong to the turn; empty before the turn."""
        for at, event in enumerate(events):
            if self._record is None:
                task = StreamResponse.from_json(event.body).task
                if task is None:
                    raise EventsDropped(event.number)
                self._record = TaskRecord(task, event.number)
            else:
                self._record.replay(event)
            if event.state is not None and self._is_reached(self._record):
                first = StreamResponse(task=self._record.snapshot()).to_json()
                return [Event(event.number, first), *events[at + 1 :]]
        return ()

    def _is_reached(self, record: TaskRecord) -> bool:
        return sum(map(is_callers, record.history)) >= self._turn


def _as_of_turn(task: Task, turn: int) -> Task:
    """Return the task at the end of an earlier turn.

    The metadata is empty, because only the metadata of the task's last status is stored.
    """
    starts = [at for at, message in enumerate(task.history) if is_callers(message)]
    history = task.history[: starts[turn]]
    status = TaskStatus(state=TaskState.COMPLETED)
    if not is_callers(history[-1]):
        history, status = (
            history[:-1],
            TaskStatus(state=TaskState.INPUT_REQUIRED, message=history[-1]),
        )
    artifacts = tuple(
        artifact
        for artifact in task.artifacts
        if number_of(extension_metadata(artifact.metadata).get("turn")) <= turn
    )
    return task.model_copy(
        update={"history": history, "status": status, "artifacts": artifacts, "metadata": {}}
    )


def turn_cost(stored: StoredTurn) -> int:
    """Return the maximum cost of encoding a turn from a snapshot of its task, for `run_bounded`."""
    return cost_of_task(stored.task)

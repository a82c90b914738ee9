"""The events of one turn of a task, from the task's log or from a snapshot of the task."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from tailrace.server.protocols.task_events import turn_or_round_number
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.event_stream import EventStream
from tailrace.server.runtime.operations import Operations
from tailrace.server.store.store import EventsDropped, SendKey
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.json_value_counts import cost_of_task
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, StreamResponse, Task, TaskStatus
from tailrace.streaming.a2a.requests import SubscribeToTaskRequest
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.streaming.conversion.message_conversion import is_callers
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.wrappers.concurrency.worker_thread import json_text_cost, run_bounded


async def repeat_turn(operations: Operations, sent: SendKey, caller: Caller) -> "RepeatedTurn":
    """Return the events of the turn that an earlier request with the same message began.

    Raises:
        TaskNotFoundError: The task of the earlier request was deleted.
        StoreError: The task cannot be read.
        RateLimitError: The caller has too many streams.
    """
    task = await operations.snapshot(sent.task_id, caller)
    turn = sent.turn or callers_messages(task)
    return RepeatedTurn(await subscribe_to_turn(operations, task.id, turn, caller), task, turn)


async def subscribe_to_turn(operations: Operations, task_id: str, turn: int, caller: Caller) -> "TurnEvents":
    """Return the events of a turn. If the turn is running, new events follow.

    Raises:
        TaskNotFoundError: The task does not exist or belongs to another caller.
        StoreError: The task cannot be read.
        RateLimitError: The caller has too many streams.
    """
    request = SubscribeToTaskRequest(id=task_id)
    stream = await operations.stream(Operation.SUBSCRIBE_TO_TASK, request, caller, after=0)
    return TurnEvents(stream, turn)


def callers_messages(task: Task) -> int:
    """Return the number of the caller's messages in a task, which is also the number of the newest turn."""
    return sum(map(is_callers, task.history))


class TurnEvents:
    """The events of a turn.

    Args:
        stream: Events of the task, from the first event of the task or of the turn.
        turn: The number of the turn; 0 if the stream begins with the first event of the turn.
    """

    def __init__(self, stream: EventStream, turn: int = 0) -> None:
        stream.disable_snapshots()
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

    def close(self) -> None:
        """Release the permit of the stream."""
        self._stream.close()


def _checked(events: Sequence[Event], last: int | None) -> int:
    """Check that no event is missing. Return the number of the last event."""
    for event in events:
        if last is not None and event.number != last + 1:
            raise EventsDropped(event.number)
        last = event.number
    return last or 0


class _Replay:
    """Replays the events of a task up to the first event of a turn, and replaces this event with the task at that time."""

    def __init__(self, turn: int) -> None:
        self._turn = turn
        self._record: TaskRecord | None = None

    def feed(self, events: Sequence[Event]) -> Sequence[Event]:
        """Return the events that belong to the turn; empty if the turn has not begun.

        Raises:
            EventsDropped: The first event of the task is no longer stored.
        """
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


class RepeatedTurn:
    """The events of a turn for a repeated request, or a snapshot of the task if they are no longer stored."""

    def __init__(self, events: TurnEvents, task: Task, turn: int) -> None:
        self.task_id = task.id
        self.turn = turn
        self._events = events
        self._task = task

    async def batches(self) -> AsyncGenerator[Sequence[Event]]:
        """Yield the events in batches, and close the stream at the end.

        Raises:
            EventsDropped: Events were deleted during the iteration.
            StoreError: Events cannot be read.
        """
        is_begun = False
        try:
            async with aclosing(self._events.batches()) as batches:
                async for events in batches:
                    is_begun = True
                    yield events
        except EventsDropped:
            if is_begun:
                raise
            yield [await run_bounded(cost_of_task(self._task), snapshot_of_turn, self._task, self.turn)]

    def close(self) -> None:
        """Close the stream."""
        self._events.close()


def snapshot_of_turn(task: Task, turn: int) -> Event:
    """Return an event with the task at the end of a turn; for the newest turn, with the current task."""
    if turn != callers_messages(task):
        task = _task_at_turn(task, turn)
    return Event(0, StreamResponse(task=task).to_json(), task.status.state)


def snapshot_of_running_turn(task: Task, turn: int) -> Event:
    """Return an event with the current task, without messages that were received during the running turn."""
    task = task.model_copy(update={"history": _history_to(task, turn)})
    return Event(0, StreamResponse(task=task).to_json(), task.status.state)


def last_turn(task: Task, turn: int) -> int:
    """Return the number of the turn with which the stream of a turn ends.

    A message to a running task waits, and its turn follows in the same stream. The stream ends when the task asks its caller or
    ends.
    """
    starts = _starts(task)
    for number in range(turn, len(starts)):
        following = task.history[starts[number]]
        has_question = not is_callers(task.history[starts[number] - 1])
        # A message with the record of an API request is never sent to a running task.
        if has_question or "apiRequest" in extension_metadata(following.metadata):
            return number
    return len(starts)


def _starts(task: Task) -> list[int]:
    return [at for at, message in enumerate(task.history) if is_callers(message)]


def _history_to(task: Task, turn: int) -> tuple[Message, ...]:
    return task.history[: _starts(task)[turn - 1] + 1]


def _task_at_turn(task: Task, turn: int) -> Task:
    """Return the task at the end of an earlier turn. The metadata of earlier turns is not stored, and therefore empty."""
    last, starts = last_turn(task, turn), _starts(task)
    history = _history_to(task, turn)
    if last == len(starts):
        return task.model_copy(update={"history": history})
    question = task.history[starts[last] - 1]
    status = TaskStatus(state=TaskState.COMPLETED)
    if not is_callers(question):
        status = TaskStatus(state=TaskState.INPUT_REQUIRED, message=question)
    artifacts = tuple(
        artifact
        for artifact in task.artifacts
        if turn_or_round_number(extension_metadata(artifact.metadata).get("turn")) <= last
    )
    return task.model_copy(
        update={"history": history, "status": status, "artifacts": artifacts, "metadata": {}}
    )

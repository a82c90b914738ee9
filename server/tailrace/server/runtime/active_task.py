"""The tasks of this process: running, with subscribers, or with events to persist."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import anyio
from opentelemetry.trace import SpanContext

from tailrace.server.store.store import PushConfig, SendKey
from tailrace.streaming.a2a.errors import TaskNotFoundError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.extension import turn_continues
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, StreamResponse
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.task.log import LogCursor, TaskLog
from tailrace.streaming.task.task import TaskRecord
from tailrace.streaming.task.updates import StatusUpdate
from tailrace.wrappers import StoreError


@dataclass(eq=False, slots=True, weakref_slot=True)
class ActiveTask:
    """A task with its log and the state of its turn.

    Attributes:
        record: The task as of its last event, which may not be persisted yet.
        owner: The owner.
        log: The persisted and published events.
        running: A turn is running, or about to begin.
        waiting: The messages whose turns have not begun, oldest first.
        scope: Cancelled to end the turn.
        ending: The last status of a cancelled turn.
        new_messages: Messages to persist with the next event.
        recorded_rounds: The number of responses of the turn in the conversation, after a crash interrupted it.
        round_calls: The ids of the calls in the last message that was added to the conversation.
        webhooks: Webhooks to persist with the next event, which they receive.
        send_key: The idempotency key of the message that causes the next event, to persist with it.
        holds_conversation: Its turn holds the lock of the conversation.
        error: The reason why the task was given up: its events cannot be persisted.
        followed: Another process writes the task; record and log follow its events.
        moved: Another process writes the task now: it must be looked up again.
    """

    record: TaskRecord
    owner: str
    log: TaskLog
    running: bool = False
    waiting: list["PendingMessage"] = field(
        default_factory=list["PendingMessage"]
    )  # few: an empty deque takes 0.8 KB
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ending: StatusUpdate | None = None
    new_messages: list[Message] = field(default_factory=list[Message])
    recorded_rounds: int = 0
    round_calls: frozenset[str] = frozenset()
    webhooks: list[PushConfig] = field(default_factory=list[PushConfig])
    send_key: SendKey | None = None
    holds_conversation: bool = False
    error: StoreError | None = None
    followed: bool = False
    moved: bool = False

    def begin_turn(self) -> None:
        """Mark a turn as running, so that it can be cancelled."""
        self.running = True
        self.scope = anyio.CancelScope()
        self.ending = None


@dataclass(frozen=True, slots=True)
class CallContext:
    """The context of a caller's message: data beside the request itself, the same on every node.

    Attributes:
        named_in: The protocol version in which the caller chooses the ids of its tasks: an unknown id creates a task.
            Empty if the server chooses them.
        spoken: The protocol version of notifications to a webhook of the request.
        extensions: URIs of the activated extensions.
        send_key: The idempotency key of the message. A message with a key that was used before is not accepted again:
            the task that it created is returned. The key is kept as long as the task. Empty for none.
        fingerprint: The fingerprint of the request, if the message alone does not identify it; see `Engine.sent_as`.
        cost: The number of values in the request, with the messages that precede it.
    """

    named_in: str = ""
    spoken: str = "1.0"
    extensions: tuple[str, ...] = ()
    send_key: str = ""
    fingerprint: str = ""
    cost: int = 0


PLAIN_CALL = CallContext()
"""The default call context."""


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """A message of the caller that waits for its turn.

    Attributes:
        message: The message, with the ids of the task.
        request: Its request.
        extensions: URIs of the activated extensions.
        number: 1 for the task's first message, 2 for the second, ….
        in_history: It is in the conversation already: a crash interrupted its turn.
        preceding: Earlier messages of a new conversation, as the caller sent them.
        origin: The trace of the request; None for none.
        cost: As `CallContext.cost`.
    """

    message: Message
    request: SendMessageRequest
    extensions: tuple[str, ...]
    number: int
    in_history: bool = False
    preceding: tuple[Message, ...] = ()
    origin: SpanContext | None = None
    cost: int = 0

    @property
    def in_conversation(self) -> bool:
        """Return whether the conversation may have earlier messages."""
        named = self.request.message
        return bool(self.number > 1 or named.context_id or named.task_id)


@dataclass(eq=False, slots=True)
class DirectReply:
    """The result of a turn that may respond directly.

    Attributes:
        message: The direct response, if there is one; otherwise the turn creates a task.
        ready: Set when the result is known.
    """

    message: Message | None = None
    ready: anyio.Event = field(default_factory=anyio.Event)


class ReadEvents(Protocol):
    """Reads a task's events after a number."""

    def read(self, active: ActiveTask, after: int, *, max_lag: int | None = None) -> Awaitable[list[Event]]:
        """Read events; see `TaskRegistry.read`."""
        ...

    def find(self, task_id: str, owner: str) -> Awaitable[ActiveTask]:
        """Look up a task that has moved; see `TaskRegistry.find`."""
        ...


class Subscription(LogCursor):
    """A subscriber of one task: a cursor into its log, which continues in the store and on other nodes.

    It returns every event after the first one. A subscriber that has caught up once and then lags more than the bound
    gets a snapshot (`TaskRecord.overview`), and continues after it without loss.

    Args:
        active: The task.
        after: The number of the last event that the subscriber has.
        first: An event to return before all others; None for none.
        tasks: Reads events that are no longer in memory.
        max_lag: The number of events that a subscriber may lag after it has caught up once.

    Attributes:
        task_id: The task.
    """

    __slots__ = ("_active", "_max_lag", "_tasks", "task_id")

    def __init__(
        self,
        active: ActiveTask,
        after: int,
        first: Event | None,
        *,
        tasks: "ReadEvents",
        max_lag: int,
    ) -> None:
        super().__init__(active.log, after, first)
        self.task_id = active.record.id
        self._tasks = tasks
        self._max_lag: int | None = max_lag
        self._active = active

    @property
    def artifact_ids(self) -> Sequence[str]:
        """The task's artifacts so far, in the order of their creation."""
        return self._active.record.artifact_ids

    def read_every_event(self) -> None:
        """Return every event however far the subscriber lags, and no snapshot in place of those that the store has."""
        self._max_lag = None

    async def begun(self) -> None:
        """Wait until the first event is persisted, or cannot be, which `read` then raises."""
        if self.first is None:  # else it is persisted
            await self._active.log.reach(self.after + 1)

    def batches(self, *, until_interrupted: bool = False) -> AsyncGenerator[Sequence[Event]]:
        """Yield the results of `read`, to the last.

        Args:
            until_interrupted: End also when the task becomes input-required.

        Raises:
            StoreError: Events could not be persisted or read.
        """
        return read_batches(self.read, lambda event: until_interrupted and ends_turn(event.state))

    async def _read_missing(self) -> list[Event]:
        """Read events that the log no longer has, or continue with the task if another process writes it now."""
        while True:
            max_lag = self._max_lag if self.has_caught_up else None
            events = await self._tasks.read(self._active, self.after, max_lag=max_lag)
            if events:
                self.after = events[-1].number
                self.has_caught_up = self.has_caught_up or self.after >= self._active.log.number
            if events or not self._active.moved:
                return events
            try:
                self._active = await self._tasks.find(self.task_id, self._active.owner)
            except TaskNotFoundError:  # its first event was not persisted
                raise self._active.error or StoreError("the task is not there any more") from None
            self._log = self._active.log


async def read_batches(
    read: Callable[[], Awaitable[Sequence[Event]]],
    is_last: Callable[[Event], bool],
    close: Callable[[], object] = lambda: None,
) -> AsyncGenerator[Sequence[Event]]:
    """Read batches of events up to the last one.

    Args:
        read: Reads the next batch; an empty one is the end.
        is_last: Whether an event is the last one to read.
        close: Called at the end.
    """
    try:
        while events := await read():
            for at, event in enumerate(events):
                if event.state is not None and is_last(event):
                    yield events[: at + 1]
                    return
            yield events
    finally:
        close()


def ends_turn(state: TaskState | None) -> bool:
    """Return whether a task's turn has ended in this state, unless it continues (`continues_turn`)."""
    return state is not None and (state.terminal or state.interrupted)


def continues_turn(event: Event) -> bool:
    """Return whether the turn continues after a status that requires authorization."""
    if event.state is not TaskState.AUTH_REQUIRED:
        return False
    update = StreamResponse.from_json(event.body).status_update
    return update is not None and turn_continues(update.metadata)

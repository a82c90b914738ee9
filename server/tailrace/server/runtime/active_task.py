"""Tasks in memory, and the subscriptions that read their events.

The engine keeps a task in memory while the task runs, has subscribers, or has events that are not persisted yet.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import anyio
import msgspec
from opentelemetry.trace import SpanContext

from tailrace.server.store.store import PushConfig, SendKey, StoredCompletion, UsageRecord
from tailrace.streaming.a2a.errors import TaskNotFoundError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, StreamResponse
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.a2a.stream_extension import turn_continues
from tailrace.streaming.task.event_log import LogCursor, TaskLog
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.streaming.task.updates import StatusUpdate
from tailrace.wrappers import StoreError


@dataclass(eq=False, slots=True, weakref_slot=True)
class ActiveTask:
    """A task in memory, with its event log and the state of its turn.

    Attributes:
        record: The task after its last event, which may not be persisted yet.
        running: Whether a turn is running or about to begin.
        waiting: The messages that wait for their turns to begin, oldest first.
        scope: The cancel scope in which the turn runs.
        ending: The last status that a cancelled turn writes; None if the turn is not cancelled.
        suspended: True if the turn is suspended because the server stops.
        new_messages: Messages to persist with the next event.
        recorded_rounds: If a crash or a stop interrupted the turn, the number of its model responses that are already in the
            conversation.
        recorded_attempts: If a crash or a stop interrupted the turn, the number of its attempts that are already in the ledger.
        attached_attempt: The record of the last attempt of a resumed turn, if the provider stores the response of this attempt.
            If the response cannot be received again, this record is restored in the ledger. None for other turns, and after a
            chunk of the response has arrived.
        usage: Records of attempts to persist in the ledger with the next event.
        unanswered_calls: The ids of the tool calls whose results are not in the conversation yet. These are the calls in the last
            message of the agent, or the calls about which the message of the turn has decisions.
        webhooks: Webhooks to persist with the next event. They receive this event.
        send_key: The idempotency key to persist with the next event; None for no key.
        completion: The stored chat completion to persist with the next event; None for no completion.
        holds_conversation_lock: True while the turn of this task holds the lock of the conversation.
        error: The store error that ended the task, because its events could not be persisted; otherwise None.
        is_remote: True if another process writes the task. ``record`` and ``log`` then receive the events of that process.
        is_taken_over: True if another process has started to write the task, and this object is no longer updated. Subscribers
            must look the task up again.
    """

    record: TaskRecord
    owner: str
    log: TaskLog
    running: bool = False
    waiting: list["PendingMessage"] = field(
        default_factory=list["PendingMessage"]
    )  # a list, because an empty deque needs 0.8 KB
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ending: StatusUpdate | None = None
    suspended: bool = False
    new_messages: list[Message] = field(default_factory=list[Message])
    recorded_rounds: int = 0
    recorded_attempts: int = 0
    attached_attempt: UsageRecord | None = None
    usage: tuple[UsageRecord, ...] = ()
    unanswered_calls: frozenset[str] = frozenset()
    webhooks: list[PushConfig] = field(default_factory=list[PushConfig])
    send_key: SendKey | None = None
    completion: StoredCompletion | None = None
    holds_conversation_lock: bool = False
    error: StoreError | None = None
    is_remote: bool = False
    is_taken_over: bool = False

    def begin_turn(self) -> None:
        """Mark a turn as running, so that it can be cancelled."""
        self.running = True
        self.scope = anyio.CancelScope()
        self.ending = None


class NewCompletion(msgspec.Struct, frozen=True):
    """A new stored chat completion."""

    model: str
    metadata: dict[str, str]


class TurnReference(msgspec.Struct, frozen=True, rename="camel"):
    """A turn of a task.

    Attributes:
        context_id: The conversation of the task.
        task_id: The task.
        message_id: The id of the caller's message that began the turn.
    """

    context_id: str
    task_id: str
    message_id: str


class CallContext(msgspec.Struct, frozen=True):
    """Data of a caller's request that is not part of the message. Nodes send this data to each other with the message.

    Attributes:
        version_of_chosen_ids: The protocol version, if callers choose the ids of tasks in this version, as in A2A 0.1. A message
            with an unknown task id then creates a task. Empty if the server chooses the ids.
        protocol_version: The protocol version in which the server sends notifications to the webhook of the request.
        extensions: URIs of the activated extensions.
        send_key: The idempotency key of the message; empty if it has none. The key is stored as long as the task.
        fingerprint: The hash that identifies a repeated request (see `Engine.sent_as`); empty to compute the hash from the
            message.
        cost: The cost of processing the request (`JsonBody.cost`), including the messages that precede the new message.
        record: Data about the request as JSON, which a protocol stores in the metadata ``apiRequest`` of the message; or empty.
        completion: The stored chat completion that the request creates; None for other requests.
        operator_form: The format in which the operator's webhook is notified when the turn ends; empty for no notification.
        may_approve: True if the caller may approve tool calls. False for requests of older nodes, which lack this field.
        agent: The name of the agent that receives the message; empty if the server has only one agent.
        follows: For the first message of a branch, the earlier turn after which the branch begins. The message waits until that
            turn has ended. None for other messages.
    """

    version_of_chosen_ids: str = ""
    # In messages between nodes, this field has the name ``spoken``.
    protocol_version: str = msgspec.field(default="1.0", name="spoken")
    extensions: tuple[str, ...] = ()
    send_key: str = ""
    fingerprint: str = ""
    cost: int = 0
    record: str = ""
    completion: NewCompletion | None = None
    operator_form: str = ""
    may_approve: bool = False
    agent: str = ""
    follows: TurnReference | None = None

    @property
    def spoken(self) -> str:
        """Deprecated name of `protocol_version`; to be removed in 0.3."""
        return self.protocol_version


DEFAULT_CALL = CallContext()


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """A message of the caller that waits for its turn to begin.

    Attributes:
        message: The message, with the ids of the task.
        request: The request that contained the message.
        extensions: URIs of the activated extensions.
        number: The number of the message in the task, from 1.
        in_history: True if the message is already in the conversation, because a crash or a stop interrupted its turn.
        preceding: The earlier messages that the caller sent with the first message of a task, or copies of the messages before a
            branch.
        origin: The trace of the request; None if the request is not traced.
        cost: As for `CallContext`.
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
        """Return whether there may be earlier messages in the conversation."""
        named = self.request.message
        return bool(self.number > 1 or named.context_id or named.task_id)


@dataclass(eq=False, slots=True)
class DirectReply:
    """The result of a turn that may respond with a message instead of a task.

    Attributes:
        message: The direct response; None if the turn creates a task.
        ready: Set when the result is known.
    """

    message: Message | None = None
    ready: anyio.Event = field(default_factory=anyio.Event)


class TaskReader(Protocol):
    """The interface of `TaskRegistry` for subscriptions."""

    def read(self, active: ActiveTask, after: int, *, max_lag: int | None = None) -> Awaitable[list[Event]]:
        """Read events (see `TaskRegistry.read`)."""
        ...

    def find(self, task_id: str, owner: str) -> Awaitable[ActiveTask]:
        """Look up a task that another process writes now (see `TaskRegistry.find`)."""
        ...


class Subscription(LogCursor):
    """A subscription to one task: a cursor into the event log of the task.

    `read` returns each event after ``after`` once. There are two exceptions, in which `read` returns a snapshot of the task
    (`TaskRecord.overview`) instead of the missed events: the store has already deleted them, or the subscriber caught up once and
    now lags by more than ``max_lag`` events.

    Args:
        active: The task.
        after: The number of the last event that the subscriber has.
        first: An event to return before all other events; None to return only the events of the log.
        tasks: Reads events that are no longer in memory.
        max_lag: Maximum lag in events before a snapshot is returned.

    Attributes:
        task_id: The id of the task.
        repeated_key: The idempotency key of the request, if its message was accepted before; None for other requests.
    """

    __slots__ = ("_active", "_max_lag", "_tasks", "repeated_key", "task_id")

    def __init__(
        self,
        active: ActiveTask,
        after: int,
        first: Event | None,
        *,
        tasks: "TaskReader",
        max_lag: int,
    ) -> None:
        super().__init__(active.log, after, first)
        self.task_id = active.record.id
        self.repeated_key: SendKey | None = None
        self._tasks = tasks
        self._max_lag: int | None = max_lag
        self._active = active

    @property
    def artifact_ids(self) -> Sequence[str]:
        """The ids of the task's artifacts, in the order of their creation."""
        return self._active.record.artifact_ids

    def disable_snapshots(self) -> None:
        """Disable the snapshots for lagging subscribers: from now on, `read` returns each event that the store still has."""
        self._max_lag = None

    async def wait_for_start(self) -> None:
        """Wait until the first event is persisted, or cannot be persisted. In the latter case, `read` raises the error."""
        if self.first is None:  # otherwise, the first event is already persisted
            await self._active.log.reach(self.after + 1)

    def batches(self, *, until_interrupted: bool = False) -> AsyncGenerator[Sequence[Event]]:
        """Yield the results of `read` up to the last event.

        Args:
            until_interrupted: True to end also when the task waits for its caller.

        Raises:
            StoreError: Events could not be persisted or read.
        """
        return read_batches(self.read, lambda event: until_interrupted and ends_turn(event.state))

    async def _read_missing(self) -> list[Event]:
        """Read events that the log no longer has. If another process has taken over the task, read its events."""
        while True:
            max_lag = self._max_lag if self.has_caught_up else None
            events = await self._tasks.read(self._active, self.after, max_lag=max_lag)
            if events:
                self.after = events[-1].number
                self.has_caught_up = self.has_caught_up or self.after >= self._active.log.number
            if events or not self._active.is_taken_over:
                return events
            try:
                self._active = await self._tasks.find(self.task_id, self._active.owner)
            except TaskNotFoundError:  # the first event of the task was not persisted
                raise self._active.error or StoreError("the task no longer exists") from None
            self._log = self._active.log


async def read_batches(
    read: Callable[[], Awaitable[Sequence[Event]]],
    is_last: Callable[[Event], bool],
    close: Callable[[], object] = lambda: None,
) -> AsyncGenerator[Sequence[Event]]:
    """Read batches of events up to the last one.

    Args:
        read: Reads the next batch. An empty batch ends the iteration.
        is_last: Returns whether an event is the last one to read.
        close: Called when the iteration ends.
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
    """Return whether a state is terminal or interrupted, and thus ends a turn. For AUTH_REQUIRED, see also `continues_turn`."""
    return state is not None and (state.terminal or state.interrupted)


def continues_turn(event: Event) -> bool:
    """Return whether the turn continues after this event, although its status requires authorization."""
    if event.state is not TaskState.AUTH_REQUIRED:
        return False
    update = StreamResponse.from_json(event.body).status_update
    return update is not None and turn_continues(update.metadata)

"""The records that the store reads and writes."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec

from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Task
from tailrace.streaming.a2a.requests import TaskPushNotificationConfig
from tailrace.wrappers import StoreError


class EventsDropped(StoreError):
    """Events were dropped, some time after the end of their task.

    The task's snapshot has their content: send it in their place.

    Args:
        first: The number of the first event that exists; one more than the last if none does.

    Attributes:
        first: As given.
    """

    def __init__(self, first: int) -> None:
        super().__init__(
            f"the events of the task before number {first} have been deleted; get the task's snapshot",
            temporary=False,
        )
        self.first = first


class NotOurs(StoreError):
    """A write was refused: another node has the task, or other nodes declared this one dead.

    The task continues on another node; subscribers of this node look it up again.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem, temporary=False)


class TasksRefused(StoreError):
    """The writes of some tasks in a batch were refused; the others are persisted.

    Args:
        tasks: The errors, by task id.
        temporary: As for `StoreError`.

    Attributes:
        tasks: As given.
    """

    def __init__(self, tasks: Mapping[str, StoreError], *, temporary: bool = False) -> None:
        super().__init__("; ".join(sorted({str(error) for error in tasks.values()})), temporary=temporary)
        self.tasks = tasks


class PushConfig(msgspec.Struct, frozen=True):
    """A webhook of a task.

    Attributes:
        owner: The owner of the task.
        dialect: The protocol version of the request that set it, and of its notifications.
        config: The caller's configuration, with the ids of task and webhook.
        delivered: The number of the last event that was delivered or given up.
    """

    owner: str
    dialect: str
    config: TaskPushNotificationConfig
    delivered: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """Return the ids of the task and of the webhook."""
        return self.config.task_id, self.config.id


class SendKey(msgspec.Struct, frozen=True):
    """The idempotency key of a message.

    Attributes:
        key: The key.
        fingerprint: The fingerprint of the request; another request with the same key is an error.
        task_id: The task that the message created or continued.
    """

    key: str
    fingerprint: str
    task_id: str


class StoredCompletion(msgspec.Struct, frozen=True):
    """A chat completion that its client can list and change: one turn of a task.

    Attributes:
        task_id: The task.
        turn: The number of the turn.
        model: The requested model.
        metadata: The client's metadata.
    """

    task_id: str
    turn: int
    model: str
    metadata: dict[str, str]


class AttemptState(StrEnum):
    """The end of an attempt of a model call."""

    FINAL = "final"
    """The response is complete, and the provider reported its usage."""
    UNREPORTED = "unreported"
    """The response is complete, and the provider reported no usage."""
    CUT = "cut"
    """The response is incomplete: it broke off or was cancelled. The counts are those that were reported until then."""
    ATTACHED = "attached"
    """The connection broke off, and the next attempt, whose usage includes this one, received the rest of the response."""
    FAILED = "failed"
    """The request was not sent, or the provider rejected it."""
    LOST = "lost"
    """The process of the server ended during the turn, when an attempt may have been running."""


INCOMPLETE_STATES = (AttemptState.UNREPORTED, AttemptState.CUT, AttemptState.LOST)
"""States of attempts that may have used more tokens than their counts."""


class UsageRecord(msgspec.Struct, frozen=True):
    """The usage of one attempt of a model call.

    Attributes:
        turn: The number of the turn in the task.
        attempt: The number of the attempt in the turn.
        caller: The authenticated name of the caller; empty without authentication.
        agent: The name of the agent.
        provider: The provider; empty for the usage that a custom handler or a remote agent reported.
        model: The requested model; empty as ``provider``.
        state: The end of the attempt.
        started: The start, in milliseconds since 1970.
        ended: The end, in milliseconds since 1970.
        reported_model: The model that the provider reported; may be empty.
        input_tokens: Tokens of the input, including cached ones.
        cached_tokens: Tokens of the input that the provider read from its cache.
        output_tokens: Tokens of the output, including reasoning.
        reasoning_tokens: Tokens of reasoning.
        cost: The cost in 1e-9 US dollars; None if the price is unknown.
        chunks: The number of chunks that arrived: at least one token of output for most providers.
    """

    turn: int
    attempt: int
    caller: str
    agent: str
    provider: str
    model: str
    state: AttemptState
    started: int
    ended: int
    reported_model: str = ""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost: int | None = None
    chunks: int = 0


class TaskWrite(msgspec.Struct, frozen=True):
    """A write of one task: new events, and the changes that come with the last of them.

    Attributes:
        task_id: The task.
        owner: The owner.
        context_id: The conversation.
        events: New events, in order; empty for a task without a log.
        snapshot: The task as of the last of ``events``, if its snapshot is to be updated (at the bounds of a turn);
            else None.
        messages: Messages that are added to the conversation with these events.
        updated: The time of the new status; None if the events did not change the status.
        webhooks: Webhooks that receive the events from these on.
        send_key: The idempotency key of the message that caused the events; None without one.
        holds_conversation: The turn holds the lock of its conversation: other turns of it wait.
        is_large: One of ``events`` is large, though it does not change the status.
        completion: The chat completion that the message of these events requested; None without one.
        is_listed: Lists of tasks have the task, if this write creates it.
        usage: Attempts of model calls that ended before these events.
    """

    task_id: str
    owner: str
    context_id: str
    events: Sequence[Event]
    snapshot: Task | None = None
    messages: Sequence[Message] = ()
    updated: datetime | None = None
    webhooks: Sequence[PushConfig] = ()
    send_key: SendKey | None = None
    holds_conversation: bool = False
    is_large: bool = False
    completion: StoredCompletion | None = None
    is_listed: bool = True
    usage: Sequence[UsageRecord] = ()


class StoredTask(msgspec.Struct, frozen=True):
    """The latest snapshot of a task.

    Attributes:
        task: The task as of event ``number``.
        number: The number of that event.
        node: The node that writes it; None for a task that has ended, and with a single server.
    """

    task: Task
    number: int
    node: str | None = None


class TaskFilter(msgspec.Struct, frozen=True):
    """A filter of listed tasks; None or empty matches all.

    Attributes:
        context_id: The conversation.
        state: The state.
        since: The earliest time of the status.
    """

    context_id: str = ""
    state: TaskState | None = None
    since: datetime | None = None


class CompletionFilter(msgspec.Struct, frozen=True):
    """A filter of listed chat completions; empty matches all.

    Attributes:
        model: The requested model.
        metadata: Pairs that the metadata has.
    """

    model: str = ""
    metadata: dict[str, str] = {}


class TaskPosition(msgspec.Struct, frozen=True):
    """The position of a task in a list that is ordered by status time, newest first.

    Attributes:
        updated: The time of its status.
        id: Its id, the order of tasks with the same time.
    """

    updated: datetime
    id: str


class StoredPage(NamedTuple):
    """A page of a caller's stored tasks.

    Attributes:
        tasks: In order, with their positions.
        total: The number of tasks on all pages.
        has_more: Further tasks follow.
    """

    tasks: list[tuple[TaskPosition, Task]]
    total: int
    has_more: bool


class TaskPage(msgspec.Struct, frozen=True):
    """A page of a caller's tasks.

    Attributes:
        tasks: In order.
        total: The number of tasks on all pages.
        last: The position of the last task; None on the last page.
    """

    tasks: list[Task]
    total: int
    last: TaskPosition | None


class Retention(msgspec.Struct, frozen=True):
    """The retention of tasks that have ended.

    Attributes:
        events: Seconds after a task's end for which its events are stored, so that a stream can be resumed. None: as
            long as the task.
        tasks: Seconds after its end for which a task is stored, with its messages. None: without limit.
        usage: Seconds after its end for which the usage of an attempt is stored. None: without limit.
    """

    events: float | None = 24 * 3600.0
    tasks: float | None = None
    usage: float | None = None

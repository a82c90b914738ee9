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
    """Events of an ended task were deleted (see `Retention`).

    The snapshot of the task has the content of these events.

    Attributes:
        first: The number of the first event that exists.
    """

    def __init__(self, first: int) -> None:
        super().__init__(
            f"the events of the task before number {first} have been deleted; get the task's snapshot",
            temporary=False,
        )
        self.first = first


class NotOwnedError(StoreError):
    """A write was rejected: another node owns the task, or other nodes have declared this node dead.

    The task continues on another node. Subscribers on this node must find the task again.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem, temporary=False)


class TasksNotWrittenError(StoreError):
    """The writes of some tasks in a batch were rejected. The writes of the other tasks are persisted.

    Attributes:
        tasks: The errors of the rejected tasks, by task id.
    """

    def __init__(self, tasks: Mapping[str, StoreError], *, temporary: bool = False) -> None:
        super().__init__("; ".join(sorted({str(error) for error in tasks.values()})), temporary=temporary)
        self.tasks = tasks


class PushConfig(msgspec.Struct, frozen=True):
    """A webhook of a task.

    Attributes:
        owner: The owner of the task.
        dialect: The protocol version of the request that set the webhook, and of the notifications; ``operator:NAME`` for a
            webhook of the operator, where NAME is the form.
        config: The configuration of the webhook, with the ids of the task and the webhook.
        last_delivered: The number of the last event that was delivered, or whose delivery failed finally.
    """

    owner: str
    dialect: str
    config: TaskPushNotificationConfig
    last_delivered: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """Return the ids of the task and of the webhook."""
        return self.config.task_id, self.config.id


class SendKey(msgspec.Struct, frozen=True):
    """The idempotency key of a message.

    Attributes:
        key: The key.
        fingerprint: The fingerprint of the request.
        task_id: The id of the task that the message created or continued.
        turn: The number of the message's turn in the task; 0 for a key that an earlier version stored.
    """

    key: str
    fingerprint: str
    task_id: str
    turn: int = 0


class StoredCompletion(msgspec.Struct, frozen=True):
    """A stored chat completion, which is one turn of a task.

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
    """The outcome of an attempt."""

    FINAL = "final"
    """The response is complete, and the provider reported the usage."""
    UNREPORTED = "unreported"
    """The response is complete, but the provider reported no usage."""
    CUT = "cut"
    """The response was interrupted or cancelled. The counts are those that were reported until then."""
    ATTACHED = "attached"
    """The connection was lost. The usage of the next attempt includes this attempt."""
    FAILED = "failed"
    """The request was not sent, or the provider rejected it."""
    LOST = "lost"
    """The server ended during the turn, and possibly during an attempt."""


INCOMPLETE_STATES = (AttemptState.UNREPORTED, AttemptState.CUT, AttemptState.LOST)
"""States of attempts that may have used more tokens than were reported."""


class UsageRecord(msgspec.Struct, frozen=True):
    """The usage of one attempt.

    Attributes:
        turn: The number of the turn in the task.
        attempt: The number of the attempt in the turn.
        caller: The authenticated name of the caller; empty without authentication.
        agent: The name of the agent.
        provider: The provider; empty if a custom handler or a remote agent reported the usage.
        model: The requested model; empty if ``provider`` is empty.
        state: The outcome of the attempt.
        started: The start of the attempt, in milliseconds since 1970.
        ended: The end of the attempt, in milliseconds since 1970.
        reported_model: The model that the provider reported; may be empty.
        input_tokens: Tokens of the input, including cached tokens.
        cached_tokens: Tokens of the input that the provider read from its cache.
        output_tokens: Tokens of the output, including reasoning.
        reasoning_tokens: Tokens of reasoning.
        cost: The cost in 1e-9 US dollars; None if the price is unknown.
        chunks: The number of chunks that arrived. Most have at least one token.
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
    """A write of one task: new events, and changes that are persisted with them.

    Attributes:
        task_id: The task.
        owner: The owner.
        context_id: The conversation.
        events: New events in order. May be empty.
        snapshot: The task after the last event, at the beginning and at the end of a turn; None to keep the stored snapshot.
        messages: Messages that are added to the conversation with these events.
        updated: The time of the new status; None if the events do not change the status.
        webhooks: New webhooks, which receive these and later events.
        send_key: The idempotency key of the message that caused the events; None if the message has none.
        holds_conversation_lock: Whether other turns of the conversation must wait for this turn.
        has_large_event: Whether the write has a large event that does not change the status.
        completion: The chat completion that the message requested; None if it requested none.
        is_listed: If this write creates the task, whether lists of tasks contain the task.
        usage: Records of attempts that ended before these events.
        received: The caller's message that the task received with these events; None if the task received no message.
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
    holds_conversation_lock: bool = False
    has_large_event: bool = False
    completion: StoredCompletion | None = None
    is_listed: bool = True
    usage: Sequence[UsageRecord] = ()
    received: Message | None = None


class StoredTask(msgspec.Struct, frozen=True):
    """The latest snapshot of a task.

    Attributes:
        task: The task as of event ``number``.
        number: The number of that event.
        node: The node that writes the task; None for an ended task, or without a cluster.
    """

    task: Task
    number: int
    node: str | None = None


class TaskFilter(msgspec.Struct, frozen=True):
    """A filter for lists of tasks. None and empty values match all tasks.

    Attributes:
        context_id: The conversation.
        state: The state.
        since: The earliest time of the status.
    """

    context_id: str = ""
    state: TaskState | None = None
    since: datetime | None = None


class CompletionFilter(msgspec.Struct, frozen=True):
    """A filter for lists of chat completions. Empty values match all completions.

    Attributes:
        model: The requested model.
        metadata: Pairs that the metadata must contain.
    """

    model: str = ""
    metadata: dict[str, str] = {}


class ConversationFilter(msgspec.Struct, frozen=True):
    """A filter for lists of conversations. Empty values match all conversations.

    Attributes:
        text: Text that the title must contain, without regard to case and accents.
        related_to: The id of a conversation. Matches this conversation, and all conversations that branches connect with it.
    """

    text: str = ""
    related_to: str = ""


class StoredBranch(msgspec.Struct, frozen=True):
    """The message with which a conversation began as a branch of another conversation.

    Attributes:
        message_id: The message.
        origin_context_id: The other conversation.
        origin_message_id: The message of the other conversation before which the branch begins.
    """

    message_id: str
    origin_context_id: str
    origin_message_id: str


class StoredConversation(msgspec.Struct, frozen=True):
    """A conversation in a list.

    Attributes:
        context_id: The id.
        title: The title that the caller chose, or the beginning of the caller's first message.
        created: The time of the caller's first message.
        updated: The time of the caller's newest message.
        branch: The beginning of the conversation, if it is a branch; otherwise None.
    """

    context_id: str
    title: str
    created: datetime
    updated: datetime
    branch: StoredBranch | None = None


class ConversationPage(NamedTuple):
    """A page of a caller's conversations."""

    conversations: list[StoredConversation]
    has_more: bool


class ListPosition(msgspec.Struct, frozen=True):
    """The position of an entry in a list that is ordered by time, newest first.

    Attributes:
        updated: The time of the entry: of the status of a task, or of the newest message of a conversation.
        id: The id of the entry, which orders entries with the same time.
    """

    updated: datetime
    id: str


class StoredPage(NamedTuple):
    """A page of a caller's stored tasks."""

    tasks: list[tuple[ListPosition, Task]]
    total: int
    has_more: bool


class TaskPage(msgspec.Struct, frozen=True):
    """A page of a caller's tasks.

    Attributes:
        tasks: The tasks in order.
        total: The number of tasks on all pages.
        last: The position of the last task on the page; None on the last page.
    """

    tasks: list[Task]
    total: int
    last: ListPosition | None


class Retention(msgspec.Struct, frozen=True):
    """The retention of tasks that have ended.

    Attributes:
        events: Seconds after the end of a task during which its events are stored, so that a stream can be resumed. None: as long
            as the task.
        tasks: Seconds after the end of a task during which the task and its messages are stored. None: without limit.
        usage: Seconds after the end of an attempt during which its usage is stored. None: without limit.
    """

    events: float | None = 24 * 3600.0
    tasks: float | None = None
    usage: float | None = None

"""What goes into the store, and what comes out."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from tailrace.streaming.a2a.models import Message, Task
from tailrace.streaming.a2a.requests import TaskPushNotificationConfig
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.task import Event
from tailrace.wrappers import StoreError


class EventsDropped(StoreError):
    """Events that a reader asks for were dropped: the task was over for longer than they are kept.

    What they held is in the task itself: who asks can be given it as it stands.

    Args:
        first: The number of the first event that is still there; one more than the last when none is.

    Attributes:
        first: As given.
    """

    def __init__(self, first: int) -> None:
        super().__init__(
            f"the events of the task before number {first} are no longer kept; get the task as it stands",
            temporary=False,
        )
        self.first = first


class NotOurs(StoreError):
    """A write was refused because another node has the task by now, or this node is dead to the others.

    The task goes on elsewhere: who reads it here is to look for it again.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what, temporary=False)


class TasksRefused(StoreError):
    """Of a batch that is kept otherwise, what some tasks had in it is not.

    Args:
        tasks: Why, by the tasks' ids.
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
        owner: Whose task it is.
        dialect: The version of the protocol that it was set in, and is told in.
        config: What the caller set, with the ids of the task and of the webhook.
        delivered: The number of the last event that the webhook was told of, or that was given up.
    """

    owner: str
    dialect: str
    config: TaskPushNotificationConfig
    delivered: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """The ids of the task and of the webhook."""
        return self.config.task_id, self.config.id


class SendKey(msgspec.Struct, frozen=True):
    """What a caller named a message by.

    Attributes:
        key: The name.
        fingerprint: Of the request; another request of the same name is a mistake of the caller's.
        task_id: The task that the message began or went on with.
    """

    key: str
    fingerprint: str
    task_id: str


class TaskWrite(msgspec.Struct, frozen=True):
    """Something to be kept of one task: events, and what changed with the last of them.

    Attributes:
        task_id: The task.
        owner: Whose it is.
        context_id: The conversation.
        events: New events, in order; none where somebody keeps a task without a log.
        snapshot: The task as of the last of ``events``, where its state in the store is to be brought up to
            date (at the bounds of a turn); else None.
        said: Messages that join the conversation with these events.
        updated: When the task came to the status that the events brought it to; None when they did not change it.
        webhooks: Webhooks that are to be told of the events from these on.
        send_key: What the caller named the message by that made these events; None where it did not.
    """

    task_id: str
    owner: str
    context_id: str
    events: Sequence[Event]
    snapshot: Task | None = None
    said: Sequence[Message] = ()
    updated: datetime | None = None
    webhooks: Sequence[PushConfig] = ()
    send_key: SendKey | None = None


class StoredTask(msgspec.Struct, frozen=True):
    """A task as it was last brought up to date.

    Attributes:
        task: The task as of event ``number``.
        number: That event's number.
        node: The node that writes it; None where it is over, and where one server has the database.
    """

    task: Task
    number: int
    node: str | None = None


class TaskFilter(msgspec.Struct, frozen=True):
    """Which tasks are listed; what is None or empty matches all.

    Attributes:
        context_id: Those of this conversation.
        state: Those in this state.
        since: Those whose status is of this time or later.
    """

    context_id: str = ""
    state: TaskState | None = None
    since: datetime | None = None


class TaskPosition(msgspec.Struct, frozen=True):
    """Where a task stands in a list that begins with the newest status.

    Attributes:
        updated: The time of its status.
        id: Its id, which orders those of the same time.
    """

    updated: datetime
    id: str


class TaskPage(msgspec.Struct, frozen=True):
    """Some of a caller's tasks.

    Attributes:
        tasks: In order.
        total: How many there are on all pages.
        last: Where the page ends; None when nothing follows.
    """

    tasks: list[Task]
    total: int
    last: TaskPosition | None


class Retention(msgspec.Struct, frozen=True):
    """How long tasks that are over are kept.

    Attributes:
        events: Seconds after a task's end for which its single events are kept: for so long a stream of it can be
            gone on with. None: as long as the task.
        tasks: Seconds after its end for which a task is kept, with all that was said in it. None: for good.
    """

    events: float | None = 24 * 3600.0
    tasks: float | None = None

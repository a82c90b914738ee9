"""Keeping a batch of what happened to tasks, in a transaction that somebody else has begun."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from tailrace.server.stores.event_rows import Row
from tailrace.server.stores.push_config_rows import put_push_config
from tailrace.server.stores.records import TaskWrite
from tailrace.server.stores.schema import events, messages, send_keys, tasks
from tailrace.streaming.a2a.models import Task


def has_more(write: TaskWrite) -> bool:
    """Whether there is more to be kept than events that do not change the task's status."""
    return bool(
        write.snapshot is not None
        or write.updated is not None
        or write.said
        or write.webhooks
        or write.send_key is not None
    )


def rows_of(writes: Sequence[TaskWrite]) -> list[Row]:
    """The events of writes as rows of their table."""
    return [
        (write.task_id, item.number, item.body, None if item.state is None else item.state.value)
        for write in writes
        for item in write.events
    ]


def keep_tasks(connection: Connection, writes: Sequence[TaskWrite], node: str | None = None) -> None:
    """Write all of a batch but its events, which are there already.

    Args:
        connection: In a transaction.
        writes: The batch.
        node: Which of several servers has the tasks; None where there is one server.
    """
    said = [
        {
            "owner": write.owner,
            "context_id": write.context_id,
            "task_id": write.task_id,
            "body": message.to_json(),
        }
        for write in writes
        for message in write.said
    ]
    if said:
        connection.execute(_INSERT_MESSAGE, said)
    for write in writes:
        if write.snapshot is not None:
            _put_task(connection, write, write.snapshot, node)
        elif write.updated is not None:
            _put_status(connection, write, write.updated)
        for webhook in write.webhooks:
            put_push_config(connection, webhook, node)
        if write.send_key is not None:
            named = write.send_key
            values = {"key": named.key, "fingerprint": named.fingerprint, "task_id": named.task_id}
            connection.execute(insert(send_keys).values(owner=write.owner, **values))


def holds_all(connection: Connection, writes: Sequence[TaskWrite]) -> bool:
    """Whether all events of a batch are there, byte for byte; a batch without events is not known to be."""
    new_events = [(write.task_id, item) for write in writes for item in write.events]
    for task_id, item in new_events:
        key = (events.c.task_id == task_id, events.c.number == item.number)
        if connection.scalar(select(events.c.body).where(*key)) != item.body:
            return False
    return bool(new_events)


def _put_task(connection: Connection, write: TaskWrite, task: Task, node: str | None) -> None:
    values: dict[str, Any] = {
        "state": task.status.state,
        "updated": task.status.timestamp or datetime.now(UTC),
        "snapshot": task.to_json(),
        "node": None if task.status.state.terminal else node,
    }
    if not write.events:
        _put_task_alone(connection, write, values)
        return
    values |= {"number": write.events[-1].number, "events_kept": True}
    where = {"task_id": write.task_id, "task_owner": write.owner}
    if not connection.execute(_UPDATE_TASK, {**where, **values}).rowcount:
        key = {"id": write.task_id, "owner": write.owner, "context_id": write.context_id}
        connection.execute(_INSERT_TASK, {**key, **values})


def _put_task_alone(connection: Connection, write: TaskWrite, values: dict[str, Any]) -> None:
    """A task that is kept without events stands where it stood, or at the last event that there is."""
    where = (tasks.c.id == write.task_id, tasks.c.owner == write.owner)
    newest = {"number": _last_number(write.task_id, tasks.c.number)}
    changed = connection.execute(update(tasks).where(*where).values({**values, **newest}))
    if not changed.rowcount:
        key = {"id": write.task_id, "owner": write.owner, "context_id": write.context_id}
        newest = {"number": _last_number(write.task_id, 0)}
        connection.execute(insert(tasks).values({**key, **values, **newest}))


def _put_status(connection: Connection, write: TaskWrite, updated: datetime) -> None:
    state = next(event.state for event in reversed(write.events) if event.state is not None)
    connection.execute(_UPDATE_STATUS, {"task_id": write.task_id, "state": state, "updated": updated})


# Made once: to make a statement takes longer than to carry it out.
_INSERT_MESSAGE = insert(messages)
_INSERT_TASK = insert(tasks)
_UPDATE_TASK = (
    update(tasks)
    .where(tasks.c.id == bindparam("task_id"), tasks.c.owner == bindparam("task_owner"))
    .values(
        {name: bindparam(name) for name in ("state", "updated", "snapshot", "number", "events_kept", "node")}
    )
)
_UPDATE_STATUS = (
    update(tasks)
    .where(tasks.c.id == bindparam("task_id"))
    .values({name: bindparam(name) for name in ("state", "updated")})
)


def _last_number(task_id: str, otherwise: Any) -> Any:
    """The number of a task's last event that is there."""
    return func.coalesce(
        select(func.max(events.c.number)).where(events.c.task_id == task_id).scalar_subquery(), otherwise
    )

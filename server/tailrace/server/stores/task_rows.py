"""Keeping a batch of what happened to tasks, in a transaction that somebody else has begun."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Executable, bindparam, func, insert, select, update

from tailrace.server.stores.event_rows import Row
from tailrace.server.stores.push_config_rows import put_push_config
from tailrace.server.stores.records import TaskWrite
from tailrace.server.stores.schema import events, messages, send_keys, tasks


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
    _put_tasks(connection, writes, node)
    for write in writes:
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


def _put_tasks(connection: Connection, writes: Sequence[TaskWrite], node: str | None) -> None:
    """Bring tasks up to date, each by one statement: a turn that begins has a snapshot and a status in one batch."""
    changes: dict[str, tuple[TaskWrite, dict[str, Any]]] = {}
    new: set[str] = set()
    for write in writes:
        values = _values(write, node)
        if values and not write.events:
            if write.task_id in changes:
                _put_task(connection, *changes.pop(write.task_id), is_new=write.task_id in new)
            _put_task_alone(connection, write, values)
        elif values:
            first, merged = changes.setdefault(write.task_id, (write, {}))
            merged |= values
            if first.events[0].number == 1:
                new.add(write.task_id)
    for task_id, (write, values) in changes.items():
        _put_task(connection, write, values, is_new=task_id in new)


def _values(write: TaskWrite, node: str | None) -> dict[str, Any]:
    """What changes of a task's row; nothing where it stays as it is."""
    task = write.snapshot
    if task is None and write.updated is None:
        return {}
    if task is None:
        state = next(event.state for event in reversed(write.events) if event.state is not None)
        return {"state": state, "updated": write.updated}
    values = {
        "state": task.status.state,
        "updated": task.status.timestamp or datetime.now(UTC),
        "snapshot": task.to_json(),
        "node": None if task.status.state.terminal else node,
    }
    return {**values, "number": write.events[-1].number, "events_kept": True} if write.events else values


def _put_task(connection: Connection, write: TaskWrite, values: dict[str, Any], *, is_new: bool) -> None:
    if "snapshot" not in values:
        connection.execute(_UPDATE_STATUS, {"task_id": write.task_id, **values})
        return
    row = {"id": write.task_id, "owner": write.owner, "context_id": write.context_id, **values}
    if is_new and connection.execute(_add_task(connection.dialect.name), row).rowcount:
        return
    where = {"task_id": write.task_id, "task_owner": write.owner}
    if not connection.execute(_UPDATE_TASK, {**where, **values}).rowcount:
        connection.execute(_INSERT_TASK, row)


def _put_task_alone(connection: Connection, write: TaskWrite, values: dict[str, Any]) -> None:
    """A task that is kept without events stands where it stood, or at the last event that there is."""
    where = (tasks.c.id == write.task_id, tasks.c.owner == write.owner)
    newest = {"number": _last_number(write.task_id, tasks.c.number)}
    changed = connection.execute(update(tasks).where(*where).values({**values, **newest}))
    if not changed.rowcount:
        key = {"id": write.task_id, "owner": write.owner, "context_id": write.context_id}
        newest = {"number": _last_number(write.task_id, 0)}
        connection.execute(insert(tasks).values({**key, **values, **newest}))


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


@cache
def _add_task(dialect: str) -> Executable:
    """Insert a task unless there is one of that id. Each dialect has words of its own, and takes megabytes."""
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as insert_into
    else:
        from sqlalchemy.dialects.postgresql import insert as insert_into
    return insert_into(tasks).on_conflict_do_nothing()


def _last_number(task_id: str, otherwise: Any) -> Any:
    """The number of a task's last event that is there."""
    return func.coalesce(
        select(func.max(events.c.number)).where(events.c.task_id == task_id).scalar_subquery(), otherwise
    )

"""Writes the rows of tasks in the transaction of a batch of writes."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    bindparam,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from tailrace.server.store.completion_store import insert_completion
from tailrace.server.store.conversation_rows import add_to_conversations
from tailrace.server.store.push_config_rows import PushConfigRows
from tailrace.server.store.records import TaskWrite
from tailrace.server.store.schema import events, messages, send_keys, tasks
from tailrace.server.store.usage_store import insert_usage
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Task

_TASK_EVENT = b'{"task":'  # the beginning of an event that contains the task

_ACTIVE = [state.value for state in TaskState if not (state.terminal or state.interrupted)]


def has_running_turn() -> ColumnElement[bool]:
    """Return the condition that a task has a running or interrupted turn.

    A turn in AUTH_REQUIRED runs if the task has events after its snapshot, because the end of the turn updates the snapshot.
    """
    follows = exists().where(events.c.task_id == tasks.c.id, events.c.number > tasks.c.number)
    return or_(tasks.c.state.in_(_ACTIVE), (tasks.c.state == TaskState.AUTH_REQUIRED.value) & follows)


def encoded_snapshot(write: TaskWrite) -> bytes:
    """Return the JSON of the snapshot of a write from its last event; empty if this event does not contain the task."""
    body = write.events[-1].body if write.events else b""
    return body[len(_TASK_EVENT) : -1] if body.startswith(_TASK_EVENT) else b""


class Bodies:
    """The JSON of the messages and snapshots of writes, encoded before the transaction begins.

    Args:
        writes: The writes. They must exist as long as this object, which uses the ``id()`` of their messages and snapshots.
    """

    def __init__(self, writes: Sequence[TaskWrite]) -> None:
        self._bodies: dict[int, bytes] = {}
        for write in writes:
            for message in write.messages:
                self._bodies[id(message)] = message.to_json()
            if write.snapshot is not None:
                self._bodies[id(write.snapshot)] = encoded_snapshot(write) or write.snapshot.to_json()

    def __getitem__(self, value: Message | Task) -> bytes:
        """Return the JSON of a message or a snapshot."""
        return self._bodies[id(value)]


def write_tasks(
    connection: Connection,
    writes: Sequence[TaskWrite],
    bodies: Bodies,
    webhooks: PushConfigRows,
    node: str | None = None,
) -> None:
    """Write a batch, except for its events, which are already written.

    Args:
        connection: The connection, in a transaction.
        writes: The batch.
        bodies: The encoded bodies of at least these writes.
        webhooks: Writes the webhooks of the batch.
        node: The node that writes the tasks; None for a single server.
    """
    messages = [
        {
            "owner": write.owner,
            "context_id": write.context_id,
            "task_id": write.task_id,
            "body": bodies[message],
        }
        for write in writes
        for message in write.messages
    ]
    if messages:
        connection.execute(_INSERT_MESSAGE, messages)
    _put_tasks(connection, writes, bodies, node)
    add_to_conversations(connection, [write for write in writes if write.events])
    for write in writes:
        for webhook in write.webhooks:
            webhooks.put(connection, webhook, node)
        if write.send_key is not None:
            key = msgspec.structs.asdict(write.send_key)
            connection.execute(_INSERT_SEND_KEY, {"owner": write.owner, **key})
        if write.completion is not None:
            insert_completion(connection, write.owner, write.completion)
    insert_usage(connection, writes)


def has_all_events(connection: Connection, writes: Sequence[TaskWrite]) -> bool:
    """Return whether all events of a batch exist with the same content; False for a batch without events."""
    new_events = [(write.task_id, item) for write in writes for item in write.events]
    for task_id, item in new_events:
        key = (events.c.task_id == task_id, events.c.number == item.number)
        if connection.scalar(select(events.c.body).where(*key)) != item.body:
            return False
    return bool(new_events)


def _put_tasks(connection: Connection, writes: Sequence[TaskWrite], bodies: Bodies, node: str | None) -> None:
    """Insert or update the row of each task. Several writes of a task are merged."""
    changes: dict[str, tuple[TaskWrite, dict[str, Any]]] = {}
    new: set[str] = set()
    for write in writes:
        values = _values(write, bodies, node)
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


def _values(write: TaskWrite, bodies: Bodies, node: str | None) -> dict[str, Any]:
    """Return the changed columns of the row of a task; empty if none changed."""
    task = write.snapshot
    if task is None and write.updated is None:
        return {}
    if task is None:
        state = next(event.state for event in reversed(write.events) if event.state is not None)
        return {"state": state, "updated": write.updated}
    values = {
        "state": task.status.state,
        "updated": task.status.timestamp or datetime.now(UTC),
        "snapshot": bodies[task],
        "node": None if task.status.state.terminal else node,
    }
    return {**values, "number": write.events[-1].number, "events_kept": True} if write.events else values


def _put_task(connection: Connection, write: TaskWrite, values: dict[str, Any], *, is_new: bool) -> None:
    if "snapshot" not in values:
        connection.execute(_UPDATE_STATUS, {"task_id": write.task_id, **values})
        return
    row = {"id": write.task_id, "owner": write.owner, "context_id": write.context_id, **values}
    if not write.is_listed:
        row["listed"] = False
    if is_new and connection.execute(_add_task(connection.dialect.name), row).rowcount:
        return
    where = {"task_id": write.task_id, "task_owner": write.owner}
    if not connection.execute(_UPDATE_TASK, {**where, **values}).rowcount:
        connection.execute(_INSERT_TASK, row)


def _put_task_alone(connection: Connection, write: TaskWrite, values: dict[str, Any]) -> None:
    """Write a task without new events. The snapshot gets the number of the task's last event."""
    where = (tasks.c.id == write.task_id, tasks.c.owner == write.owner)
    newest = {"number": _last_number(write.task_id, tasks.c.number)}
    changed = connection.execute(update(tasks).where(*where).values({**values, **newest}))
    if not changed.rowcount:
        key = {"id": write.task_id, "owner": write.owner, "context_id": write.context_id}
        newest = {"number": _last_number(write.task_id, 0)}
        connection.execute(insert(tasks).values({**key, **values, **newest}))
        add_to_conversations(connection, [write])


def put_unlisted_task(connection: Connection, row: dict[str, Any], *, may_create: bool) -> bool:
    """Insert or replace an unlisted task, and return whether it was written (see `Store.put_unlisted_task`)."""
    own = (tasks.c.id == row["id"], tasks.c.owner == row["owner"], tasks.c.listed.is_(False))
    change = update(tasks).where(*own).values(snapshot=row["snapshot"], updated=row["updated"])
    if connection.execute(change).rowcount:
        return True
    if (
        may_create
        and connection.execute(
            _add_task(connection.dialect.name), {**row, "number": 0, "events_kept": False, "listed": False}
        ).rowcount
    ):
        return True
    return may_create and bool(
        connection.execute(change).rowcount
    )  # another server may have inserted the task at the same time


# Created once, because building such a statement takes longer than running it. With `inline`, SQLAlchemy does not fetch the
# primary key of the new row.
_INSERT_MESSAGE = insert(messages).inline()
_INSERT_SEND_KEY = insert(send_keys)
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
    """Return an INSERT that does nothing if the id exists."""
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as insert_into
    else:
        from sqlalchemy.dialects.postgresql import insert as insert_into
    return insert_into(tasks).on_conflict_do_nothing()


def _last_number(task_id: str, otherwise: Any) -> Any:
    """Return an expression for the number of a task's last event; ``otherwise`` if there is none."""
    return func.coalesce(
        select(func.max(events.c.number)).where(events.c.task_id == task_id).scalar_subquery(), otherwise
    )

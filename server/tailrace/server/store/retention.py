"""Retention: drops the events of tasks that have ended, and, if configured, whole tasks; completes deletions.

The snapshot of a task that has ended is complete, with each artifact as one part. Its events serve clients that resume a
stream, soon after its end. Events that a webhook has yet to receive are not dropped.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Column, ColumnElement, Connection, Row, delete, exists, func, select, update

from tailrace.server.store.event_rows import count_within
from tailrace.server.store.records import Retention
from tailrace.server.store.schema import TABLES_OF_TASKS, deletions, events, messages, push_configs, tasks
from tailrace.server.store.usage_store import drop_usage, forget_tasks
from tailrace.streaming.a2a.lifecycle import TaskState

BATCH = 500
"""Maximum number of events and tasks that one transaction drops: writers wait for one or two milliseconds."""

BATCH_BYTES = 4 * 1024 * 1024
"""Maximum bytes of the rows that one transaction drops, but at least one row: SQLite overwrites them."""

_BATCH = 50  # tasks in one transaction

_OVER = [state.value for state in TaskState if state.terminal]


def drop_expired(connection: Connection, retention: Retention, now: datetime, batch: int = BATCH) -> bool:
    """Drop some of the expired rows, of each task the oldest events first.

    Args:
        connection: In a transaction.
        retention: The retention.
        now: The time.
        batch: The maximum number of rows.

    Returns:
        Whether there may be more.
    """
    if retention.usage is not None and drop_usage(
        connection, now - timedelta(seconds=retention.usage), batch
    ):
        return True
    if retention.tasks is not None:
        before = now - timedelta(seconds=retention.tasks)
        found = _over_since(connection, before)
        complete, batch = _drop_events(connection, found, batch)
        if complete:
            for column in (
                tasks.c.id,
                *(table.c.task_id for table in TABLES_OF_TASKS if table is not events),
            ):
                connection.execute(delete(column.table).where(column.in_(complete)))
            forget_tasks(connection, complete)
        if batch <= 0 or len(found) == _BATCH:
            return True
    if retention.events is not None:
        before = now - timedelta(seconds=retention.events)
        found = _over_since(connection, before, tasks.c.events_kept)
        complete, batch = _drop_events(connection, found, batch)
        if complete:
            connection.execute(update(tasks).where(tasks.c.id.in_(complete)).values(events_kept=False))
        return batch <= 0 or len(found) == _BATCH
    return False


def _over_since(
    connection: Connection, before: datetime, *further: ColumnElement[bool]
) -> Sequence[Row[str, int]]:
    """Return ids and last numbers of tasks that ended before a time and have no notifications to deliver."""
    waiting = exists().where(push_configs.c.task_id == tasks.c.id, push_configs.c.delivered < tasks.c.number)
    query = select(tasks.c.id, tasks.c.number).where(
        tasks.c.state.in_(_OVER), tasks.c.updated < before, ~waiting, *further
    )
    return connection.execute(query.limit(_BATCH)).all()


def _drop_events(connection: Connection, found: Sequence[Row[str, int]], batch: int) -> tuple[list[str], int]:
    """Drop events that are in their tasks' snapshots, until a batch is full.

    Returns:
        The tasks without remaining events to drop, and the rest of the batch.
    """
    done: list[str] = []
    for task_id, number in found:
        where = (events.c.task_id == task_id, events.c.number <= number)
        count, has_more = _delete_some(connection, events.c.number, where, batch)
        batch -= count
        if has_more or batch <= 0:
            return done, 0
        done.append(task_id)
        batch -= 1
        if batch <= 0:
            break
    return done, batch


def delete_messages(connection: Connection, task_id: str, owner: str) -> bool:
    """Delete some of the messages of a task; return whether there may be more."""
    where = (messages.c.task_id == task_id, messages.c.owner == owner)
    _, has_more = _delete_some(connection, messages.c.position, where, BATCH)
    return has_more


def pending_deletion(connection: Connection) -> str | None:
    """Return a deleted task whose events are not deleted yet; None if there is none."""
    return connection.scalar(select(deletions.c.task_id).limit(1))


def drop_deleted(connection: Connection, task_id: str) -> bool:
    """Drop some of the events of a deleted task, then its deletion; return whether there may be more."""
    _, has_more = _delete_some(connection, events.c.number, (events.c.task_id == task_id,), BATCH)
    if not has_more:
        connection.execute(delete(deletions).where(deletions.c.task_id == task_id))
    return has_more


def _delete_some(
    connection: Connection, key: Column[int], where: Sequence[ColumnElement[bool]], limit: int
) -> tuple[int, bool]:
    """Delete the first rows within a number and `BATCH_BYTES`.

    Args:
        connection: In a transaction.
        key: The column of the rows' order; their table has a column ``body``.
        where: The conditions of the rows.
        limit: The maximum number of rows.

    Returns:
        The number of deleted rows, and whether there may be more.
    """
    size = func.length(key.table.c.body).label("size")
    rows = connection.execute(select(key, size).where(*where).order_by(key).limit(limit)).all()
    if not rows:
        return 0, False
    count = count_within(BATCH_BYTES, [row.size for row in rows])
    connection.execute(delete(key.table).where(*where, key.between(rows[0][0], rows[count - 1][0])))
    return count, count < len(rows) or len(rows) == limit

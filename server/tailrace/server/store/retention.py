"""Retention: deletes expired events of ended tasks, and, if configured, complete tasks and usage.

The snapshot of an ended task is complete. Its events are only needed for webhooks, and for clients that resume a stream.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Column, ColumnElement, Connection, Row, delete, exists, func, select, update

from tailrace.server.store.conversation_rows import lock_conversations_of, replace_first_tasks
from tailrace.server.store.event_rows import count_within
from tailrace.server.store.records import Retention
from tailrace.server.store.schema import TABLES_OF_TASKS, deletions, events, messages, push_configs, tasks
from tailrace.server.store.usage_store import drop_usage, forget_tasks
from tailrace.streaming.a2a.lifecycle import TaskState

BATCH = 500
"""Maximum number of rows that one transaction deletes.

Writers wait one or two milliseconds for such a transaction.
"""

BATCH_BYTES = 4 * 1024 * 1024
"""Maximum total size of the rows that one transaction deletes, in bytes.

SQLite overwrites deleted rows with zeros, which takes time.
"""

_BATCH = 50  # maximum tasks in one transaction

_ENDED_STATES = [state.value for state in TaskState if state.terminal]


def drop_expired(connection: Connection, retention: Retention, now: datetime, batch: int = BATCH) -> bool:
    """Delete a batch of expired rows. The oldest events of a task are deleted first.

    Args:
        connection: The connection, in a transaction.
        retention: The retention.
        now: The current time.
        batch: The maximum number of rows (see `BATCH`).

    Returns:
        True if there may be more expired rows.
    """
    if retention.usage is not None and drop_usage(
        connection, now - timedelta(seconds=retention.usage), batch
    ):
        return True
    if retention.tasks is not None:
        before = now - timedelta(seconds=retention.tasks)
        ended = _ended_before(connection, before)
        complete, batch = _drop_events(connection, ended, batch)
        if complete:
            connection.execute(delete(tasks).where(tasks.c.id.in_(complete)))
            delete_rows_of_tasks(connection, complete)
        if batch <= 0 or len(ended) == _BATCH:
            return True
    if retention.events is not None:
        before = now - timedelta(seconds=retention.events)
        ended = _ended_before(connection, before, tasks.c.events_kept)
        complete, batch = _drop_events(connection, ended, batch)
        if complete:
            connection.execute(update(tasks).where(tasks.c.id.in_(complete)).values(events_kept=False))
        return batch <= 0 or len(ended) == _BATCH
    return False


def delete_rows_of_tasks(connection: Connection, task_ids: Sequence[str]) -> None:
    """Delete the rows that belong to deleted tasks, except their events."""
    first_tasks = lock_conversations_of(connection, task_ids)
    for table in TABLES_OF_TASKS:
        connection.execute(delete(table).where(table.c.task_id.in_(task_ids)))
    replace_first_tasks(connection, first_tasks)
    forget_tasks(connection, task_ids)


def _ended_before(
    connection: Connection, before: datetime, *further: ColumnElement[bool]
) -> Sequence[Row[str, int]]:
    """Return the ids and last event numbers of tasks that ended before a time, and have no notifications to deliver."""
    waiting = exists().where(push_configs.c.task_id == tasks.c.id, push_configs.c.delivered < tasks.c.number)
    query = select(tasks.c.id, tasks.c.number).where(
        tasks.c.state.in_(_ENDED_STATES), tasks.c.updated < before, ~waiting, *further
    )
    return connection.execute(query.limit(_BATCH)).all()


def _drop_events(connection: Connection, ended: Sequence[Row[str, int]], batch: int) -> tuple[list[str], int]:
    """Delete events of tasks up to the given event numbers, until the batch is full.

    Returns:
        The tasks without further events to delete, and the remaining size of the batch.
    """
    done: list[str] = []
    for task_id, number in ended:
        conditions = (events.c.task_id == task_id, events.c.number <= number)
        count, has_more = _delete_batch(connection, events.c.number, conditions, batch)
        batch -= count
        if has_more or batch <= 0:
            return done, 0
        done.append(task_id)
        batch -= 1
        if batch <= 0:
            break
    return done, batch


def delete_messages(connection: Connection, task_id: str, owner: str) -> bool:
    """Delete a batch of the messages of a task, and return whether there may be more."""
    conditions = (messages.c.task_id == task_id, messages.c.owner == owner)
    _, has_more = _delete_batch(connection, messages.c.position, conditions, BATCH)
    return has_more


def pending_deletion(connection: Connection) -> str | None:
    """Return the id of a deleted task that still has events to delete; None if there is none."""
    return connection.scalar(select(deletions.c.task_id).limit(1))


def drop_deleted(connection: Connection, task_id: str) -> bool:
    """Delete a batch of the events of a deleted task, and return whether there may be more."""
    _, has_more = _delete_batch(connection, events.c.number, (events.c.task_id == task_id,), BATCH)
    if not has_more:
        connection.execute(delete(deletions).where(deletions.c.task_id == task_id))
    return has_more


def _delete_batch(
    connection: Connection, key: Column[int], conditions: Sequence[ColumnElement[bool]], limit: int
) -> tuple[int, bool]:
    """Delete the first rows, at most ``limit`` and `BATCH_BYTES`.

    Args:
        connection: The connection, in a transaction.
        key: The column that orders the rows. Its table must have a column ``body``.
        conditions: The conditions for the rows.
        limit: The maximum number of rows.

    Returns:
        The number of deleted rows, and whether there may be more.
    """
    size = func.length(key.table.c.body).label("size")
    rows = connection.execute(select(key, size).where(*conditions).order_by(key).limit(limit)).all()
    if not rows:
        return 0, False
    count = count_within(BATCH_BYTES, [row.size for row in rows])
    connection.execute(delete(key.table).where(*conditions, key.between(rows[0][0], rows[count - 1][0])))
    return count, count < len(rows) or len(rows) == limit

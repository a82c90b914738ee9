"""Retention: drops the events of tasks that have ended, and, if configured, whole tasks.

The snapshot of a task that has ended is complete, with each artifact as one part. Its events serve clients that resume a
stream, soon after its end. Events that a webhook has yet to receive are not dropped.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, Row, delete, exists, func, select, update

from tailrace.server.store.records import Retention
from tailrace.server.store.schema import TABLES_OF_TASKS, events, push_configs, tasks
from tailrace.streaming.a2a.lifecycle import TaskState

BATCH = 500
"""Maximum number of events and tasks that one transaction drops: writers wait for one or two milliseconds."""

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
        of_task = events.c.task_id == task_id
        first = connection.scalar(select(func.min(events.c.number)).where(of_task))
        if first is not None:
            old = events.c.number.between(first, min(number, first + batch - 1))
            batch -= connection.execute(delete(events).where(of_task, old)).rowcount
        if batch <= 0:
            break
        done.append(task_id)
        batch -= 1
        if batch <= 0:
            break
    return done, batch

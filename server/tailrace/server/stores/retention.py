"""Dropping what is kept for a time only: the single events of tasks that are over, and, where wanted, whole tasks.

A task that is over is whole in its snapshot, with each artifact as one part; its events serve those who go on with a
stream that they lost, and who comes for that comes soon. What a webhook is still to be told of stays.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, Row, delete, exists, func, select, update

from tailrace.server.stores.records import Retention
from tailrace.server.stores.schema import events, messages, push_configs, send_keys, tasks
from tailrace.streaming.lifecycle import TaskState

BATCH = 500
"""Events and tasks that one transaction drops at most: a millisecond or two that writers wait."""

_AT_ONCE = 50  # tasks that are looked at in one transaction

_OVER = [state.value for state in TaskState if state.terminal]


def drop_expired(connection: Connection, retention: Retention, now: datetime, batch: int = BATCH) -> bool:
    """Drop some of what is kept no longer, of each task the oldest events first.

    Args:
        connection: In a transaction.
        retention: How long what is kept.
        now: The time.
        batch: How many rows at most.

    Returns:
        Whether there may be more to drop.
    """
    if retention.tasks is not None:
        before = now - timedelta(seconds=retention.tasks)
        found = _over_since(connection, before)
        whole, batch = _drop_events(connection, found, batch)
        if whole:
            for column in (tasks.c.id, *(table.c.task_id for table in (messages, push_configs, send_keys))):
                connection.execute(delete(column.table).where(column.in_(whole)))
        if batch <= 0 or len(found) == _AT_ONCE:
            return True
    if retention.events is not None:
        before = now - timedelta(seconds=retention.events)
        found = _over_since(connection, before, tasks.c.events_kept)
        whole, batch = _drop_events(connection, found, batch)
        if whole:
            connection.execute(update(tasks).where(tasks.c.id.in_(whole)).values(events_kept=False))
        return batch <= 0 or len(found) == _AT_ONCE
    return False


def _over_since(
    connection: Connection, before: datetime, *further: ColumnElement[bool]
) -> Sequence[Row[str, int]]:
    """Tasks that were over before a time, and of which no webhook is to be told anything: ids and last numbers."""
    waiting = exists().where(push_configs.c.task_id == tasks.c.id, push_configs.c.delivered < tasks.c.number)
    query = select(tasks.c.id, tasks.c.number).where(
        tasks.c.state.in_(_OVER), tasks.c.updated < before, ~waiting, *further
    )
    return connection.execute(query.limit(_AT_ONCE)).all()


def _drop_events(connection: Connection, found: Sequence[Row[str, int]], batch: int) -> tuple[list[str], int]:
    """Drop events that are in their tasks' snapshots, until a batch is full.

    Returns:
        The tasks that have none left to drop, and what is left of the batch.
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

"""Reads and writes rows of events."""

import itertools
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select

from tailrace.server.store.records import EventsDropped
from tailrace.server.store.schema import events, tasks
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState

Row = tuple[str, int, bytes, str | None]
"""The columns of an event: task_id, number, body, state."""

# Maximum rows of a statement. A row has four parameters, and older SQLite versions allow 999 parameters.
_MOST_ROWS = 128

_INSERT_EVENT = insert(events)


def insert_events(connection: Connection, rows: Sequence[Row]) -> None:
    """Insert events in the current transaction.

    Raises:
        sqlalchemy.exc.IntegrityError: One of the events already exists.
    """
    if rows:
        names = ("task_id", "number", "body", "state")
        connection.execute(_INSERT_EVENT, [dict(zip(names, row, strict=True)) for row in rows])


def statements(rows: Sequence[Row], conflict: str = "") -> list[tuple[str, tuple[Any, ...]]]:
    """Return INSERT statements for SQLite with their parameters.

    SQLite's driver reacquires the GIL for every statement, so one statement inserts many rows. The number of rows is a power of
    two, so that the driver's cache has room for all different statements.

    Args:
        rows: The rows to insert.
        conflict: ``OR IGNORE `` to skip existing rows; empty to raise an error if a row exists.
    """
    result: list[tuple[str, tuple[Any, ...]]] = []
    begin = 0
    while begin < len(rows):
        size = min(len(rows) - begin, _MOST_ROWS).bit_length() - 1
        parameters: list[Any] = []
        for row in rows[begin : begin + (1 << size)]:
            parameters += row
        result.append((_statement(size, conflict), tuple(parameters)))
        begin += 1 << size
    return result


@cache
def _statement(size: int, conflict: str) -> str:
    values = ",".join(["(?,?,?,?)"] * (1 << size))
    return f"INSERT {conflict}INTO events (task_id, number, body, state) VALUES {values}"  # noqa: S608 — constants


def load_events(
    connection: Connection,
    task_id: str,
    after: int,
    limit: int,
    max_bytes: int | None,
    tail: Sequence[Event],
) -> list[Event]:
    """Return the consecutive events after number ``after`` (see `tailrace.server.store.store.Store.load_events`)."""
    while True:
        rows = rows_after(connection, task_id, after, limit, max_bytes)
        if rows and rows[0].number == after + 1:
            return _with_tail(read_events(rows), tail, limit, max_bytes)
        if tail and tail[0].number == after + 1:
            return _with_tail([], tail, limit, max_bytes)
        # The next event was deleted, does not exist yet, or was added in the meantime.
        first = _first_kept(connection, task_id, after)
        if first > after + 1:
            raise EventsDropped(first)
        conditions = (events.c.task_id == task_id, events.c.number > after)
        if first <= after or not connection.scalar(select(func.count()).where(*conditions)):
            return []


def rows_after(
    connection: Connection, task_id: str, after: int, limit: int, max_bytes: int | None
) -> Sequence[Any]:
    """Return the rows of the events after number ``after``, within the limits of `load_events`."""
    conditions = (events.c.task_id == task_id, events.c.number > after)
    if max_bytes is not None:
        sizes = select(func.length(events.c.body)).where(*conditions).order_by(events.c.number).limit(limit)
        limit = count_within(max_bytes, connection.scalars(sizes))
    query = select(events.c.number, events.c.body, events.c.state).where(*conditions)
    return connection.execute(query.order_by(events.c.number).limit(limit)).all()


def count_within(max_bytes: int, sizes: Iterable[int]) -> int:
    """Return how many of the first items have at most ``max_bytes`` in total; at least 1."""
    return max(1, sum(total <= max_bytes for total in itertools.accumulate(sizes)))


def _with_tail(stored: list[Event], tail: Sequence[Event], limit: int, max_bytes: int | None) -> list[Event]:
    """Append events of the tail to events from the table, as long as they are consecutive and within the limits."""
    size = sum(len(event.body) for event in stored)
    for event in tail:
        if stored and event.number <= stored[-1].number:
            continue  # the event was moved to the table
        size += len(event.body)
        follows = not stored or event.number == stored[-1].number + 1
        if not follows or len(stored) >= limit or (stored and max_bytes is not None and size > max_bytes):
            break
        stored.append(event)
    return stored


def read_events(rows: Sequence[Any]) -> list[Event]:
    """Convert rows of the table to events."""
    return [Event(number, body, TaskState(state) if state else None) for number, body, state in rows]


def _first_kept_query() -> Any:
    task_id, after = (
        bindparam("task_id", type_=tasks.c.id.type),
        bindparam("after", type_=events.c.number.type),
    )
    first = select(func.min(events.c.number)).where(events.c.task_id == task_id, events.c.number > after)
    last = select(tasks.c.number).where(tasks.c.id == task_id)
    return select(func.coalesce(first.scalar_subquery(), last.scalar_subquery() + 1, after + 1))


# Created once, because each query is a reference cycle.
_FIRST_KEPT = _first_kept_query()


def _first_kept(connection: Connection, task_id: str, after: int) -> int:
    """Return the number of a task's first event after ``after``. If there is none, return the number of the next new event."""
    return connection.execute(_FIRST_KEPT, {"task_id": task_id, "after": after}).scalar_one()

"""Writing events, of which there are thousands where of everything else there is one."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, insert

from tailrace.server.stores.schema import events

Row = tuple[str, int, bytes, str | None]
"""The columns of an event: task_id, number, body, state."""

_MOST_ROWS = 128  # a statement; four parameters each, and older SQLites take 999


def insert_events(connection: Connection, rows: Sequence[Row]) -> None:
    """Insert events, in the transaction that is under way.

    Raises:
        sqlalchemy.exc.IntegrityError: One of them is there already.
    """
    if rows:
        names = ("task_id", "number", "body", "state")
        connection.execute(insert(events), [dict(zip(names, row, strict=True)) for row in rows])


def statements(rows: Sequence[Row], conflict: str = "") -> list[tuple[str, tuple[Any, ...]]]:
    """SQL for SQLite with question marks, and what is put into their place.

    One statement for many rows: SQLite's driver lets other threads of Python run around every statement, and then waits
    until it may go on. In powers of two, so that there are no more different statements than have their place in the
    driver's cache.

    Args:
        rows: What is inserted.
        conflict: ``OR IGNORE `` leaves out what is there already.
    """
    made: list[tuple[str, tuple[Any, ...]]] = []
    begin = 0
    while begin < len(rows):
        size = min(len(rows) - begin, _MOST_ROWS).bit_length() - 1
        parameters: list[Any] = []
        for row in rows[begin : begin + (1 << size)]:
            parameters += row
        made.append((_statement(size, conflict), tuple(parameters)))
        begin += 1 << size
    return made


@cache
def _statement(size: int, conflict: str) -> str:
    values = ",".join(["(?,?,?,?)"] * (1 << size))
    return f"INSERT {conflict}INTO events (task_id, number, body, state) VALUES {values}"  # noqa: S608 — nobody's words

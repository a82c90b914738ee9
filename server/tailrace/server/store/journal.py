"""The newest events of running tasks in SQLite: one row for each transaction, whatever the number of tasks.

SQLite writes whole pages. In the table, the events of a task are side by side, so that one more event of each of two hundred
tasks changes two hundred pages of four kilobytes. In the journal they are one row, in one or two pages. When a task has a page
full of them, they move to the table together. Reads of a task's events include its `tail`; before any other write to a task,
its events are moved.
"""

import sqlite3
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from tailrace.server.store.event_rows import Row, statements

TAIL_BYTES = 8192
"""Bytes of a task's events that are in the journal only: about two pages."""

KEPT_ROWS = 512
"""Rows of the journal after which events in older rows are moved and the rows are dropped; it has at most twice as many."""

_LOOK_ROWS = KEPT_ROWS // 2  # rows after which old ones are looked for
_DROPPED_ROWS = 8  # dropped with one write

_decode = msgspec.msgpack.Decoder(list[Row]).decode
_encode = msgspec.msgpack.Encoder().encode


class _Tail:
    """The last events of a task.

    Attributes:
        rows: The events that are in the journal only, or may be.
        size: Bytes of their bodies.
        first: The journal row of the first of them; without events, a row before that of the next event.
        last: The number of the task's last event.
    """

    __slots__ = ("first", "last", "rows", "size")

    def __init__(self, last: int, first: int) -> None:
        self.rows: list[Row] = []
        self.size = 0
        self.first = first
        self.last = last


class Journal:
    """Writes events, to the journal or to their table. All methods but `tail` need the connection that writes.

    Attributes:
        is_known: The contents of the journal are known; otherwise `load` failed, and `write` tries it again first.
    """

    def __init__(self) -> None:
        self.is_known = True
        self._tails: dict[str, _Tail] = {}
        self._held: dict[str, list[Row]] | None = None
        self._position = 0
        self._old: list[str] = []  # tasks with rows to drop
        self._old_step = 1  # how many of them are moved with one write
        self._drop_to = 0  # the last row to drop
        self._dropped = 0  # the last dropped row

    def tail(self, task_id: str) -> list[Row]:
        """Return the last events of a task in order, including all that are in the journal only."""
        held = self._held
        if held is not None:
            return list(held.get(task_id, ()))
        tail = self._tails.get(task_id)
        return [] if tail is None else list(tail.rows)

    @contextmanager
    def held(self) -> Generator[None]:
        """Give readers the present state until the block ends: it yields to them during a transaction."""
        self._held = {task_id: list(tail.rows) for task_id, tail in self._tails.items()}
        try:
            yield
        finally:
            self._held = None

    def write(self, driver: Any, rows: Sequence[Row], tasks: Collection[str] = ()) -> None:
        """Write events in the current transaction; call `undo` if it is rolled back.

        Args:
            driver: The connection.
            rows: The events; several of one task in order.
            tasks: Tasks whose events, earlier ones and these, are in the table afterwards.

        Raises:
            sqlite3.Error: The write failed. An existing event is an error only if it does not follow the last event
                that was written of its task.
        """
        if not self.is_known:
            self.load(driver)
        direct: list[Row] = []
        moved: list[Row] = []
        added: list[Row] = []
        tails, position = self._tails, self._position + 1
        for task_id in tasks:
            tail = tails.pop(task_id, None)
            if tail is not None:
                moved += tail.rows
        for row in rows:
            task_id, number, body, state = row
            tail = tails.get(task_id)
            if tail is not None and tail.last + 1 == number and state is None:
                tail.last = number
                tail.size += len(body)
                if tail.size <= TAIL_BYTES:
                    if not tail.rows:
                        tail.first = position
                    tail.rows.append(row)
                    added.append(row)
                    continue
            direct.append(row)
            if task_id not in tasks:
                if tail is not None:  # else events of a task would alternate between journal and table
                    moved += tail.rows
                tails[task_id] = _Tail(number, position)
        if added:
            self._add(driver, added)
        if self._dropped < self._drop_to:
            moved += self._drop_old(driver)
        if direct or moved:
            for statement, parameters in (*statements(direct), *statements(moved, "OR IGNORE ")):
                driver.execute(statement, parameters)

    def _add(self, driver: Any, rows: list[Row]) -> None:
        """Add a row to the journal."""
        self._position += 1
        driver.execute("INSERT INTO journal VALUES (?, ?)", (self._position, _encode(rows)))
        if self._position % _LOOK_ROWS == 0:
            self._find_old(self._position - KEPT_ROWS)

    def _find_old(self, last: int) -> None:
        """Find the tasks with events in the journal's rows up to this one only, to move them and drop the rows."""
        self._drop_to = last
        for task_id, tail in list(self._tails.items()):
            if tail.first > last:
                continue
            if tail.rows:
                self._old.append(task_id)
            else:  # without recent events
                del self._tails[task_id]
        self._old_step = 1 + len(self._old) // (_LOOK_ROWS // 2)

    def _drop_old(self, driver: Any) -> list[Row]:
        """Drop a few old rows with each write, for which all tasks wait; return the events to move."""
        moved: list[Row] = []
        for task_id in self._old[-self._old_step :]:
            tail = self._tails.get(task_id)
            if tail is not None and tail.first <= self._drop_to:
                moved += tail.rows
                tail.rows = []
                tail.size = 0
        del self._old[-self._old_step :]
        if not self._old:
            self._dropped = min(self._dropped + _DROPPED_ROWS, self._drop_to)
            driver.execute("DELETE FROM journal WHERE position <= ?", (self._dropped,))
        return moved

    def undo(self, driver: Any) -> None:
        """Discard the writes of a transaction that was rolled back."""
        try:
            self.load(driver)
        except sqlite3.Error:
            self.is_known = False

    def load(self, driver: Any) -> None:
        """Read the events that are in the journal only.

        Raises:
            sqlite3.Error: It cannot be read.
        """
        tails: dict[str, _Tail] = {}
        found = driver.execute("SELECT position, body FROM journal ORDER BY position").fetchall()
        self._old, self._drop_to = [], 0
        self._dropped = found[0][0] - 1 if found else self._position
        for position, body in found:
            self._position = position
            for row in _decode(body):
                task_id, number = row[:2]
                tail = tails.get(task_id)
                if tail is None:
                    query = "SELECT coalesce(max(number), 0) FROM events WHERE task_id = ?"
                    [last] = driver.execute(query, (task_id,)).fetchone()
                    tails[task_id] = tail = _Tail(last, position)
                # Others have moved to the table, and may have been dropped there since.
                if number == tail.last + 1:
                    if not tail.rows:
                        tail.first = position
                    tail.rows.append(row)
                    tail.size += len(row[2])
                    tail.last = number
        self._tails = {task_id: tail for task_id, tail in tails.items() if tail.rows}
        self.is_known = True
        self._find_old(self._position - KEPT_ROWS)

    def empty(self, driver: Any) -> None:
        """Move all events of the journal to the table, in the current transaction.

        Raises:
            sqlite3.Error: They cannot be moved.
        """
        self.load(driver)
        for tail in self._tails.values():
            for statement, parameters in statements(tail.rows, "OR IGNORE "):
                driver.execute(statement, parameters)
        driver.execute("DELETE FROM journal")
        self._tails, self._position = {}, 0
        self._old, self._drop_to, self._dropped = [], 0, 0

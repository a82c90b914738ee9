"""The newest events of tasks that are worked on, as SQLite keeps them: one row a transaction, whatever number of tasks.

SQLite writes whole pages. The events of a task lie side by side in their table, so that one more event of each of two hundred
tasks is two hundred pages, of four kilobytes each. Here they are one row, in a page or two; and once a task has a page full of
them, they move into the table together. Whoever reads a task's events reads its `tail` besides; before anything else is
written of a task, its events are moved.
"""

import sqlite3
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from tailrace.server.stores.event_rows import Row, statements

TAIL_BYTES = 8192
"""How much of a task stands in the journal alone: about two pages."""

KEPT_ROWS = 512
"""Rows of the journal after which what is still in older ones is moved, and these are dropped; it has twice as many at most."""

_LOOK_ROWS = KEPT_ROWS // 2  # after so many rows what is old by then is looked for
_DROPPED_ROWS = 8  # dropped with one write

_decode = msgspec.msgpack.Decoder(list[Row]).decode
_encode = msgspec.msgpack.Encoder().encode


class _Tail:
    """The last events of a task.

    Attributes:
        rows: Those that are in the journal alone, or may be.
        size: Bytes of their bodies.
        first: The row of the journal in which the first of them is; when there are none, an earlier one than the next will be in.
        last: The number of the task's last event.
    """

    __slots__ = ("first", "last", "rows", "size")

    def __init__(self, last: int, first: int) -> None:
        self.rows: list[Row] = []
        self.size = 0
        self.first = first
        self.last = last


class Journal:
    """Writes events, to the journal or to their table. Every method but `tail` is for whoever has the connection that writes.

    Attributes:
        is_known: What is in the journal is known; if not, `load` has failed, and `write` tries it again first.
    """

    def __init__(self) -> None:
        self.is_known = True
        self._tails: dict[str, _Tail] = {}
        self._held: dict[str, list[Row]] | None = None
        self._position = 0
        self._old: list[str] = []  # tasks that have rows which are to be dropped
        self._old_step = 1  # how many of them are moved with one write
        self._drop_to = 0  # the last row that is to be dropped
        self._dropped = 0  # the last that was

    def tail(self, task_id: str) -> list[Row]:
        """The last events of a task, in order, with all of those that are in the journal alone."""
        held = self._held
        if held is not None:
            return list(held.get(task_id, ()))
        tail = self._tails.get(task_id)
        return [] if tail is None else list(tail.rows)

    @contextmanager
    def held(self) -> Generator[None]:
        """Show readers what is kept now until the block is left: in it a transaction is under way, and they are let run."""
        self._held = {task_id: list(tail.rows) for task_id, tail in self._tails.items()}
        try:
            yield
        finally:
            self._held = None

    def write(self, driver: Any, rows: Sequence[Row], tasks: Collection[str] = ()) -> None:
        """Write events, in the transaction that is under way; `undo` is to be called when that comes to nothing.

        Args:
            driver: The connection.
            rows: The events; where several are of one task, in order.
            tasks: What was written of these before is in the table afterwards, and so is what is written now.

        Raises:
            sqlite3.Error: They cannot be written; of an event that is there already only if it does not follow the
                last one that was written of its task.
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
                if tail is not None:  # journal and table would otherwise have a task's events in turns
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
        """One more row of the journal."""
        self._position += 1
        driver.execute("INSERT INTO journal VALUES (?, ?)", (self._position, _encode(rows)))
        if self._position % _LOOK_ROWS == 0:
            self._find_old(self._position - KEPT_ROWS)

    def _find_old(self, last: int) -> None:
        """Look for what is in the rows of the journal up to this one alone, so that it is moved and they are dropped."""
        self._drop_to = last
        for task_id, tail in list(self._tails.items()):
            if tail.first > last:
                continue
            if tail.rows:
                self._old.append(task_id)
            else:  # nothing was written of it for long
                del self._tails[task_id]
        self._old_step = 1 + len(self._old) // (_LOOK_ROWS // 2)

    def _drop_old(self, driver: Any) -> list[Row]:
        """Go on with it, a little with each write, which all tasks wait for; gives what is to be moved."""
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
        """Forget what was written in a transaction that was not kept."""
        try:
            self.load(driver)
        except sqlite3.Error:
            self.is_known = False

    def load(self, driver: Any) -> None:
        """Find out what is in the journal alone.

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
                # Any other has moved into the table, and may have been dropped from there since, with its task or alone.
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
        """Move all that is in the journal into the table, in the transaction that is under way.

        Raises:
            sqlite3.Error: It cannot be moved.
        """
        self.load(driver)
        for tail in self._tails.values():
            for statement, parameters in statements(tail.rows, "OR IGNORE "):
                driver.execute(statement, parameters)
        driver.execute("DELETE FROM journal")
        self._tails, self._position = {}, 0
        self._old, self._drop_to, self._dropped = [], 0, 0

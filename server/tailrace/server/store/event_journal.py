"""The journal of a SQLite file: the newest events of all running tasks, one row for each transaction."""

import sqlite3
import struct
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from tailrace.server.store.event_rows import Row, statements

TAIL_BYTES = 8192
"""Bytes of a task's events that are in the journal only: about two pages."""

KEPT_ROWS = 512
"""Writes to the journal after which the events of older ones are moved; it has twice as many rows, which are used in turn."""

_ROWS = 2 * KEPT_ROWS
_LOOK_ROWS = KEPT_ROWS // 2  # writes after which old ones are looked for
_PAGE_ROW = 4032  # bytes of the largest body whose row is in one page of 4 KiB
_HEAD = struct.Struct(
    ">QI"
)  # the number of the write, and the size of the events; what follows them is padding
_OLD_FORMAT = 0x80  # the least first byte of a body that has no head, as versions before 0.2 wrote it

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
    """The newest events of running tasks: one row for each transaction, whatever the number of tasks.

    SQLite writes whole pages. In the table, the events of a task are side by side, so that one more event of each of two
    hundred tasks changes two hundred pages of four kilobytes. In the journal they are one row, in one or two pages. When a
    task has a page full of them, they move to the table together. Reads of a task's events include its `tail`; before any
    other write to a task, its events are moved. All methods but `tail` need the connection that writes.

    The rows are used in turn, and a body is padded to the size of the one that it replaces: SQLite then overwrites it in
    place. A new row in place of each deleted one would change two to three times as many pages: those of the tree, and of the
    list of free pages.

    Attributes:
        is_known: The contents of the journal are known; otherwise `load` failed, and `write` tries it again first.
    """

    def __init__(self) -> None:
        self.is_known = True
        self._tails: dict[str, _Tail] = {}
        self._held: dict[str, list[Row]] | None = None
        self._position = 0
        self._sizes: dict[int, int] = {}  # bytes of the body of each row
        self._old: list[str] = []  # tasks with events that must be moved before their row is used again
        self._old_step = 1  # how many of them are moved with one write
        self._old_to = 0  # the last write with such events
        self._moved_to = 0  # the last write all of whose events are in the table

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
        if self._position + 1 - _ROWS > self._moved_to:
            # The next row still has events: so many transactions failed that there were too few to move them.
            self._find_old(self._position - KEPT_ROWS)
            self._old_step = max(1, len(self._old))
        if self._old:
            moved += self._move_old()
        if direct or moved:
            for statement, parameters in (*statements(direct), *statements(moved, "OR IGNORE ")):
                driver.execute(statement, parameters)

    def _add(self, driver: Any, rows: list[Row]) -> None:
        """Write events to the next row of the journal."""
        self._position += 1
        events = _encode(rows)
        place, needed = self._position % _ROWS, _HEAD.size + len(events)
        size = self._sizes.get(place, 0)
        statement = "UPDATE journal SET body = ? WHERE position = ?"
        if not needed <= size <= max(4 * needed, _PAGE_ROW):
            self._sizes[place] = size = _row_size(needed)
            statement = "REPLACE INTO journal (body, position) VALUES (?, ?)"
        body = (_HEAD.pack(self._position, len(events)) + events).ljust(size, b"\0")
        driver.execute(statement, (body, place))
        if self._position % _LOOK_ROWS == 0:
            self._find_old(self._position - KEPT_ROWS)

    def _find_old(self, last: int) -> None:
        """Find the tasks with events that only writes up to this one have, to move them."""
        self._old_to = last
        for task_id, tail in list(self._tails.items()):
            if tail.first > last:
                continue
            if tail.rows:
                self._old.append(task_id)
            else:  # without recent events
                del self._tails[task_id]
        self._old_step = 1 + len(self._old) // (_LOOK_ROWS // 2)
        if not self._old:
            self._moved_to = last

    def _move_old(self) -> list[Row]:
        """Return the old events of a few tasks, to move them: a few with each write, for which all tasks wait."""
        moved: list[Row] = []
        for task_id in self._old[-self._old_step :]:
            tail = self._tails.get(task_id)
            if tail is not None and tail.first <= self._old_to:
                moved += tail.rows
                tail.rows = []
                tail.size = 0
        del self._old[-self._old_step :]
        if not self._old:
            self._moved_to = self._old_to
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
        found = driver.execute("SELECT position, body FROM journal").fetchall()
        self._old, self._old_to, self._moved_to = [], 0, 0
        self._sizes = {place: len(body) for place, body in found}
        for position, events in sorted(_read(place, body) for place, body in found):
            self._position = position
            for row in _decode(events):
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
        self._moved_to = min((tail.first for tail in self._tails.values()), default=self._position + 1) - 1
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
        self._tails, self._position, self._sizes = {}, 0, {}
        self._old, self._old_to, self._moved_to = [], 0, 0


def _row_size(needed: int) -> int:
    """Return the size of a body with as many bytes, and room for a larger one: what fits into the pages that it takes.

    Up to a page, the next power of two. Beyond it, SQLite keeps the beginning in the tree, and the rest in pages of 4,092 bytes.
    """
    if needed <= _PAGE_ROW:
        return min(max(512, 1 << (needed - 1).bit_length()), _PAGE_ROW)
    return 480 + 4092 * -(-(needed - 480) // 4092)


def _read(place: int, body: bytes) -> tuple[int, bytes]:
    """Return the number of the write and the events of a row of the journal."""
    if body[0] >= _OLD_FORMAT:
        return place, body
    position, size = _HEAD.unpack_from(body)
    return position, body[_HEAD.size : _HEAD.size + size]

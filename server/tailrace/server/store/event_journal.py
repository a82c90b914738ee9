"""The journal of a SQLite file: the newest events of all running tasks, with one row for each transaction."""

import sqlite3
import struct
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from tailrace.server.store.event_rows import Row, statements

TAIL_BYTES = 8192
"""Maximum bytes of a task's events that are only in the journal: about two pages."""

MOVE_AFTER_WRITES = 512
"""Number of writes after which the events of a write are moved from the journal to the table."""

_ROWS = 2 * MOVE_AFTER_WRITES
_LOOK_ROWS = MOVE_AFTER_WRITES // 2  # number of writes between two searches for events to move
_PAGE_ROW = 4032  # maximum bytes of a body with a row that fits into one page of 4 KiB
_HEAD = struct.Struct(">QI")  # the number of the write, and the size of the events, which follow
_OLD_FORMAT = 0x80  # minimum first byte of a body without this head, which a former version wrote

_decode = msgspec.msgpack.Decoder(list[Row]).decode
_encode = msgspec.msgpack.Encoder().encode


class _Tail:
    """The last events of a task.

    Attributes:
        rows: The events that may be only in the journal.
        size: The bytes of the bodies in ``rows``.
        first: The number of the write with the first event in ``rows``, or of an earlier write.
        last: The number of the last event of the task.
    """

    __slots__ = ("first", "last", "rows", "size")

    def __init__(self, last: int, first: int) -> None:
        self.rows: list[Row] = []
        self.size = 0
        self.first = first
        self.last = last


class Journal:
    """The newest events of running tasks.

    SQLite writes complete pages. In the table of events, one event for each of two hundred tasks would change two hundred pages
    of 4 KiB. In the journal, these events are one row, in one or two pages. The events of a task are moved to the table together
    when they fill `TAIL_BYTES`, when they are old, or before any other write to the task. Reads of a task's events include its
    `tail`. Only `tail` may be called while another thread uses the journal.

    The rows are overwritten cyclically. A body is padded to the size of the body that it replaces, so that SQLite overwrites it
    in place. Deleting and inserting rows would change two to three times as many pages.

    Attributes:
        is_known: False if the journal could not be read after a rollback. The next write reads it again.
    """

    def __init__(self) -> None:
        self.is_known = True
        self._tails: dict[str, _Tail] = {}
        self._frozen_tails: dict[str, list[Row]] | None = None
        self._position = 0
        self._sizes: dict[int, int] = {}  # size of the body of each row
        self._old: list[str] = []  # tasks with events that must be moved before their rows are overwritten
        self._old_step = 1  # number of tasks in `_old` whose events are moved with one write
        self._old_to = 0  # events up to this write must be moved
        self._moved_to = 0  # events up to this write are in the table

    def tail(self, task_id: str) -> list[Row]:
        """Return the last events of a task in order, including all events that are only in the journal."""
        frozen = self._frozen_tails
        if frozen is not None:
            return list(frozen.get(task_id, ()))
        tail = self._tails.get(task_id)
        return [] if tail is None else list(tail.rows)

    @contextmanager
    def freeze_tails(self) -> Generator[None]:
        """Freeze the results of `tail` during the block, while other threads may call `tail`."""
        self._frozen_tails = {task_id: list(tail.rows) for task_id, tail in self._tails.items()}
        try:
            yield
        finally:
            self._frozen_tails = None

    def write(self, driver: Any, rows: Sequence[Row], tasks: Collection[str] = ()) -> None:
        """Write events in the current transaction. If it is rolled back, `reload_after_rollback` must be called.

        Args:
            driver: The connection.
            rows: The events. Events of the same task are in order.
            tasks: Tasks without events in the journal afterwards: all their events, also the new ones, are written to the table.

        Raises:
            sqlite3.Error: The write failed.
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
                # Otherwise, events of the task would alternate between the journal and the table.
                if tail is not None:
                    moved += tail.rows
                tails[task_id] = _Tail(number, position)
        if added:
            self._add(driver, added)
        if self._position + 1 - _ROWS > self._moved_to:
            # The next row still has events that were not moved, because too many transactions failed.
            self._find_old(self._position - MOVE_AFTER_WRITES)
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
        row, needed = self._position % _ROWS, _HEAD.size + len(events)
        size = self._sizes.get(row, 0)
        statement = "UPDATE journal SET body = ? WHERE position = ?"
        if not needed <= size <= max(4 * needed, _PAGE_ROW):
            self._sizes[row] = size = _row_size(needed)
            statement = "REPLACE INTO journal (body, position) VALUES (?, ?)"
        body = (_HEAD.pack(self._position, len(events)) + events).ljust(size, b"\0")
        driver.execute(statement, (body, row))
        if self._position % _LOOK_ROWS == 0:
            self._find_old(self._position - MOVE_AFTER_WRITES)

    def _find_old(self, last: int) -> None:
        """Find the tasks with events in writes up to the number ``last``."""
        self._old_to = last
        for task_id, tail in list(self._tails.items()):
            if tail.first > last:
                continue
            if tail.rows:
                self._old.append(task_id)
            else:  # the task has no recent events
                del self._tails[task_id]
        self._old_step = 1 + len(self._old) // (_LOOK_ROWS // 2)
        if not self._old:
            self._moved_to = last

    def _move_old(self) -> list[Row]:
        """Remove the old events of a few tasks from the journal, and return them.

        Every task waits for a write, so one write must not move too many events.
        """
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

    def reload_after_rollback(self, driver: Any) -> None:
        """Discard the writes of a transaction that was rolled back."""
        try:
            self.load(driver)
        except sqlite3.Error:
            self.is_known = False

    def load(self, driver: Any) -> None:
        """Read the events that are only in the journal.

        Raises:
            sqlite3.Error: The journal cannot be read.
        """
        tails: dict[str, _Tail] = {}
        rows = driver.execute("SELECT position, body FROM journal").fetchall()
        self._old, self._old_to, self._moved_to = [], 0, 0
        self._sizes = {place: len(body) for place, body in rows}
        for position, events in sorted(_read(place, body) for place, body in rows):
            self._position = position
            for row in _decode(events):
                task_id, number = row[:2]
                tail = tails.get(task_id)
                if tail is None:
                    query = "SELECT coalesce(max(number), 0) FROM events WHERE task_id = ?"
                    [last] = driver.execute(query, (task_id,)).fetchone()
                    tails[task_id] = tail = _Tail(last, position)
                # Other events have been moved to the table, and may have been deleted from it.
                if number == tail.last + 1:
                    if not tail.rows:
                        tail.first = position
                    tail.rows.append(row)
                    tail.size += len(row[2])
                    tail.last = number
        self._tails = {task_id: tail for task_id, tail in tails.items() if tail.rows}
        self.is_known = True
        self._moved_to = min((tail.first for tail in self._tails.values()), default=self._position + 1) - 1
        self._find_old(self._position - MOVE_AFTER_WRITES)

    def empty(self, driver: Any) -> None:
        """Move all events of the journal to the table, in the current transaction.

        Raises:
            sqlite3.Error: The events cannot be moved.
        """
        self.load(driver)
        for tail in self._tails.values():
            for statement, parameters in statements(tail.rows, "OR IGNORE "):
                driver.execute(statement, parameters)
        driver.execute("DELETE FROM journal")
        self._tails, self._position, self._sizes = {}, 0, {}
        self._old, self._old_to, self._moved_to = [], 0, 0


def _row_size(needed: int) -> int:
    """Return the size of a padded body.

    The padding fills the last page of the row, so that a larger body can replace it. SQLite stores the first 480 bytes of a large
    body in the tree, and the rest in pages of 4,092 bytes.
    """
    if needed <= _PAGE_ROW:
        return min(max(512, 1 << (needed - 1).bit_length()), _PAGE_ROW)
    return 480 + 4092 * -(-(needed - 480) // 4092)


def _read(row: int, body: bytes) -> tuple[int, bytes]:
    """Return the number of the write, and the encoded events, of a row of the journal."""
    if body[0] >= _OLD_FORMAT:
        return row, body
    position, size = _HEAD.unpack_from(body)
    return position, body[_HEAD.size : _HEAD.size + size]

"""SQLite: one connection that writes, threads that read beside it, and a file that no other process may open.

The driver blocks, and a transaction runs as a whole: a cancelled caller cannot interrupt it. Short transactions, which are
almost all, run in the event loop: they go to SQLite's log, which does not wait for the disk (``synchronous=NORMAL``, unless
they must survive a loss of power), and take less time than a round trip to a thread. Long ones run in threads: reads, deletes
and checks of many rows, checkpoints of the log, and any write while another program has the database locked. A database in
memory has one connection, which the writing thread also uses for reads.
"""

import asyncio
import logging
import sqlite3
import struct
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal, TypeVar

import anyio
import msgspec
from sqlalchemy import Connection
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError

from tailrace.server.store.database import Database, Work
from tailrace.server.store.event_rows import Row, statements
from tailrace.server.store.sqlite_file import EXPLANATIONS, SqliteFile, copy_log
from tailrace.wrappers import StoreError

logger = logging.getLogger("tailrace.server")

READERS = 4
"""Threads for reads, each with a connection."""

COPIED_ROWS = 10_000
"""Rows after which the log is copied into the file (a checkpoint)."""

LARGE_ROWS = COPIED_ROWS // 4
"""Rows for which a large write counts: the log grows by megabytes."""

MAX_LOG_PAGES = 65_536
"""Pages (of 4 KiB) of the log after which writers wait for a checkpoint."""

COPY_PATIENCE = 250
"""Milliseconds that writers then wait for earlier readers, our own or another program's."""

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

PURGE_ATTEMPTS = 20
PURGE_PAUSE = 0.1
"""Attempts to empty the log after a deletion, while readers prevent it, and the seconds between two of them."""

Durability = Literal["process", "power"]
"""The failures that a commit survives: the end of the process, or also the loss of power (``synchronous=FULL``)."""

T = TypeVar("T")

_decode = msgspec.msgpack.Decoder(list[Row]).decode
_encode = msgspec.msgpack.Encoder().encode


class SqliteDatabase(Database):
    """A SQLite file, or a database in memory.

    Args:
        url: Its URL; without a file name the database is in memory. ``timeout``: seconds to wait for a lock (5).
        durability: The failures that a commit survives. With ``power``, commits wait for the disk, and run in the
            writing thread.
    """

    def __init__(self, url: URL, durability: Durability = "process") -> None:
        self._file = SqliteFile(url, READERS + 1, waits_for_disk=durability == "power")
        self._connection: Connection | None = None
        self._driver: Any = None  # the same connection, as sqlite3 has it
        self._pending: list[Future[Any]] = []  # for the writing thread
        self._patience = 0  # milliseconds, for a lock
        self._uncopied = 0  # rows that were written since the last checkpoint
        self._copying: Future[int] | None = None
        self._writing: ThreadPoolExecutor | None = None
        self._reading: ThreadPoolExecutor | None = None
        self._journal = Journal()

    async def open(self) -> None:
        """Open as `Database.open`."""
        self._writing = ThreadPoolExecutor(1, "store-writer")
        self._reading = ThreadPoolExecutor(READERS, "store-reader") if self._file.path else self._writing
        try:
            await self._run(self._writing, lambda: self._open())
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(StoreError):  # the first error is raised
                await self.close()
            raise

    def _open(self) -> None:
        with self.translating("open the store"):
            connection = self._file.open()
            driver: Any = connection.connection.driver_connection
            [self._patience] = driver.execute("PRAGMA busy_timeout").fetchone()
            self._use_to_write(connection)
            self._journal.empty(self._driver)
            self._driver.commit()

    def _use_to_write(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        driver.execute("PRAGMA busy_timeout=0")
        driver.execute("PRAGMA wal_autocheckpoint=0")
        self._connection, self._driver = connection, driver

    async def close(self) -> None:
        """Close as `Database.close`."""
        writing, reading = self._writing, self._reading
        self._writing = self._reading = None
        if writing is None or reading is None:
            return
        if reading is not writing:
            await self._run(writing, lambda: reading.shutdown())
        await self._run(writing, lambda: self._close())
        writing.shutdown()

    def _close(self) -> None:
        self._connection = self._driver = None
        with self.translating("close the store"):
            self._file.close(self._empty_journal)

    def _empty_journal(self, connection: Connection) -> None:
        """Move the journal to the table, so that other programs find all events there, and the next start is fast."""
        driver: Any = connection.connection.driver_connection
        try:
            self._journal.empty(driver)
            driver.commit()
        except sqlite3.Error as error:
            driver.rollback()
            logger.warning("the store's journal could not be emptied; the next start does it: %s", error)

    async def write(self, work: Work[T], *, tasks: Collection[str] = ()) -> T:
        """Run a transaction as `Database.write`, in the writing thread, one after the other."""
        done = await self._run_serially(lambda: self._retry_locked(lambda: self._with_work((), work, tasks)))
        self._count(1)
        return done

    async def append(
        self,
        rows: Sequence[Row],
        work: Work[object] | None = None,
        *,
        tasks: Collection[str] = (),
        is_large: bool = False,
    ) -> None:
        """Write events as `Database.append`: at once, unless other writes wait, or there is much to write."""
        write = partial(self._alone, rows, tasks)
        if work is not None:
            write = partial(self._with_work, rows, work, tasks)
        if self._is_free() and not is_large:
            try:
                write()
            except StoreError as error:
                if not _is_locked(error):
                    raise
            else:
                self._count(len(rows))
                return
        await self._run_serially(lambda: self._retry_locked(write))
        self._count(LARGE_ROWS if is_large else len(rows))

    def tail(self, task_id: str) -> Sequence[Row]:
        """Return the last events as `Database.tail`."""
        if not self._journal.is_known:
            raise StoreError(
                "cannot read from the store: its newest events could not be read", temporary=True
            )
        return self._journal.tail(task_id)

    def _alone(self, rows: Sequence[Row], tasks: Collection[str]) -> None:
        """Write events as `_with_work`, without the overhead of SQLAlchemy: it runs for every token."""
        driver = self._driver
        if driver is None:
            raise StoreError("the store is closed")
        try:
            self._journal.write(driver, rows, tasks)
            driver.commit()
        except BaseException:
            with self.translating("write to the store", sqlite3.Error):
                driver.rollback()
                self._journal.undo(driver)
                raise

    def _with_work(self, rows: Sequence[Row], work: Work[T], tasks: Collection[str]) -> T:
        """Run a transaction with events and further statements."""
        connection = self._connected()
        with self.translating("write to the store", sqlite3.Error):
            try:
                with connection.begin():
                    self._journal.write(connection.connection.driver_connection, rows, tasks)
                    return work(connection)
            except BaseException:
                self._journal.undo(connection.connection.driver_connection)
                raise

    def _retry_locked(self, write: Callable[[], T], patience: int | None = None) -> T:
        """Write, and wait while another program has the database locked; in the writing thread.

        Args:
            write: Runs the transaction.
            patience: Milliseconds to wait; those of the URL when None.
        """
        driver: Any = self._connected().connection.driver_connection
        driver.execute(f"PRAGMA busy_timeout={self._patience if patience is None else patience}")
        try:
            with self._journal.held():
                return write()
        finally:
            driver.execute("PRAGMA busy_timeout=0")

    def _connected(self) -> Connection:
        if self._connection is None:
            raise StoreError("the store is closed")
        return self._connection

    def _is_free(self) -> bool:
        """Return whether the writing connection is free, and no write waits for it."""
        if self._pending:
            self._pending = [each for each in self._pending if not each.done()]
        if self._file.waits_for_disk:  # commits would block the event loop
            return False
        return self._writing is not None and self._connection is not None and not self._pending

    async def _run_serially(self, work: Callable[[], T]) -> T:
        if self._writing is None:
            raise StoreError("the store is closed")
        future = self._writing.submit(work)
        self._pending.append(future)
        return await asyncio.wrap_future(future)

    def _count(self, rows: int) -> None:
        """Count written rows, and start a checkpoint now and then, in a thread, since it waits for the disk.

        SQLite begins the log anew with the first write after a complete checkpoint without readers. With continuous
        reads and writes that never happens, and the log grows: then writers wait for it.
        """
        self._uncopied += rows
        if (
            self._uncopied < COPIED_ROWS
            or not self._file.path
            or self._reading is None
            or self._writing is None
        ):
            return
        if self._copying is not None and not self._copying.done():
            return
        self._uncopied = 0
        if self._copying is not None and self._copying.result() > MAX_LOG_PAGES:
            self._copying = self._writing.submit(lambda: self._copied(self._copy_waited_for))
            self._pending.append(self._copying)
        else:
            self._copying = self._reading.submit(lambda: self._copied(self._copy))

    def _copied(self, copy: Callable[[], int]) -> int:
        """Run a checkpoint; return the number of pages of the log."""
        try:
            return copy()
        except StoreError as error:  # the next checkpoint copies the log
            logger.warning("the log of the store cannot be copied into its file at present: %s", error)
            return 0

    def _copy(self) -> int:
        return self._read_transaction(lambda connection: copy_log(connection, "PASSIVE")[1])

    def _copy_waited_for(self, how: str = "RESTART") -> int:
        """Run a complete checkpoint, so that the next write begins the log anew; ``TRUNCATE`` empties the log as well."""

        def copy() -> int:
            connection = self._connected()
            with self.translating("write to the store"), connection.begin():
                is_busy, pages = copy_log(connection, how)
            return pages if is_busy else 0

        return self._retry_locked(copy, min(COPY_PATIENCE, self._patience))

    async def purge(self) -> None:
        """Remove deleted content as `Database.purge`: from the journal, the log, and the connections."""
        await self._run_serially(lambda: self._retry_locked(self._drop_journal))
        if not self._file.path:
            return
        for _ in range(PURGE_ATTEMPTS):
            if await self._run_serially(lambda: self._copied(lambda: self._copy_waited_for("TRUNCATE"))) == 0:
                break
            await anyio.sleep(PURGE_PAUSE)
        else:
            logger.warning(
                "the log of the store has deleted content until a later deletion, since another program reads it"
            )
        await self._run_serially(self._renew_connections)

    def _drop_journal(self) -> None:
        """Move the events in the journal to their table, and drop its rows, which have events of deleted tasks."""
        driver: Any = self._connected().connection.driver_connection
        with self.translating("write to the store", sqlite3.Error):
            try:
                self._journal.empty(driver)
                driver.commit()
            except BaseException:
                driver.rollback()
                self._journal.undo(driver)
                raise

    def _renew_connections(self) -> None:
        """Close the connections: they have pages in their caches, and the last values of their statements."""
        self._connected()
        with self.translating("open the store", sqlite3.Error):
            self._use_to_write(self._file.reconnect())

    async def read(self, work: Work[T]) -> T:
        """Run a transaction as `Database.read`, in one of a few threads."""
        if self._reading is self._writing:  # one connection for all: reads wait for writes
            return await self._run_serially(lambda: self._read_transaction(work))
        return await self._run(self._reading, lambda: self._read_transaction(work))

    def _read_transaction(self, work: Work[T]) -> T:
        if self._file.engine is None:
            raise StoreError("the store is closed")
        with self.translating("read from the store"), self._file.engine.connect() as connection:
            return work(connection)

    async def _run(self, threads: ThreadPoolExecutor | None, work: Callable[[], T]) -> T:
        if threads is None:
            raise StoreError("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    def is_temporary(self, error: Exception) -> bool:
        """Classify an error as `Database.is_temporary`."""
        return isinstance(error, OperationalError | sqlite3.OperationalError | OSError)

    def explain(self, cause: BaseException) -> str:
        """Explain an error as `Database.explain`."""
        return EXPLANATIONS.get(getattr(cause, "sqlite_errorcode", 0) & 0xFF, "")


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


def _is_locked(error: StoreError) -> bool:
    cause = error.__cause__
    code = getattr(getattr(cause, "orig", cause), "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

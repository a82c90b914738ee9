"""SQLite: one connection that writes, threads that read beside it, and a file that no other process may open.

The driver blocks, and a transaction runs as a whole: a cancelled caller cannot interrupt it. Short transactions, which are
almost all, run in the event loop: they go to SQLite's log, which does not wait for the disk (``synchronous=NORMAL``, unless
they must survive a loss of power), and take less time than a round trip to a thread. Long ones run in threads: reads, deletes
and checks of many rows, checkpoints of the log, and any write while another program has the database locked. A database in
memory has one connection, which the writing thread also uses for reads.
"""

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

import anyio
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import QueuePool, StaticPool

from tailrace.server.store.database import Database, Work, engine_options
from tailrace.server.store.event_rows import Row
from tailrace.server.store.journal import Journal
from tailrace.server.store.private_files import create_private_folder, make_private, open_private_file
from tailrace.server.store.versions import bring_up_to_date, is_up_to_date
from tailrace.wrappers import StoreError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

logger = logging.getLogger("tailrace.server")

READERS = 4
"""Threads for reads, each with a connection."""

CHECK_SECONDS = 5.0
GLANCE_SECONDS = 1.0
"""Seconds for which a file that was closed properly is checked for damage before it is used."""

COPIED_ROWS = 10_000
"""Rows after which the log is copied into the file (a checkpoint)."""

LARGE_ROWS = COPIED_ROWS // 4
"""Rows for which a large write counts: the log grows by megabytes."""

MAX_LOG_PAGES = 65_536
"""Pages (of 4 KiB) of the log after which writers wait for a checkpoint."""

COPY_PATIENCE = 250
"""Milliseconds that writers then wait for earlier readers, our own or another program's."""

Durability = Literal["process", "power"]
"""The failures that a commit survives: the end of the process, or also the loss of power (``synchronous=FULL``)."""

T = TypeVar("T")

# By the primary code of a result: https://sqlite.org/rescode.html
_WORDS = {
    sqlite3.SQLITE_BUSY: "another program has the database locked",
    sqlite3.SQLITE_LOCKED: "another program has the database locked",
    sqlite3.SQLITE_READONLY: "the file, or its folder, may not be written to",
    sqlite3.SQLITE_IOERR: "the disk cannot be read or written",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a backup, or move it away to begin anew",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_CANTOPEN: "the file, or one beside it, cannot be opened or made",
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database, or its beginning is damaged",
}


class SqliteDatabase(Database):
    """A SQLite file, or a database in memory.

    Args:
        url: Its URL; without a file name the database is in memory. ``timeout``: seconds to wait for a lock (5).
        durability: The failures that a commit survives. With ``power``, commits wait for the disk, and run in the
            writing thread.
    """

    def __init__(self, url: URL, durability: Durability = "process") -> None:
        self._url = url.set(drivername="sqlite")
        self._path = "" if url.database == ":memory:" else url.database or ""
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._driver: Any = None  # the same connection, as sqlite3 has it
        self._pending: list[Future[Any]] = []  # for the writing thread
        self._patience = 0  # milliseconds, for a lock
        self._uncopied = 0  # rows that were written since the last checkpoint
        self._copying: Future[int] | None = None
        self._writing: ThreadPoolExecutor | None = None
        self._reading: ThreadPoolExecutor | None = None
        self._lock: IO[bytes] | None = None
        self._is_whole = False
        self._waits_for_disk = bool(self._path) and durability == "power"
        self._journal = Journal()

    async def open(self) -> None:
        """Open as `Database.open`; check the file for `GLANCE_SECONDS`, or `CHECK_SECONDS` if it was not closed properly."""
        self._writing = ThreadPoolExecutor(1, "store-writer")
        self._reading = ThreadPoolExecutor(READERS, "store-reader") if self._path else self._writing
        try:
            await self._run(self._writing, lambda: self._open())
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(StoreError):  # the first error is raised
                await self.close()
            raise

    def _open(self) -> None:
        with self.translating("open the store"):
            is_unclean = False
            if self._path:
                create_private_folder(Path(self._path).parent)
                self._lock = _lock(f"{self._path}.lock")
                # SQLite removes its log when the last connection closes, also that of a damaged file.
                is_unclean = bool(self._lock.read()) or _size(f"{self._path}-wal") > 0
                _mark(self._lock, b"open\n")
                # SQLite gives the files that it creates the mode of this one.
                if not Path(self._path).exists() and not self._path.startswith("file:"):
                    os.close(open_private_file(self._path))
                make_private(
                    *(f"{self._path}{suffix}" for suffix in ("", "-wal", "-shm", "-journal", ".lock"))
                )
            pool: dict[str, Any] = {"poolclass": StaticPool}
            if self._path:
                pool = {"poolclass": QueuePool, "pool_size": READERS + 1, "max_overflow": 0}
            self._engine = create_engine(
                self._url, connect_args={"check_same_thread": False}, **pool, **engine_options()
            )
            event.listen(self._engine, "connect", _set_pragmas)
            if self._waits_for_disk:
                event.listen(self._engine, "connect", _wait_for_disk)
            self._connection = self._engine.connect()
            self._patience = int(self._connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one())
            self._connection.rollback()
            _check(self._connection, self._path, CHECK_SECONDS if is_unclean else GLANCE_SECONDS)
            self._is_whole = True
            with self._connection.begin():
                is_ready = is_up_to_date(self._connection)
            if not is_ready:
                with self._connection.begin():
                    # A transaction even if no row changes: the driver itself begins one at the first change only.
                    self._connection.exec_driver_sql("BEGIN IMMEDIATE")
                    bring_up_to_date(self._connection)
            driver: Any = self._connection.connection.driver_connection
            self._driver = driver
            self._journal.empty(driver)
            driver.commit()
            driver.execute("PRAGMA busy_timeout=0")
            driver.execute("PRAGMA wal_autocheckpoint=0")

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
        connection, engine, lock = self._connection, self._engine, self._lock
        is_whole, self._is_whole = self._is_whole, False
        self._connection = self._engine = self._lock = self._driver = None
        with self.translating("close the store"):
            try:
                with ExitStack() as closing:  # the connection first; the rest even if that fails
                    if engine is not None:
                        closing.callback(engine.dispose)
                    if connection is not None:
                        closing.callback(connection.close)
                        if is_whole:
                            self._empty_journal(connection)
                if lock is not None and is_whole:
                    _mark(lock, b"")
            finally:
                if lock is not None:
                    lock.close()

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
        done = await self._in_line(lambda: self._patiently(lambda: self._with_work((), work, tasks)))
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
        await self._in_line(lambda: self._patiently(write))
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

    def _patiently(self, write: Callable[[], T], patience: int | None = None) -> T:
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
        if self._waits_for_disk:  # commits would block the event loop
            return False
        return self._writing is not None and self._connection is not None and not self._pending

    async def _in_line(self, work: Callable[[], T]) -> T:
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
        if self._uncopied < COPIED_ROWS or not self._path or self._reading is None or self._writing is None:
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
        return self._look(lambda connection: _copy_log(connection, "PASSIVE")[1])

    def _copy_waited_for(self) -> int:
        """Run a complete checkpoint, so that the next write begins the log anew."""

        def copy() -> int:
            connection = self._connected()
            with self.translating("write to the store"), connection.begin():
                is_busy, pages = _copy_log(connection, "RESTART")
            return pages if is_busy else 0

        return self._patiently(copy, min(COPY_PATIENCE, self._patience))

    async def read(self, work: Work[T]) -> T:
        """Run a transaction as `Database.read`, in one of a few threads."""
        if self._reading is self._writing:  # one connection for all: reads wait for writes
            return await self._in_line(lambda: self._look(work))
        return await self._run(self._reading, lambda: self._look(work))

    def _look(self, work: Work[T]) -> T:
        if self._engine is None:
            raise StoreError("the store is closed")
        with self.translating("read from the store"), self._engine.connect() as connection:
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
        return _WORDS.get(getattr(cause, "sqlite_errorcode", 0) & 0xFF, "")


def _copy_log(connection: Connection, how: str) -> tuple[bool, int]:
    """Run a checkpoint; return whether readers or writers prevented a complete one, and the number of pages of the log."""
    is_busy, pages, _ = connection.exec_driver_sql(f"PRAGMA wal_checkpoint({how})").one()
    return bool(is_busy), int(pages)


def _is_locked(error: StoreError) -> bool:
    cause = error.__cause__
    code = getattr(getattr(cause, "orig", cause), "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _set_pragmas(connection: Any, _record: object) -> None:
    """Set up a connection: readers beside one writer, and commits that survive the end of the process."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    # For the rollback of multi-row statements: else SQLite creates a file for each.
    cursor.execute("PRAGMA temp_store=MEMORY")
    cursor.close()


def _wait_for_disk(connection: Any, _record: object) -> None:
    """Make commits survive the loss of power."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA fullfsync=ON")  # macOS: else the disk may have it in its cache only
    cursor.close()


def _check(connection: Connection, path: str, seconds: float) -> None:
    """Check a file for damage, within a time limit.

    Raises:
        StoreError: It is damaged.
    """
    driver: Any = connection.connection.driver_connection
    done = threading.Event()

    def break_off() -> None:
        # Repeatedly: SQLite ignores an interrupt that comes before the check has begun.
        wait = seconds
        while not done.wait(wait):
            driver.interrupt()
            wait = 0.001

    clock = threading.Thread(target=break_off, name="store-check")
    clock.start()
    try:
        [found] = driver.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        logger.info("%s: no damage found in %g s", path, seconds)
        return
    finally:
        done.set()
        clock.join()
    if found != "ok":
        raise StoreError(
            f"cannot open the store: {_WORDS[sqlite3.SQLITE_CORRUPT]} ({path}: {' '.join(found.split())})",
            temporary=False,
        )


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0


def _mark(file: IO[bytes], mark: bytes) -> None:
    """Write into the lock file whether the database is open, so that it is known after a crash."""
    file.seek(0)
    file.truncate()
    file.write(mark)
    file.flush()


def _lock(path: str) -> IO[bytes]:
    """Lock a file exclusively; the lock ends with this process, however it ends.

    Two servers on one file would each treat the other's running tasks as interrupted, and give the same numbers to
    different events.
    """
    file = os.fdopen(open_private_file(path), "a+b")  # held until the store is closed
    file.seek(0)
    if fcntl is None:
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise StoreError(
            f"the store is in use by another process, which holds {path}: one server a database"
        ) from None
    return file

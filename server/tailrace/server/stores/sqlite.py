"""SQLite: one connection that writes, threads that read beside it, and a file that no other process may have open.

The driver is blocking, and a transaction is run as a whole: it cannot be broken off halfway by whoever waited for it. One
that is brief, as almost all are, is done at once, in the event loop: it goes into SQLite's log, which waits for no disk
(``synchronous=NORMAL``), and takes less time than to hand it to a thread and to hear of its end. Whatever may take long is
done in threads: reading, what may drop or check much, copying the log into the file, and any writing while another
program has the database locked. A database in memory has one connection, which the thread that writes uses for reading,
too.
"""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import anyio
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import QueuePool, StaticPool

from tailrace.server.stores.database import Database, Work, engine_options
from tailrace.server.stores.event_rows import Row
from tailrace.server.stores.journal import Journal
from tailrace.server.stores.versions import bring_up_to_date, is_up_to_date
from tailrace.wrappers import StoreError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

logger = logging.getLogger("tailrace.server")

READERS = 4
"""Threads that read, and connections for them."""

CHECK_SECONDS = 5.0
GLANCE_SECONDS = 1.0
"""How long a file that was not closed in good order is checked for damage before it is used."""

COPIED_ROWS = 10_000
"""Rows after which the log is copied into the file."""

MAX_LOG_PAGES = 65_536
"""Pages (of 4 KiB) that the log may have before writers wait until it is copied."""

COPY_PATIENCE = 250
"""Milliseconds that they wait then for readers that began before, our own or another program's."""

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
        url: Its address; without a file name it is in memory. ``timeout``: seconds to wait for a lock (5).
    """

    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="sqlite")
        self._path = "" if url.database == ":memory:" else url.database or ""
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._pending: list[Future[Any]] = []  # what the thread that writes has to do
        self._patience = 0  # milliseconds, for a lock
        self._uncopied = 0  # rows that were written since the log was copied into the file
        self._copying: Future[int] | None = None
        self._writing: ThreadPoolExecutor | None = None
        self._reading: ThreadPoolExecutor | None = None
        self._lock: IO[bytes] | None = None
        self._is_whole = False
        self._journal = Journal()

    async def open(self) -> None:
        """As `Database.open`; the file is checked for `GLANCE_SECONDS`, or `CHECK_SECONDS` when it was not closed in good order."""
        self._writing = ThreadPoolExecutor(1, "store-writer")
        self._reading = ThreadPoolExecutor(READERS, "store-reader") if self._path else self._writing
        try:
            await self._run(self._writing, lambda: self._open())
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(StoreError):  # what was wrong before is told
                await self.close()
            raise

    def _open(self) -> None:
        with self.translating("open the store"):
            is_unclean = False
            if self._path:
                Path(self._path).parent.mkdir(parents=True, exist_ok=True)
                self._lock = _lock(f"{self._path}.lock")
                # SQLite removes its log when the last connection is closed, also of a file that is damaged.
                is_unclean = bool(self._lock.read()) or _size(f"{self._path}-wal") > 0
                _mark(self._lock, b"open\n")
            pool: dict[str, Any] = {"poolclass": StaticPool}
            if self._path:
                pool = {"poolclass": QueuePool, "pool_size": READERS + 1, "max_overflow": 0}
            self._engine = create_engine(
                self._url, connect_args={"check_same_thread": False}, **pool, **engine_options()
            )
            event.listen(self._engine, "connect", _set_pragmas)
            self._connection = self._engine.connect()
            self._patience = int(self._connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one())
            self._connection.rollback()
            _check(self._connection, self._path, CHECK_SECONDS if is_unclean else GLANCE_SECONDS)
            self._is_whole = True
            with self._connection.begin():
                is_ready = is_up_to_date(self._connection)
            if not is_ready:
                with self._connection.begin():
                    # What it does is done wholly or not at all; the driver itself begins at a row's change only.
                    self._connection.exec_driver_sql("BEGIN IMMEDIATE")
                    bring_up_to_date(self._connection)
            driver: Any = self._connection.connection.driver_connection
            self._journal.empty(driver)
            driver.commit()
            driver.execute("PRAGMA busy_timeout=0")
            driver.execute("PRAGMA wal_autocheckpoint=0")

    async def close(self) -> None:
        """As `Database.close`."""
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
        self._connection = self._engine = self._lock = None
        with self.translating("close the store"):
            try:
                with ExitStack() as closing:  # the connection first, and whatever comes of that, the rest
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
        """So that other programs find all events in one place, and the next start has nothing to do."""
        driver: Any = connection.connection.driver_connection
        try:
            self._journal.empty(driver)
            driver.commit()
        except sqlite3.Error as error:
            driver.rollback()
            logger.warning("the store's journal stays as it is until the next start: %s", error)

    async def write(self, work: Work[T], *, tasks: Collection[str] = ()) -> T:
        """As `Database.write`: in the thread that writes, where they stand in line."""
        done = await self._in_line(lambda: self._patiently(lambda: self._with_work((), work, tasks)))
        self._count(1)
        return done

    async def append(
        self, rows: Sequence[Row], work: Work[object] | None = None, *, tasks: Collection[str] = ()
    ) -> None:
        """As `Database.append`: at once, unless others stand in line."""

        def write() -> None:
            if work is not None:
                self._with_work(rows, work, tasks)
            else:
                self._alone(rows, tasks)

        if self._is_free():
            try:
                write()
            except StoreError as error:
                if not _is_locked(error):
                    raise
            else:
                self._count(len(rows))
                return
        await self._in_line(lambda: self._patiently(write))
        self._count(len(rows))

    def tail(self, task_id: str) -> Sequence[Row]:
        """As `Database.tail`."""
        if not self._journal.is_known:
            raise StoreError(
                "cannot read from the store: what is newest in it could not be read", temporary=True
            )
        return self._journal.tail(task_id)

    def _alone(self, rows: Sequence[Row], tasks: Collection[str]) -> None:
        """What `_with_work` does with events, without what SQLAlchemy does beside that: it is done for every token."""
        driver: Any = self._connected().connection.driver_connection
        with self.translating("write to the store", sqlite3.Error):
            try:
                self._journal.write(driver, rows, tasks)
                driver.commit()
            except BaseException:
                driver.rollback()
                self._journal.undo(driver)
                raise

    def _with_work(self, rows: Sequence[Row], work: Work[T], tasks: Collection[str]) -> T:
        """A transaction of events, and of something else."""
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
        """Write, and wait while another program has the database locked; in the thread that writes.

        Args:
            write: Does it.
            patience: Milliseconds to wait; those of the address when None.
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
        """Whether the connection that writes is used by nobody now, and nobody stands in line for it."""
        if self._pending:
            self._pending = [each for each in self._pending if not each.done()]
        return self._writing is not None and self._connection is not None and not self._pending

    async def _in_line(self, work: Callable[[], T]) -> T:
        if self._writing is None:
            raise StoreError("the store is closed")
        future = self._writing.submit(work)
        self._pending.append(future)
        return await asyncio.wrap_future(future)

    def _count(self, rows: int) -> None:
        """Rows were written: now and then the log is copied into the file, which waits for the disk, so in a thread.

        The log begins anew with the first write that finds all of it copied, and nobody reading from it. While others
        write and read without a pause there is none such, and it grows: then they wait until it is so.
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
        """Copy the log; says how many pages it has."""
        try:
            return copy()
        except StoreError as error:  # it stays in the log, and is copied the next time
            logger.warning("the log of the store cannot be copied into its file now: %s", error)
            return 0

    def _copy(self) -> int:
        return self._look(lambda connection: _copy_log(connection, "PASSIVE")[1])

    def _copy_waited_for(self) -> int:
        """Copy all of the log, and see that the next write begins it anew."""

        def copy() -> int:
            connection = self._connected()
            with self.translating("write to the store"), connection.begin():
                is_busy, pages = _copy_log(connection, "RESTART")
            return pages if is_busy else 0

        return self._patiently(copy, min(COPY_PATIENCE, self._patience))

    async def read(self, work: Work[T]) -> T:
        """As `Database.read`: in one of a few threads."""
        if self._reading is self._writing:  # one connection for all: nothing may be written meanwhile
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
        """As `Database.is_temporary`."""
        return isinstance(error, OperationalError | sqlite3.OperationalError | OSError)

    def explain(self, cause: BaseException) -> str:
        """As `Database.explain`."""
        return _WORDS.get(getattr(cause, "sqlite_errorcode", 0) & 0xFF, "")


def _copy_log(connection: Connection, how: str) -> tuple[bool, int]:
    """Copy the log into the file; says whether somebody was in the way, and how many pages the log has."""
    is_busy, pages, _ = connection.exec_driver_sql(f"PRAGMA wal_checkpoint({how})").one()
    return bool(is_busy), int(pages)


def _is_locked(error: StoreError) -> bool:
    cause = error.__cause__
    code = getattr(getattr(cause, "orig", cause), "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _set_pragmas(connection: Any, _record: object) -> None:
    """Readers beside one writer, and a commit that survives the end of the process (not of the machine)."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    # What a statement of many rows would take back if one of them failed: else in a file, which is made anew each time.
    cursor.execute("PRAGMA temp_store=MEMORY")
    cursor.close()


def _check(connection: Connection, path: str, seconds: float) -> None:
    """Look for damage in a file, for a time that is bounded.

    Raises:
        StoreError: It is damaged.
    """
    driver: Any = connection.connection.driver_connection
    done = threading.Event()

    def break_off() -> None:
        # Again and again: SQLite forgets what comes before the check has begun.
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
    """Write into the file that is held whether the database is open: it says so still after a crash."""
    file.seek(0)
    file.truncate()
    file.write(mark)
    file.flush()


def _lock(path: str) -> IO[bytes]:
    """Hold a file so that no other process can; it is let go when this one ends, however it ends.

    Two servers on one file would each take the other's running tasks for interrupted ones, and give the same
    numbers to different events.
    """
    file = Path(path).open("a+b")  # held until the store is closed
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

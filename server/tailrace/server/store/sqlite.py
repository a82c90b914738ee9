"""SQLite: one connection that writes, threads that read in parallel, and a file that no other server may open.

The driver blocks, and a cancellation cannot interrupt a transaction. Most write transactions add a few events (`append`). They run
in the event loop: SQLite adds the events to its write-ahead log (below: the log) without waiting for the disk
(``synchronous=NORMAL``), which takes less time than a round trip to a thread. Such a write runs in a thread if it is large, if it
must survive a loss of power, if another write is running, or if another program has the database locked. All other transactions run
in threads. A database in memory has one connection, which the writing thread also uses for reads.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar

import anyio
from sqlalchemy import Connection
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError

from tailrace.server.store.database import Database, Work
from tailrace.server.store.event_journal import Journal
from tailrace.server.store.event_rows import Row
from tailrace.server.store.sqlite_file import EXPLANATIONS, SqliteFile, run_checkpoint
from tailrace.wrappers import StoreError

logger = logging.getLogger("tailrace.server")

READERS = 4
"""Number of threads for reads. Each has its own connection."""

COPIED_ROWS = 10_000
"""Number of written rows after which the log is copied into the file (a checkpoint)."""

LARGE_ROWS = COPIED_ROWS // 4
"""Number of rows as which a large write counts, because it adds megabytes to the log."""

MAX_LOG_PAGES = 65_536
"""Number of pages (4 KiB) of the log above which writers wait for a checkpoint."""

CHECKPOINT_TIMEOUT_MS = 250
"""Milliseconds for which a checkpoint waits for readers when the log exceeds `MAX_LOG_PAGES`."""

PURGE_ATTEMPTS = 20
PURGE_PAUSE = 0.1
"""Maximum number of attempts to empty the log after a deletion, and seconds between two attempts."""

Durability = Literal["process", "power"]
"""The failures that a commit survives: a crash of the process, or also a loss of power (``synchronous=FULL``)."""

T = TypeVar("T")


class SqliteDatabase(Database):
    """A SQLite file, or a database in memory.

    Args:
        url: The URL of the database. Without a file name, the database is in memory. The parameter ``timeout`` is the number of
            seconds to wait for a lock (default 5).
        durability: The failures that a commit survives.
    """

    def __init__(self, url: URL, durability: Durability = "process") -> None:
        self._file = SqliteFile(url, READERS + 1, waits_for_disk=durability == "power")
        self.is_durable = bool(self._file.path)
        self._connection: Connection | None = None
        self._driver: Any = None  # the sqlite3 connection of `_connection`
        self._pending: list[Future[Any]] = []  # unfinished work of the writing thread
        self._lock_timeout = 0  # milliseconds to wait for a lock
        self._rows_since_checkpoint = 0  # rows written since the last checkpoint
        self._checkpoint_running: Future[int] | None = None
        self._writing: ThreadPoolExecutor | None = None
        self._reading: ThreadPoolExecutor | None = None
        self._journal = Journal()

    async def open(self) -> None:
        """Open the database (see `Database.open`)."""
        self._writing = ThreadPoolExecutor(1, "store-writer")
        self._reading = ThreadPoolExecutor(READERS, "store-reader") if self._file.path else self._writing
        try:
            await self._run(self._writing, lambda: self._open())
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(StoreError):  # the original error is raised
                await self.close()
            raise

    def _open(self) -> None:
        with self.translating("open the store"):
            connection = self._file.open()
            driver: Any = connection.connection.driver_connection
            [self._lock_timeout] = driver.execute("PRAGMA busy_timeout").fetchone()
            self._use_to_write(connection)
            self._journal.empty(self._driver)
            self._driver.commit()

    def _use_to_write(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        driver.execute("PRAGMA busy_timeout=0")
        driver.execute("PRAGMA wal_autocheckpoint=0")
        self._connection, self._driver = connection, driver

    async def close(self) -> None:
        """Close the database (see `Database.close`)."""
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
        """Move the journal to the table, so that other programs find all events in the table."""
        driver: Any = connection.connection.driver_connection
        try:
            self._journal.empty(driver)
            driver.commit()
        except sqlite3.Error as error:
            driver.rollback()
            logger.warning("the store's journal could not be emptied; the next start does it: %s", error)

    async def write(self, work: Work[T], *, tasks: Collection[str] = ()) -> T:
        """Run a write transaction in the writing thread (see `Database.write`)."""
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
        """Write events (see `Database.append`), if possible in the event loop."""
        write = partial(self._write_events_only, rows, tasks)
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
        """Return the last events of a task (see `Database.tail`)."""
        if not self._journal.is_known:
            raise StoreError(
                "cannot read from the store: its newest events could not be read", temporary=True
            )
        return self._journal.tail(task_id)

    def _write_events_only(self, rows: Sequence[Row], tasks: Collection[str]) -> None:
        """Write events without the overhead of SQLAlchemy."""
        driver = self._driver
        if driver is None:
            raise StoreError("the store is closed")
        try:
            self._journal.write(driver, rows, tasks)
            driver.commit()
        except BaseException:
            with self.translating("write to the store", sqlite3.Error):
                driver.rollback()
                self._journal.reload_after_rollback(driver)
                raise

    def _with_work(self, rows: Sequence[Row], work: Work[T], tasks: Collection[str]) -> T:
        """Write events and run further statements in one transaction."""
        connection = self._connected()
        with self.translating("write to the store", sqlite3.Error):
            try:
                with connection.begin():
                    self._journal.write(connection.connection.driver_connection, rows, tasks)
                    return work(connection)
            except BaseException:
                self._journal.reload_after_rollback(connection.connection.driver_connection)
                raise

    def _retry_locked(self, write: Callable[[], T], timeout: int | None = None) -> T:
        """Write in the writing thread. While another program has the database locked, wait.

        Args:
            write: Runs the transaction.
            timeout: Milliseconds to wait; None for the timeout of the URL.
        """
        driver: Any = self._connected().connection.driver_connection
        driver.execute(f"PRAGMA busy_timeout={self._lock_timeout if timeout is None else timeout}")
        try:
            with self._journal.freeze_tails():
                return write()
        finally:
            driver.execute("PRAGMA busy_timeout=0")

    def _connected(self) -> Connection:
        if self._connection is None:
            raise StoreError("the store is closed")
        return self._connection

    def _is_free(self) -> bool:
        """Return whether a write can run in the event loop."""
        if self._pending:
            self._pending = [each for each in self._pending if not each.done()]
        if self._file.waits_for_disk:  # because commits would block the event loop
            return False
        return self._writing is not None and self._connection is not None and not self._pending

    async def _run_serially(self, work: Callable[[], T]) -> T:
        if self._writing is None:
            raise StoreError("the store is closed")
        future = self._writing.submit(work)
        self._pending.append(future)
        return await asyncio.wrap_future(future)

    def _count(self, rows: int) -> None:
        """Count written rows, and start a checkpoint after `COPIED_ROWS`.

        SQLite can reuse the log only after a complete checkpoint during which no reader uses the log. With continuous reads and
        writes, this never happens. Above `MAX_LOG_PAGES`, a checkpoint therefore runs in the writing thread, and writers wait for
        it.
        """
        self._rows_since_checkpoint += rows
        if (
            self._rows_since_checkpoint < COPIED_ROWS
            or not self._file.path
            or self._reading is None
            or self._writing is None
        ):
            return
        if self._checkpoint_running is not None and not self._checkpoint_running.done():
            return
        self._rows_since_checkpoint = 0
        if self._checkpoint_running is not None and self._checkpoint_running.result() > MAX_LOG_PAGES:
            self._checkpoint_running = self._writing.submit(
                lambda: self._checkpoint_or_zero(self._run_full_checkpoint)
            )
            self._pending.append(self._checkpoint_running)
        else:
            self._checkpoint_running = self._reading.submit(lambda: self._checkpoint_or_zero(self._copy))

    def _checkpoint_or_zero(self, copy: Callable[[], int]) -> int:
        """Run a checkpoint, and return the number of pages of the log; 0 after an error."""
        try:
            return copy()
        except StoreError as error:  # the next checkpoint will copy the log
            logger.warning("the log of the store cannot be copied into its file at present: %s", error)
            return 0

    def _copy(self) -> int:
        return self._read_transaction(lambda connection: run_checkpoint(connection, "PASSIVE")[1])

    def _run_full_checkpoint(self, mode: str = "RESTART") -> int:
        """Run a complete checkpoint, so that the next write overwrites the log. ``TRUNCATE`` also empties the log."""

        def copy() -> int:
            connection = self._connected()
            with self.translating("write to the store"), connection.begin():
                is_busy, pages = run_checkpoint(connection, mode)
            return pages if is_busy else 0

        return self._retry_locked(copy, min(CHECKPOINT_TIMEOUT_MS, self._lock_timeout))

    async def purge(self, *, is_patient: bool = True) -> bool:
        """Remove deleted content (see `Database.purge`) from the journal, the log, and the connections."""
        await self._run_serially(lambda: self._retry_locked(self._drop_journal))
        if not self._file.path:
            return True
        is_purged = False
        for attempt in range(PURGE_ATTEMPTS if is_patient else 1):
            await anyio.sleep(PURGE_PAUSE if attempt else 0)
            is_purged = await self._run_serially(self._is_log_emptied)
            if is_purged:
                break
        await self._run_serially(self._renew_connections)
        return is_purged

    def _is_log_emptied(self) -> bool:
        """Try to empty the log, and return whether this succeeded."""
        try:
            return self._run_full_checkpoint("TRUNCATE") == 0
        except StoreError as error:
            logger.warning("the log of the store cannot be copied into its file at present: %s", error)
            return False

    def _drop_journal(self) -> None:
        """Empty the journal, because its rows contain events of deleted tasks."""
        driver: Any = self._connected().connection.driver_connection
        with self.translating("write to the store", sqlite3.Error):
            try:
                self._journal.empty(driver)
                driver.commit()
            except BaseException:
                driver.rollback()
                self._journal.reload_after_rollback(driver)
                raise

    def _renew_connections(self) -> None:
        """Open new connections, because cached pages and parameters of the old ones may contain deleted content."""
        self._connected()
        with self.translating("open the store", sqlite3.Error):
            self._use_to_write(self._file.reconnect())

    async def read(self, work: Work[T]) -> T:
        """Run a read transaction in a thread (see `Database.read`)."""
        # A database in memory has only one connection.
        if self._reading is self._writing:
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
        """Return whether an error is temporary (see `Database.is_temporary`)."""
        return isinstance(error, OperationalError | sqlite3.OperationalError | OSError)

    def explain(self, cause: BaseException) -> str:
        """Return a description of an error (see `Database.explain`)."""
        return EXPLANATIONS.get(getattr(cause, "sqlite_errorcode", 0) & 0xFF, "")


def _is_locked(error: StoreError) -> bool:
    cause = error.__cause__
    code = getattr(getattr(cause, "orig", cause), "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

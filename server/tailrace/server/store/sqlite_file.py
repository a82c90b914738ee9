"""The file of a SQLite database: its lock, its permissions, its connections, and the check for damage."""

import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import QueuePool, StaticPool

from tailrace.server.store.database import engine_options
from tailrace.server.store.private_files import create_private_folder, make_private, open_private_file
from tailrace.server.store.schema_version import is_up_to_date, migrate_schema
from tailrace.wrappers import StoreError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

logger = logging.getLogger("tailrace.server")

CHECK_SECONDS = 5.0
QUICK_CHECK_SECONDS = 1.0
"""Maximum seconds for which a file is checked for damage: `CHECK_SECONDS` after a crash, otherwise `QUICK_CHECK_SECONDS`."""

EXPLANATIONS = {
    sqlite3.SQLITE_BUSY: "another program has the database locked",
    sqlite3.SQLITE_LOCKED: "another program has the database locked",
    sqlite3.SQLITE_READONLY: "the file or its folder is not writable",
    sqlite3.SQLITE_IOERR: "the disk cannot be read or written",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a backup, or move it away to start with an empty one",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_CANTOPEN: "the file, or one beside it, cannot be opened or created",
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database, or its beginning is damaged",
}
"""Descriptions of errors by the primary result code (https://sqlite.org/rescode.html)."""


class SqliteFile:
    """The file of a database, locked against other processes, or a database in memory.

    Args:
        url: The URL of the database. Without a file name, the database is in memory.
        connections: The maximum number of connections to a file.
        waits_for_disk: Whether commits wait for the disk, so that they survive a loss of power.

    Attributes:
        path: The file name; empty for a database in memory.
        engine: The connections; None while the file is closed.
    """

    def __init__(self, url: URL, connections: int, *, waits_for_disk: bool) -> None:
        self.path = "" if url.database == ":memory:" else url.database or ""
        self.engine: Engine | None = None
        self.waits_for_disk = waits_for_disk and bool(self.path)
        self._url = url.set(drivername="sqlite")
        self._connections = connections
        self._connection: Connection | None = None
        self._lock: IO[bytes] | None = None
        self._is_complete = False

    def open(self) -> Connection:
        """Lock the file, check it for damage, migrate its tables, and return the first connection.

        The check takes up to `QUICK_CHECK_SECONDS`, or `CHECK_SECONDS` if the file was not closed properly.

        Raises:
            StoreError: Another process has locked the file, the file is damaged, or its tables are of a newer version.
        """
        is_unclean = False
        if self.path:
            create_private_folder(Path(self.path).parent)
            self._lock = _lock(f"{self.path}.lock")
            # SQLite's log does not show every crash: SQLite also removes it when a damaged file is closed.
            is_unclean = bool(self._lock.read()) or _size(f"{self.path}-wal") > 0
            _mark(self._lock, b"open\n")
            # SQLite creates its other files with the mode of this file.
            if not Path(self.path).exists() and not self.path.startswith("file:"):
                os.close(open_private_file(self.path))
            make_private(*(f"{self.path}{suffix}" for suffix in ("", "-wal", "-shm", "-journal", ".lock")))
        pool: dict[str, Any] = {"poolclass": StaticPool}
        if self.path:
            pool = {"poolclass": QueuePool, "pool_size": self._connections, "max_overflow": 0}
        self.engine = create_engine(
            self._url, connect_args={"check_same_thread": False}, **pool, **engine_options()
        )
        event.listen(self.engine, "connect", _set_pragmas)
        if self.waits_for_disk:
            event.listen(self.engine, "connect", _wait_for_disk)
        connection = self._connection = self.engine.connect()
        _check(connection, self.path, CHECK_SECONDS if is_unclean else QUICK_CHECK_SECONDS)
        self._is_complete = True
        with connection.begin():
            is_ready = is_up_to_date(connection)
        if not is_ready:
            with connection.begin():
                # Otherwise, the driver would begin the transaction only at the first change of a row.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                migrate_schema(connection)
        return connection

    def reconnect(self) -> Connection:
        """Close all connections, and return a new first connection.

        Raises:
            StoreError: The file is not open.
        """
        engine, former = self.engine, self._connection
        if engine is None or former is None:
            raise StoreError("the store is closed")
        engine.dispose()
        self._connection = engine.connect()
        former.detach()
        former.close()
        return self._connection

    def close(self, last: Callable[[Connection], object]) -> None:
        """Close all connections, and release the lock.

        Args:
            last: Called with the first connection before it is closed, unless the file is damaged.
        """
        connection, engine, lock = self._connection, self.engine, self._lock
        is_complete, self._is_complete = self._is_complete, False
        self._connection = self.engine = self._lock = None
        try:
            with ExitStack() as closing:  # close the connection first; close the engine even if this fails
                if engine is not None:
                    closing.callback(engine.dispose)
                if connection is not None:
                    closing.callback(connection.close)
                    if is_complete:
                        last(connection)
            if lock is not None and is_complete:
                _mark(lock, b"")
        finally:
            if lock is not None:
                lock.close()


def _check(connection: Connection, path: str, seconds: float) -> None:
    """Check a file for damage.

    Raises:
        StoreError: The file is damaged.
    """
    driver: Any = connection.connection.driver_connection
    done = threading.Event()

    def break_off() -> None:
        # SQLite ignores an interrupt before the check has begun.
        wait = seconds
        while not done.wait(wait):
            driver.interrupt()
            wait = 0.001

    clock = threading.Thread(target=break_off, name="store-check")
    clock.start()
    try:
        [result] = driver.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        logger.info("%s: no damage found in %g s", path, seconds)
        return
    finally:
        done.set()
        clock.join()
    if result != "ok":
        raise StoreError(
            f"cannot open the store: {EXPLANATIONS[sqlite3.SQLITE_CORRUPT]} ({path}: {' '.join(result.split())})",
            temporary=False,
        )


def _mark(file: IO[bytes], mark: bytes) -> None:
    """Record in the lock file whether the database is open."""
    file.seek(0)
    file.truncate()
    file.write(mark)
    file.flush()


def run_checkpoint(connection: Connection, mode: str) -> tuple[bool, int]:
    """Run a checkpoint. Return whether readers or writers prevented its completion, and the number of pages of the log."""
    is_busy, pages, _ = connection.exec_driver_sql(f"PRAGMA wal_checkpoint({mode})").one()
    return bool(is_busy), int(pages)


def _set_pragmas(connection: Any, _record: object) -> None:
    """Configure a connection: readers run in parallel with one writer, and commits survive a crash of the process."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA secure_delete=ON")  # deleted content is overwritten with zeros
    # By default, SQLite creates a temporary file for each statement with several rows.
    cursor.execute("PRAGMA temp_store=MEMORY")
    cursor.close()


def _wait_for_disk(connection: Any, _record: object) -> None:
    """Configure a connection, so that commits survive a loss of power."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=FULL")
    # On macOS, the data would otherwise be only in the cache of the disk.
    cursor.execute("PRAGMA fullfsync=ON")
    cursor.close()


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0


def _lock(path: str) -> IO[bytes]:
    """Lock a file exclusively. On Windows, it is not locked.

    Two servers on one file would treat each other's running tasks as interrupted.
    """
    file = os.fdopen(open_private_file(path), "a+b")  # open until the store is closed
    file.seek(0)
    if fcntl is None:
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise StoreError(
            f"the store is in use by another process, which has locked {path}: only one server can use a database"
        ) from None
    return file

"""PostgreSQL: one connection that writes and holds an exclusive lock, and several connections that read.

The lock belongs to the connection that writes. After this connection is lost, the next one acquires the lock first.
"""

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

import anyio
from sqlalchemy import Connection, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from tailrace.server.store.database import Database, Work, engine_options, is_lost_connection
from tailrace.server.store.schema_version import migrate_schema
from tailrace.wrappers import ConfigurationError, StoreError

READERS = 5
"""Number of connections for reads. If all are in use, up to the same number of temporary connections are opened."""

CONNECT_SECONDS = 10.0
COMMAND_SECONDS = 60.0
"""Time limits in seconds for opening a connection, and for one statement."""

# With keepalives, the database releases the lock within a minute after the machine of tailrace was lost.
_SESSION = {
    "application_name": "tailrace",
    "jit": "off",  # slows down short statements
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}

ACQUIRE_LOCK = text("SELECT pg_try_advisory_lock(hashtextextended('tailrace:' || current_schema(), 0))")

T = TypeVar("T")

_LOST = "the connection to the database was lost"
# Descriptions of errors by a prefix of the SQLSTATE: https://www.postgresql.org/docs/current/errcodes-appendix.html
_DESCRIPTIONS = {
    "08003": _LOST,
    "08006": _LOST,
    "28": "the database rejects this user: check the user and password in TAILRACE_STORE",
    "3D": "the database does not exist: create it with CREATE DATABASE",
    "42501": "the database user may not do this; it needs to own the tables",
    "25006": "the database may only be read",
    "53100": "the database's disk is full",
    "53": "the database has no room for this",
    "55P03": "another process has locked the tables",
    "57": "the database is being shut down or started",
}
_TEMPORARY = ("08", "25006", "40", "53", "55", "57", "58")


class PostgresqlDatabase(Database):
    """A PostgreSQL database.

    Args:
        url: The URL of the database. As in libpq, it may have ``sslmode``, and ``host`` may be the folder of a socket.
            ``timeout`` and ``command_timeout`` override `CONNECT_SECONDS` and `COMMAND_SECONDS`.

    Raises:
        ConfigurationError: The driver is not installed, or a timeout is not a number.
    """

    def __init__(self, url: URL) -> None:
        try:
            import asyncpg
        except ImportError:
            raise ConfigurationError(
                "TAILRACE_STORE: PostgreSQL needs a driver: pip install 'tailrace[postgres]'"
            ) from None
        self._driver_errors = (asyncpg.PostgresError, asyncpg.InterfaceError)
        query: dict[str, Any] = dict(url.query)
        try:
            self._patience = {
                name: float(query.pop(name, seconds))
                for name, seconds in (("timeout", CONNECT_SECONDS), ("command_timeout", COMMAND_SECONDS))
            }
        except (TypeError, ValueError):
            raise ConfigurationError("TAILRACE_STORE: the timeouts in the address must be numbers") from None
        if "sslmode" in query:
            query["ssl"] = query.pop("sslmode")
        self._url = url.set(drivername="postgresql+asyncpg", query=query)
        # The time limit of a transaction, including the time to connect. None: only the other limits apply.
        self._seconds: float | None = None
        self._engine: AsyncEngine | None = None
        self._connection: AsyncConnection | None = None
        self._writing = anyio.Lock(fast_acquire=True)

    async def open(self) -> None:
        """Open the database (see `Database.open`)."""
        from tailrace.server.store.postgresql_connections import (
            BoundedConnection,
            watch_connections,
        )  # requires the driver

        self._engine = create_async_engine(
            self._url,
            pool_size=READERS + 1,
            max_overflow=READERS,
            connect_args={
                **self._patience,
                "server_settings": self._session(),
                "connection_class": BoundedConnection,
            },
            **engine_options(),
        )
        watch_connections(self._engine)
        try:
            await _complete_transaction(self._open(self._engine))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close()
            raise

    async def _open(self, engine: AsyncEngine) -> None:
        try:
            with self.translating("open the store", *self._driver_errors):
                self._connection = await engine.connect()
                await self._transaction(self._connection, self._migrate_schema)
        except TypeError as error:  # raised by the driver for an unknown option of the URL
            raise ConfigurationError(
                f"TAILRACE_STORE: an option of the address is not known: {error}"
            ) from None

    async def close(self) -> None:
        """Close the database (see `Database.close`)."""
        connection, engine = self._connection, self._engine
        self._connection = self._engine = None
        async with self._writing:
            if connection is not None:
                await connection.close()
        if engine is not None:
            await engine.dispose()

    async def write(self, work: Work[T], *, tasks: Collection[str] = ()) -> T:
        """Run a write transaction (see `Database.write`)."""
        return await _complete_transaction(self._write(work))

    async def _write(self, work: Work[T]) -> T:
        async with self._writing:
            if self._connection is None:
                raise StoreError("the store is closed")
            with self.translating("write to the store", *self._driver_errors):
                async with asyncio.timeout(self._seconds):
                    return await self._transaction(self._connection, work)

    async def _transaction(self, connection: AsyncConnection, work: Work[T]) -> T:
        async with connection.begin():
            return await connection.run_sync(self._guarded, work)

    def _guarded(self, connection: Connection, work: Work[T]) -> T:
        self._check_write_permission(connection)
        return work(connection)

    # --- overridden where several servers share the database ---

    def _session(self) -> dict[str, str]:
        """Return the PostgreSQL settings of every session."""
        return dict(_SESSION)

    def _migrate_schema(self, connection: Connection) -> None:
        migrate_schema(connection)

    def _check_write_permission(self, connection: Connection) -> None:
        """Check that this server may write. A new connection acquires the lock first.

        Raises:
            StoreError: Another server holds the lock.
        """
        if "tailrace" not in connection.info:  # this connection does not hold the lock yet
            if not connection.scalar(ACQUIRE_LOCK):
                raise StoreError(
                    "the store is in use by another process, which holds its lock: only one server can use a database, unless "
                    "all share a broker (TAILRACE_EVENTS)"
                )
            connection.info["tailrace"] = "holds the lock"

    async def read(self, work: Work[T]) -> T:
        """Run a read transaction (see `Database.read`)."""
        return await _complete_transaction(self._read(work))

    async def _read(self, work: Work[T]) -> T:
        if self._engine is None:
            raise StoreError("the store is closed")
        with self.translating("read from the store", *self._driver_errors):
            async with asyncio.timeout(self._seconds), self._engine.connect() as connection:
                return await connection.run_sync(work)

    def is_temporary(self, error: Exception) -> bool:
        """Return whether an error is temporary (see `Database.is_temporary`)."""
        if isinstance(error, OSError | OperationalError | InterfaceError) or is_lost_connection(error):
            return True
        return _state_of(getattr(error, "orig", None) or error).startswith(_TEMPORARY)

    def explain(self, cause: BaseException) -> str:
        """Return a description of an error (see `Database.explain`)."""
        if isinstance(cause, BrokenPipeError | ConnectionAbortedError | ConnectionResetError):
            return _LOST
        if isinstance(cause, OSError) and not isinstance(cause, TimeoutError):
            return f"there is no database at {self._url.render_as_string(hide_password=True)}"
        if isinstance(cause, TimeoutError):
            return "the database does not respond"
        state = _state_of(cause)
        return next((words for code, words in _DESCRIPTIONS.items() if state.startswith(code)), "")


def _state_of(error: BaseException) -> str:
    return getattr(error, "sqlstate", None) or ""


async def _complete_transaction(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine until it ends, and only then raise a cancellation.

    If a statement is interrupted, the driver closes its connection, which may hold the lock. A shielded scope alone does not
    protect against cancellation from outside anyio (gRPC), so the coroutine runs in a separate asyncio task.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieve the error, so that asyncio does not log it
        raise cancelled
    return task.result()

"""Connections to PostgreSQL that were cut silently: nobody waits for long for an answer that does not come on one.

Such a connection looks as any other until somebody waits on it. The driver would do so as long as a statement may take, once
for the statement, once for taking it back, and once for closing the connection.
"""

import asyncio
from typing import Any, cast

from asyncpg import Connection
from sqlalchemy import event
from sqlalchemy.engine import AdaptedConnection, ExceptionContext
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import ConnectionPoolEntry

PING_SECONDS = 1.0
"""How long the database has to show that a connection is alive which was not used for a while; then there is another."""

CLOSE_SECONDS = 2.0
"""How long it has to break off what it does for a connection, and to close it; then the connection is dropped."""


class BoundedConnection(Connection):
    """A connection of the driver that is closed in a bounded time.

    The driver's own would wait as long as for a statement; and without end (before version 0.32) for an answer to what it
    was cancelled in.
    """

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 — as the driver has it
        """Close it in good order, so that the database lets go of its locks; or drop it."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await cast("Any", super()).close(timeout=timeout)
        except (TimeoutError, OSError):
            self.terminate()


def watch_connections(engine: AsyncEngine) -> None:
    """Have an engine throw away connections that do not work, before they are used or when that is found."""
    for name, listener in (("connect", _note_new), ("checkout", _ping), ("handle_error", _doubt)):
        event.listen(engine.sync_engine, name, listener)


def _note_new(connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
    record.info["is new"] = True


def _ping(connection: DBAPIConnection, record: ConnectionPoolEntry, proxy: object) -> None:
    """See that a connection of the pool is alive: as SQLAlchemy's own ping, but soon, and in one round trip."""
    if record.info.pop("is new", False):
        return
    adapted = cast("AdaptedConnection", connection)
    try:
        adapted.run_async(_answer)
    except BaseException as error:
        adapted.driver_connection.terminate()
        if not isinstance(error, Exception):
            raise
        # Whatever it is: there is another connection.
        raise DisconnectionError(str(error) or type(error).__name__) from error


async def _answer(driver: Any) -> None:
    async with asyncio.timeout(PING_SECONDS):
        await driver.execute("")


def _doubt(context: ExceptionContext) -> None:
    """Use a connection no more that did not answer in time."""
    if isinstance(context.original_exception, TimeoutError):
        context.is_disconnect = True
        context.invalidate_pool_on_disconnect = False

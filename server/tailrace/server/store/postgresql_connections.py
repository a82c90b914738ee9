"""Time limits that detect lost PostgreSQL connections if the operating system does not report the loss.

Without these limits, the driver would wait for three complete command timeouts: for the statement, for its cancellation, and for
closing the connection.
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
"""Seconds within which an idle connection must reply before it is used."""

CLOSE_SECONDS = 2.0
"""Seconds after which a connection that does not close is aborted."""


class BoundedConnection(Connection):
    """A connection of the driver that closes within `CLOSE_SECONDS`.

    The driver's own method waits for a command timeout. Before version 0.32, it waits without a limit for the reply to a
    cancelled statement.
    """

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 — overrides the driver
        """Close the connection. Abort it if this takes too long."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await cast("Any", super()).close(timeout=timeout)
        except (TimeoutError, OSError):
            self.terminate()


def watch_connections(engine: AsyncEngine) -> None:
    """Discard broken connections of an engine: before they are used, and after a timeout."""
    for name, listener in (("connect", _note_new), ("checkout", _ping), ("handle_error", _discard_timed_out)):
        event.listen(engine.sync_engine, name, listener)


def _note_new(connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
    record.info["is new"] = True


def _ping(connection: DBAPIConnection, record: ConnectionPoolEntry, proxy: object) -> None:
    """Check that a connection of the pool replies, like SQLAlchemy's own ping, but with a short timeout."""
    if record.info.pop("is new", False):
        return
    adapted = cast("AdaptedConnection", connection)
    try:
        adapted.run_async(_ping_driver)
    except BaseException as error:
        adapted.driver_connection.terminate()
        if not isinstance(error, Exception):
            raise
        raise DisconnectionError(str(error) or type(error).__name__) from error


async def _ping_driver(driver: Any) -> None:
    async with asyncio.timeout(PING_SECONDS):
        await driver.execute("")


def _discard_timed_out(context: ExceptionContext) -> None:
    """Discard a connection that did not reply in time."""
    if isinstance(context.original_exception, TimeoutError):
        context.is_disconnect = True
        context.invalidate_pool_on_disconnect = False

"""The connections of a node to Valkey or Redis.

While a task runs, most of its events are stored only in the broker.

Every failure raises a `BrokerError`. The next request reconnects. After `Broker.fail`, `Broker.is_usable` is False until a probe
of `Broker.watch` succeeds, so that writers do not wait for a failed broker.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit
from weakref import WeakSet

import anyio

from tailrace.server.cluster.broker_connection import (
    TIMEOUT,
    Address,
    BrokerConnection,
    BrokerError,
    Command,
    ReplyError,
    Subscriber,
)
from tailrace.wrappers import ConfigurationError

logger = logging.getLogger("tailrace.server")

PROBE_INTERVAL = 0.25
"""Seconds between two attempts to reach a broker that has failed."""

_PROBE_KEY = b"tailrace:probe"

_SETTINGS = {
    "appendonly": ("yes", "published events are lost when it stops"),
    "appendfsync": ("always", "the events of the last seconds may be lost when it stops"),
    "maxmemory-policy": ("noeviction", "it may evict streams that are still read"),
}
"""For each setting: the value that prevents the loss of published events, and the consequence of other values."""


class Broker:
    """The broker of a node's events and commands.

    Args:
        url: The URL of the broker in the format of redis-py: ``redis://``, ``rediss://`` or ``unix://``.
        timeout: Seconds to open a connection, and to wait for the reply to a command.

    Attributes:
        writing: The connection for writes.
        reading: The connection for reads.
        rejects_writes: True if the broker replies, but rejects writes, because it is out of memory or read-only.

    Raises:
        ConfigurationError: The URL is not valid, or the client library is not installed.
    """

    def __init__(self, url: str, *, timeout: float = TIMEOUT) -> None:
        self._address = parse_address(url)
        self._timeout = timeout
        self._connections: WeakSet[BrokerConnection | Subscriber] = WeakSet()
        self.writing = self.create_connection()
        self.reading = self.create_connection()
        self.rejects_writes = False
        self._failed = anyio.Event()
        self._works = True

    def create_connection(self) -> BrokerConnection:
        """Create another connection."""
        link = BrokerConnection(self._address, self._timeout)
        self._connections.add(link)
        return link

    def subscriber(
        self, on_subscribed: Callable[[bytes], None], on_message: Callable[[bytes, bytes], None]
    ) -> Subscriber:
        """Create another connection, for published messages."""
        subscriber = Subscriber(self._address, on_subscribed, on_message, self._timeout)
        self._connections.add(subscriber)
        return subscriber

    def drop_buffers(self) -> None:
        """Release the buffers of all connections, which may contain data of a deleted task."""
        for connection in self._connections:
            connection.drop_buffer()

    @property
    def is_usable(self) -> bool:
        """True if no failure was recorded since the last successful probe."""
        return self._works

    def fail(self, error: BrokerError) -> None:
        """Record a failure."""
        if not self._works:
            return
        self._works = False
        self._failed.set()
        if isinstance(error, ReplyError):  # callers of `Subscriber.run` log lost connections
            self.rejects_writes = True
            logger.warning(
                "the broker (TAILRACE_EVENTS) rejects events; until it accepts them, they are stored only in the database: %s",
                error.reply,
            )

    async def watch(self) -> None:
        """Probe the broker at intervals after a failure, until this method is cancelled."""
        probe = self.create_connection()
        try:
            while True:
                await self._failed.wait()
                await anyio.sleep(PROBE_INTERVAL)
                # The probe is a write, because a broker that is out of memory still replies to PING.
                if await _does(probe, (b"SET", _PROBE_KEY, b"", b"PX", 1000)):
                    if self.rejects_writes:
                        logger.info("the broker (TAILRACE_EVENTS) accepts events again")
                    self._failed, self.rejects_writes = anyio.Event(), False
                    self._works = True
                    await self.log_durability_risks()
        finally:
            with anyio.CancelScope(shield=True):
                await probe.close()

    async def is_available(self) -> bool:
        """Return True if the broker accepts requests now."""
        return await _does(self.reading, (b"PING",))

    async def durability_risks(self) -> list[tuple[str, str]]:
        """Return the settings of the broker that risk data loss, each with advice.

        Raises:
            ReplyError: Reading the configuration is not permitted.
            BrokerError: The broker is not available.
        """
        commands = [(b"CONFIG", b"GET", name.encode()) for name in _SETTINGS]
        replies = await self.reading.run(*commands)
        found: list[tuple[str, str]] = []
        for (name, (expected, loss)), reply in zip(_SETTINGS.items(), replies, strict=True):
            if isinstance(reply, ReplyError):
                raise reply
            configured = reply[1].decode("utf-8", "replace") if len(reply) > 1 else ""
            if configured not in ("", expected):
                found.append((f"{name} is {configured}: {loss}", f"set it to {expected}"))
                if name == "appendonly":
                    break  # the fsync policy does not matter without an append-only file
        return found

    async def log_durability_risks(self) -> None:
        """Log the risks of data loss in the broker's configuration."""
        try:
            for risk in await self.durability_risks():
                logger.warning("the broker (TAILRACE_EVENTS): %s; %s", *risk)
        except ReplyError as error:
            logger.info(
                "the configuration of the broker (TAILRACE_EVENTS) cannot be read, so its durability is unknown: %s",
                error.reply,
            )
        except BrokerError:
            pass  # the next request reports the error

    async def close(self) -> None:
        """Close the connections for writes and reads."""
        await self.writing.close()
        await self.reading.close()


async def _does(link: BrokerConnection, command: Command) -> bool:
    try:
        [reply] = await link.run(command)
    except BrokerError:
        return False
    return not isinstance(reply, ReplyError)


def parse_address(url: str) -> Address:
    """Parse the URL of a broker.

    Raises:
        ConfigurationError: The URL is not valid, or the client library is not installed.
    """
    if urlsplit(url).scheme not in ("redis", "rediss", "unix"):
        raise ConfigurationError(
            "TAILRACE_EVENTS: not the address of a Valkey or Redis server; use redis://HOST:PORT/0, rediss://… or unix://PATH"
        )
    try:
        from redis.asyncio.connection import ConnectionPool, SSLConnection, UnixDomainSocketConnection
    except ImportError:
        raise ConfigurationError("TAILRACE_EVENTS needs a client: pip install 'tailrace[redis]'") from None
    try:
        # This connection only parses the URL. It is never opened.
        parts: Any = cast("Any", ConnectionPool).from_url(url, protocol=2).make_connection()
    except (ValueError, TypeError) as error:
        # The URL may contain a password.
        raise ConfigurationError(
            f"TAILRACE_EVENTS: the address cannot be used ({type(error).__name__})"
        ) from None

    async def connect(protocol: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(parts, UnixDomainSocketConnection):
            await loop.create_unix_connection(protocol, cast("Any", parts).path)
            return
        tls = cast("Any", parts).ssl_context.get() if isinstance(parts, SSLConnection) else None
        await loop.create_connection(protocol, parts.host, parts.port, ssl=tls)

    greeting: list[Command] = []
    if parts.username:
        greeting.append((b"AUTH", parts.username, parts.password or ""))
    elif parts.password:
        greeting.append((b"AUTH", parts.password))
    if parts.client_name:
        greeting.append((b"CLIENT", b"SETNAME", parts.client_name))
    if parts.db:
        greeting.append((b"SELECT", parts.db))
    return Address(connect, tuple(greeting))

"""Valkey or Redis as nodes use it: a few connections, bounded times, and whether it works at all.

Whatever goes wrong is a `BrokerError`; the connection is made anew at the next use. Nobody who writes waits for a broker
that is known not to work: `Broker.works` says so at once, and `Broker.watch` finds out when it works again.
"""

from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

import anyio

from tailrace.server.cluster.link import TIMEOUT, BrokerError, Connect, Link, ReplyError, Subscriber
from tailrace.wrappers import ConfigurationError

PROBE_INTERVAL = 0.25
"""Seconds between two tries to reach a broker that does not work."""


class Broker:
    """The broker of a node's events and commands.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``, as redis-py has it.
        timeout: Seconds for a connection and an answer.

    Attributes:
        writing: For what is kept.
        reading: For what is looked up.

    Raises:
        ConfigurationError: The address is none, or the client is not installed.
    """

    def __init__(self, url: str, *, timeout: float = TIMEOUT) -> None:
        self._connect = _connector(url)
        self._timeout = timeout
        self.writing = self.link()
        self.reading = self.link()
        self._failed = anyio.Event()
        self._works = True

    def link(self) -> Link:
        """A further connection."""
        return Link(self._connect, self._timeout)

    def subscriber(self, began: Callable[[bytes], None], heard: Callable[[bytes, bytes], None]) -> Subscriber:
        """A further connection, for what is published; as `Subscriber`."""
        return Subscriber(self._connect, began, heard, self._timeout)

    @property
    def works(self) -> bool:
        """Whether it did when it was last asked."""
        return self._works

    def fail(self) -> None:
        """Say that it does not work: it is not asked again before it answers `watch`."""
        if self._works:
            self._works = False
            self._failed.set()

    async def watch(self) -> None:
        """For ever: find out when a broker that failed works again."""
        probe = self.link()
        try:
            while True:
                await self._failed.wait()
                await anyio.sleep(PROBE_INTERVAL)
                if await self.answers(probe):
                    self._failed = anyio.Event()
                    self._works = True
        finally:
            with anyio.CancelScope(shield=True):
                await probe.close()

    async def answers(self, link: Link | None = None) -> bool:
        """Ask it whether it works: not while it loads its data, for example."""
        try:
            [reply] = await (link or self.reading).run((b"PING",))
        except BrokerError:
            return False
        return not isinstance(reply, ReplyError)

    async def close(self) -> None:
        """Close the connections."""
        await self.writing.close()
        await self.reading.close()


def _connector(url: str) -> Connect:
    if urlsplit(url).scheme not in ("redis", "rediss", "unix"):
        raise ConfigurationError(
            "TAILRACE_EVENTS: not the address of a Valkey or Redis; use redis://HOST:PORT/0, rediss://… or unix://PATH"
        )
    try:
        from redis.asyncio.connection import ConnectionPool
    except ImportError:
        raise ConfigurationError("TAILRACE_EVENTS needs a client: pip install 'tailrace[redis]'") from None
    try:
        # Its answers are taken as they come (`link`); version 2 of the protocol has them as lists.
        pool = cast("Any", ConnectionPool).from_url(url, protocol=2, socket_timeout=None)
    except (ValueError, TypeError) as error:
        # The address may hold a password: it is not repeated.
        raise ConfigurationError(
            f"TAILRACE_EVENTS: the address cannot be used ({type(error).__name__})"
        ) from None
    return pool.make_connection

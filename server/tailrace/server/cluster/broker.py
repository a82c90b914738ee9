"""Valkey or Redis as nodes use it: a few connections, bounded times, and whether it works at all.

Whatever goes wrong is a `BrokerError`; the connection is made anew at the next use. Nobody who writes waits for a broker
that is known not to work: `Broker.works` says so at once, and `Broker.watch` finds out when it works again.
"""

import logging
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

import anyio

from tailrace.server.cluster.link import TIMEOUT, BrokerError, Command, Connect, Link, ReplyError, Subscriber
from tailrace.wrappers import ConfigurationError

logger = logging.getLogger("tailrace.server")

PROBE_INTERVAL = 0.25
"""Seconds between two tries to reach a broker that does not work."""

_PROBE_KEY = b"tailrace:probe"

_SETTINGS = {
    "appendonly": ("yes", "what clients were shown is lost when it stops"),
    "appendfsync": ("always", "what clients were shown in the last seconds may be lost when it stops"),
    "maxmemory-policy": ("noeviction", "it may throw streams away while they are read"),
}
"""What it has to be told so that nothing that was shown is lost, and what happens otherwise."""


class Broker:
    """The broker of a node's events and commands.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``, as redis-py has it.
        timeout: Seconds for a connection and an answer.

    Attributes:
        writing: For what is kept.
        reading: For what is looked up.
        refuses: It answers, and takes nothing: it has no room, or may not be written to.

    Raises:
        ConfigurationError: The address is none, or the client is not installed.
    """

    def __init__(self, url: str, *, timeout: float = TIMEOUT) -> None:
        self._connect = _connector(url)
        self._timeout = timeout
        self.writing = self.link()
        self.reading = self.link()
        self.refuses = False
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

    def fail(self, error: BrokerError) -> None:
        """Say that it does not work, and why: it is not asked again before it does what `watch` asks of it."""
        if not self._works:
            return
        self._works = False
        self._failed.set()
        if isinstance(error, ReplyError):  # of a connection that broke, those say so who listen on one
            self.refuses = True
            logger.warning(
                "the broker (TAILRACE_EVENTS) takes no events, which go to the database until it does: %s",
                error.reply,
            )

    async def watch(self) -> None:
        """For ever: find out when a broker that failed works again."""
        probe = self.link()
        try:
            while True:
                await self._failed.wait()
                await anyio.sleep(PROBE_INTERVAL)
                # Something to keep: one without room answers a PING, too.
                if await _does(probe, (b"SET", _PROBE_KEY, b"", b"PX", 1000)):
                    if self.refuses:
                        logger.info("the broker (TAILRACE_EVENTS) takes events again")
                    self._failed, self.refuses = anyio.Event(), False
                    self._works = True
                    await self.warn()
        finally:
            with anyio.CancelScope(shield=True):
                await probe.close()

    async def answers(self) -> bool:
        """Ask it whether it works: not while it loads its data, for example."""
        return await _does(self.reading, (b"PING",))

    async def weaknesses(self) -> list[tuple[str, str]]:
        """What it may lose as it is set up, each with what can be done, in plain words; nothing where it loses nothing.

        Raises:
            ReplyError: It does not let its settings be seen.
            BrokerError: It does not work.
        """
        commands = [(b"CONFIG", b"GET", name.encode()) for name in _SETTINGS]
        replies = await self.reading.run(*commands)
        found: list[tuple[str, str]] = []
        for (name, (wanted, loss)), reply in zip(_SETTINGS.items(), replies, strict=True):
            if isinstance(reply, ReplyError):
                raise reply
            given = reply[1].decode("utf-8", "replace") if len(reply) > 1 else ""
            if given not in ("", wanted):
                found.append((f"{name} is {given}: {loss}", f"set it to {wanted}"))
                if name == "appendonly":
                    break  # how often it writes to the disk what it does not write is no matter
        return found

    async def warn(self) -> None:
        """Say in the log what it may lose as it is set up."""
        try:
            for weakness in await self.weaknesses():
                logger.warning("the broker (TAILRACE_EVENTS): %s; %s", *weakness)
        except ReplyError as error:
            logger.info(
                "whether the broker (TAILRACE_EVENTS) keeps what it is given cannot be seen: %s", error.reply
            )
        except BrokerError:
            pass  # which whoever uses it next finds out

    async def close(self) -> None:
        """Close the connections."""
        await self.writing.close()
        await self.reading.close()


async def _does(link: Link, command: Command) -> bool:
    try:
        [reply] = await link.run(command)
    except BrokerError:
        return False
    return not isinstance(reply, ReplyError)


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

"""Valkey or Redis as nodes use it: a few connections, bounded times, and whether it works at all.

A connection is asked for several things in one round trip (`Link.run`) or waits for one (`Link.wait`). Whatever goes
wrong is a `BrokerError`; the connection is made anew at the next use. Nobody who writes waits for a broker that is known
not to work: `Broker.works` says so at once, and `Broker.watch` finds out when it works again.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import anyio

from tailrace.wrappers import ConfigurationError, StoreError

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection  # an extra

TIMEOUT = 2.0
"""Seconds that the broker has for a connection and an answer; with less, a pause of a shared machine is trouble."""

PROBE_INTERVAL = 0.25
"""Seconds between two tries to reach a broker that does not work."""

Command = Sequence[bytes | str | int]


class BrokerError(StoreError):
    """The broker cannot be reached, or does not do what it is asked."""


class ReplyError(BrokerError):
    """The broker answered a command with an error.

    Attributes:
        reply: In its words.
    """

    def __init__(self, reply: str) -> None:
        super().__init__(f"the broker (TAILRACE_EVENTS) refused: {reply}")
        self.reply = reply


class Link:
    """One connection to the broker, made when it is first used, and anew after an error.

    Args:
        connect: Makes the connection, closed as yet.
        timeout: Seconds for an answer.
    """

    def __init__(self, connect: "Callable[[], AbstractConnection]", timeout: float = TIMEOUT) -> None:
        self._connect = connect
        self._timeout = timeout
        self._connection: AbstractConnection | None = None
        self._using = anyio.Lock(fast_acquire=True)

    async def run(self, *commands: Command) -> list[Any]:
        """Have commands carried out in one round trip; gives what each was answered, a `ReplyError` for an error.

        Cancelling closes the connection: whether the commands are carried out is open then.

        Raises:
            BrokerError: There is no answer; whether the commands were carried out is open.
        """
        async with self._using:
            return await self._exchange(commands, self._timeout)

    async def wait(self, packed: Sequence[bytes], seconds: float) -> Any:
        """Send a command that waits at the broker, already encoded (`pack`), and give its answer.

        Args:
            packed: The command.
            seconds: How long it waits at most.

        Raises:
            BrokerError: As `run`; also when the answer is an error.
        """
        async with self._using:
            [answer] = await self._exchange((), self._timeout + seconds, packed)
        if isinstance(answer, ReplyError):
            raise answer
        return answer

    async def close(self) -> None:
        """Close the connection; it can be used again."""
        connection: Any = self._connection
        self._connection = None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def _exchange(
        self, commands: Sequence[Command], seconds: float, packed: Sequence[bytes] = ()
    ) -> list[Any]:
        from redis.exceptions import RedisError

        try:
            with anyio.fail_after(seconds):
                connection = self._connection
                if connection is None:
                    connection = self._connection = self._connect()
                    await connection.connect()
                await connection.send_packed_command(packed or pack(*commands), check_health=False)
                return [await _reply(connection) for _ in (commands or (None,))]
        except (RedisError, OSError, TimeoutError, EOFError) as error:
            await self._abandon()
            told = str(error) or type(error).__name__
            raise BrokerError(f"the broker (TAILRACE_EVENTS) cannot be reached: {told}") from error
        except BaseException:
            await self._abandon()
            raise

    async def _abandon(self) -> None:
        with anyio.CancelScope(shield=True):
            await self.close()


async def _reply(connection: "AbstractConnection") -> Any:
    from redis.exceptions import ResponseError

    typed: Any = connection
    try:
        return await typed.read_response(disable_decoding=True, timeout=float("inf"))
    except ResponseError as error:
        return ReplyError(str(error))


def pack(*commands: Command) -> list[bytes]:
    """Commands as the broker reads them."""
    pieces: list[bytes] = []
    for command in commands:
        pieces.append(b"*%d\r\n" % len(command))
        pieces += map(pack_word, command)
    return [b"".join(pieces)]


def pack_word(word: bytes | str | int) -> bytes:
    """One word of a command as the broker reads it."""
    raw = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogatepass")
    return b"$%d\r\n%b\r\n" % (len(raw), raw)


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


def _connector(url: str) -> "Callable[[], AbstractConnection]":
    if urlsplit(url).scheme not in ("redis", "rediss", "unix"):
        raise ConfigurationError(
            "TAILRACE_EVENTS: not the address of a Valkey or Redis; use redis://HOST:PORT/0, rediss://… or unix://PATH"
        )
    try:
        from redis.asyncio.connection import ConnectionPool
    except ImportError:
        raise ConfigurationError("TAILRACE_EVENTS needs a client: pip install 'tailrace[redis]'") from None
    try:
        # Its answers are taken as they come; version 2 of the protocol has them as lists.
        pool = cast("Any", ConnectionPool).from_url(url, protocol=2, socket_timeout=None)
    except (ValueError, TypeError) as error:
        # The address may hold a password: it is not repeated.
        raise ConfigurationError(
            f"TAILRACE_EVENTS: the address cannot be used ({type(error).__name__})"
        ) from None
    return pool.make_connection

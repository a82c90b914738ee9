"""Connections to Valkey or Redis: commands in one round trip, or what is published on channels.

The client makes a connection (names and passwords, TLS, the database); after that its bytes are ours. Commands are written
at once, however many wait for answers, and answers are handed out in their order: nobody who asks for something waits for
somebody else's round trip, in which the broker may write to its disk. A time-out is one timer a connection, not one a
command.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from hashlib import sha1
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import anyio

from tailrace.wrappers import StoreError

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection  # an extra

logger = logging.getLogger("tailrace.server")

TIMEOUT = 2.0
"""Seconds that the broker has for a connection and an answer; with less, a pause of a shared machine is trouble."""

PING_INTERVAL = 1.0
"""Seconds between two looks whether a connection is alive on which nothing is asked."""

_NOT_YET: Any = object()

Command = Sequence[bytes | str | int]

Connect = Callable[[], "AbstractConnection"]
"""Makes a connection, closed as yet."""


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


def pack(command: Command) -> bytes:
    """A command as the broker reads it."""
    import hiredis  # with the client

    packing: Any = hiredis  # its types know commands of one word
    return packing.pack_command(tuple(command))


class _Asked(NamedTuple):
    future: asyncio.Future[list[Any]]
    replies: list[Any]
    commands: int
    deadline: float


class _Exchange(asyncio.Protocol):
    """An open connection, from the client's handshake to its end.

    Args:
        connection: Of the client; kept, as it closes its transport when nobody holds it.
        heard: Takes everything that comes, on a connection on which nothing is asked.
    """

    def __init__(self, connection: Any, heard: Callable[[Any], None] | None) -> None:
        from hiredis import Reader

        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._heard = heard
        self._asked: deque[_Asked] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._reader: Any = Reader(replyError=ReplyError, notEnoughData=_NOT_YET)
        self.over: asyncio.Future[BrokerError] = self._loop.create_future()
        self._transport: asyncio.Transport = connection._writer.transport
        self._transport.set_protocol(self)
        if self._transport.is_closing():
            self.end(None)

    def ask(self, data: bytes, count: int, seconds: float) -> asyncio.Future[list[Any]]:
        """Write commands; gives the answers, a `ReplyError` for an error.

        Raises:
            BrokerError: The connection is closed.
        """
        if self.over.done():
            raise self.over.result()
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self._asked.append(_Asked(future, [], count, self._loop.time() + seconds))
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._look)
        self._transport.write(data)
        return future

    def tell(self, data: bytes) -> None:
        """Write a command whose answer is heard."""
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Hand out what has come."""
        reader = self._reader
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not _NOT_YET:
                if self._heard is not None:
                    self._heard(reply)
                    continue
                asked = self._asked[0]
                asked.replies.append(reply)
                if len(asked.replies) == asked.commands:
                    self._asked.popleft()
                    if not asked.future.done():  # whoever asked may have left
                        asked.future.set_result(asked.replies)
        except Exception as error:  # what comes after it cannot be understood either
            logger.exception("the broker says what cannot be understood")
            self.end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self.end(exc)

    def end(self, error: BaseException | None) -> None:
        """Close the connection; whoever waits for an answer is told."""
        if self.over.done():
            return
        told = str(error or "the connection was closed") or type(error).__name__
        failure = BrokerError(f"the broker (TAILRACE_EVENTS) cannot be reached: {told}")
        self.over.set_result(failure)
        self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        for asked in self._asked:
            if not asked.future.done():
                asked.future.set_exception(failure)
        self._asked.clear()

    async def close(self) -> None:
        """Close the connection, and let the client clear up."""
        self.end(None)
        with anyio.CancelScope(shield=True):
            await self._connection.disconnect(nowait=True)

    def _look(self) -> None:
        self._timer = None
        if not self._asked:
            return
        left = self._asked[0].deadline - self._loop.time()
        if left <= 0:
            self.end(TimeoutError("no answer in time"))
        else:
            self._timer = self._loop.call_later(left, self._look)


async def _open(connect: Connect, seconds: float, heard: Callable[[Any], None] | None = None) -> _Exchange:
    from redis.exceptions import RedisError

    connection: Any = connect()
    try:
        with anyio.fail_after(seconds):
            await connection.connect()
        return _Exchange(connection, heard)
    except (RedisError, OSError, TimeoutError, EOFError) as error:
        with anyio.CancelScope(shield=True):
            await connection.disconnect(nowait=True)
        told = str(error) or type(error).__name__
        raise BrokerError(f"the broker (TAILRACE_EVENTS) cannot be reached: {told}") from error
    except BaseException:
        with anyio.CancelScope(shield=True):
            await connection.disconnect(nowait=True)
        raise


class Link:
    """One connection to the broker, made when it is first used, and anew after an error.

    Args:
        connect: Makes the connection.
        timeout: Seconds for a connection, and for an answer.
    """

    def __init__(self, connect: Connect, timeout: float = TIMEOUT) -> None:
        self._connect = connect
        self._timeout = timeout
        self._exchange: _Exchange | None = None
        self._opening = anyio.Lock(fast_acquire=True)

    async def run(self, *commands: Command, waits: float = 0.0) -> list[Any]:
        """Have commands carried out in one round trip; gives what each was answered, a `ReplyError` for an error.

        Cancelling leaves open whether the commands are carried out; those of others are not touched.

        Args:
            commands: One at least.
            waits: Seconds for which one of them waits at the broker. Whatever is asked on this connection meanwhile waits,
                too.

        Raises:
            BrokerError: There is no answer; whether the commands were carried out is open.
        """
        exchange = self._exchange
        if exchange is None or exchange.over.done():
            exchange = await self._opened()
        data = b"".join(map(pack, commands))
        return await exchange.ask(data, len(commands), self._timeout + waits)

    async def close(self) -> None:
        """Close the connection; it can be used again."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            await exchange.close()

    async def _opened(self) -> _Exchange:
        async with self._opening:
            if self._exchange is not None:
                if not self._exchange.over.done():
                    return self._exchange  # somebody else made it
                await self.close()
            self._exchange = await _open(self._connect, self._timeout)
            return self._exchange


class Script:
    """A script at the broker, which is told once what it is.

    Args:
        source: In Lua.
    """

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._name = sha1(source, usedforsecurity=False).hexdigest().encode()

    async def run(self, link: Link, *calls: Command) -> list[Any]:
        """Run it, once for each call (a key, and arguments), in one round trip; gives what came of each.

        Raises:
            ReplyError: One of them failed; the others were run.
            BrokerError: As `Link.run`.
        """
        commands = [(b"EVALSHA", self._name, 1, *call) for call in calls]
        replies = await link.run(*commands)
        unknown = [at for at, reply in enumerate(replies) if _is_unknown_script(reply)]
        if unknown:  # the broker was restarted, or is new to us
            again = await link.run((b"SCRIPT", b"LOAD", self._source), *(commands[at] for at in unknown))
            for at, reply in zip(unknown, again[1:], strict=True):
                replies[at] = reply
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise reply
        return replies


def _is_unknown_script(reply: object) -> bool:
    return isinstance(reply, ReplyError) and reply.reply.startswith(("NOSCRIPT", "No matching script"))


class Subscriber:
    """A connection on which the broker says what is published on some channels.

    Args:
        connect: Makes the connection.
        began: Called with a channel from which on everything that is published there is heard.
        heard: Called with the channel and what was published there.
        timeout: Seconds for a connection, and for an answer.
    """

    def __init__(
        self,
        connect: Connect,
        began: Callable[[bytes], None],
        heard: Callable[[bytes, bytes], None],
        timeout: float = TIMEOUT,
    ) -> None:
        self._connect = connect
        self._timeout = timeout
        self._began = began
        self._heard = heard
        self._exchange: _Exchange | None = None
        self._last = 0.0

    def subscribe(self, *channels: bytes) -> None:
        """Hear some channels, too; nothing happens while there is no connection."""
        if channels and self._exchange is not None:
            self._exchange.tell(pack((b"SUBSCRIBE", *channels)))

    def unsubscribe(self, channel: bytes) -> None:
        """Hear a channel no more; nothing happens while there is no connection."""
        if self._exchange is not None:
            self._exchange.tell(pack((b"UNSUBSCRIBE", channel)))

    async def run(self, channels: Callable[[], Collection[bytes]]) -> None:
        """Hear until the connection breaks.

        Args:
            channels: Gives those to begin with, when there is a connection.

        Raises:
            BrokerError: There is no connection, or no more; what is published from now on is not heard.
        """
        self._last = asyncio.get_running_loop().time()
        exchange = await _open(self._connect, self._timeout, self._take)
        self._exchange = exchange
        try:
            self.subscribe(*channels())
            while not exchange.over.done():
                exchange.tell(pack((b"PING",)))
                with anyio.move_on_after(PING_INTERVAL):
                    await asyncio.shield(exchange.over)
                silent = asyncio.get_running_loop().time() - self._last
                if silent > PING_INTERVAL + self._timeout:
                    exchange.end(TimeoutError("it is silent"))
            raise exchange.over.result()
        finally:
            self._exchange = None
            await exchange.close()

    def _take(self, said: Any) -> None:
        self._last = asyncio.get_running_loop().time()
        if isinstance(said, ReplyError):
            raise said
        if not isinstance(said, list):
            return  # it is asked something before the first channel
        kind, channel, *rest = cast("list[bytes]", said)
        if kind == b"message":
            self._heard(channel, rest[0])
        elif kind == b"subscribe":
            self._began(channel)

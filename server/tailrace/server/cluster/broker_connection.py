"""Connections to Valkey or Redis: pipelined commands, and subscriptions to channels.

Each connection is an asyncio protocol on a transport. The client library (redis-py with hiredis) only parses URLs and replies,
and encodes commands. A command does not wait for the replies to earlier commands, which may include writes to the broker's disk.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from hashlib import sha1
from typing import Any, NamedTuple, cast

import anyio

from tailrace.wrappers import StoreError

logger = logging.getLogger("tailrace.server")

TIMEOUT = 2.0
"""Seconds to open a connection, and to wait for the reply to a command.

With a shorter limit, a pause of a busy machine would count as a failure.
"""

PING_INTERVAL = 1.0
"""Seconds between checks that an idle connection is alive."""

_NOT_YET: Any = object()

Command = Sequence[bytes | str | int]


class Address(NamedTuple):
    """The address of a broker.

    Attributes:
        connect: Opens a connection with the asyncio protocol that its argument creates.
        greeting: The first commands of each connection: authentication, client name, and selection of the database.
    """

    connect: Callable[[Callable[[], asyncio.Protocol]], Awaitable[object]]
    greeting: tuple[Command, ...] = ()


class BrokerError(StoreError):
    """The broker cannot be reached, or rejects a command."""


class ReplyError(BrokerError):
    """The broker replied to a command with an error.

    Attributes:
        reply: The text of the error.
    """

    def __init__(self, reply: str) -> None:
        super().__init__(f"the broker (TAILRACE_EVENTS) refused: {reply}")
        self.reply = reply


def pack(command: Command) -> bytes:
    """Encode a command in the broker's protocol."""
    import hiredis  # installed with the client library

    packing: Any = hiredis  # its type annotations do not allow commands of several words
    return packing.pack_command(tuple(command))


class _PendingRequest(NamedTuple):
    future: asyncio.Future[list[Any]]
    replies: list[Any]
    commands: int
    deadline: float


class _BrokerProtocol(asyncio.Protocol):
    """The asyncio protocol of one connection.

    Attributes:
        closed: A future. Its result is the error that ended the connection.
        on_message: Receives every reply of a connection for channels; None for a connection for commands.
    """

    def __init__(self) -> None:
        from hiredis import Reader

        self.on_message: Callable[[Any], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._pending: deque[_PendingRequest] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._create_reader: Callable[[], Any] = partial(
            Reader, replyError=ReplyError, notEnoughData=_NOT_YET
        )
        self._reader = self._create_reader()
        self.closed: asyncio.Future[BrokerError] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._lost = anyio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def send_request(self, data: bytes, count: int, seconds: float) -> asyncio.Future[list[Any]]:
        """Write commands, and return a future with their replies. A `ReplyError` is returned, not raised.

        Raises:
            BrokerError: The connection is closed.
        """
        if self.closed.done():
            raise self.closed.result()
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self._pending.append(_PendingRequest(future, [], count, self._loop.time() + seconds))
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._check_deadline)
        self.send(data)
        return future

    def send(self, data: bytes) -> None:
        """Write a command without waiting for a reply."""
        if self._transport is not None:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Assign received replies to their commands."""
        reader = self._reader
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not _NOT_YET:
                if self.on_message is not None:
                    self.on_message(reply)
                    continue
                pending = self._pending[0]
                pending.replies.append(reply)
                if len(pending.replies) == pending.commands:
                    self._pending.popleft()
                    if not pending.future.done():  # the caller may have been cancelled
                        pending.future.set_result(pending.replies)
        except Exception as error:  # the following bytes cannot be parsed either
            logger.exception("a reply of the broker cannot be parsed")
            self.end(error)

    def drop_buffer(self) -> None:
        """Release the buffer of the parser with earlier replies, unless a reply is incomplete."""
        if not self._reader.has_data():
            self._reader = self._create_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        self.end(exc)
        self._lost.set()

    def end(self, error: BaseException | None) -> None:
        """Close the connection. Pending commands fail."""
        if self.closed.done():
            return
        reason = str(error or "the connection was closed") or type(error).__name__
        failure = BrokerError(f"the broker (TAILRACE_EVENTS) cannot be reached: {reason}")
        self.closed.set_result(failure)
        if self._transport is not None:
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        for pending in self._pending:
            if not pending.future.done():
                pending.future.set_exception(failure)
        self._pending.clear()

    async def close(self) -> None:
        """Close the connection and wait until its socket is closed."""
        self.end(None)
        with anyio.CancelScope(shield=True):
            await self._lost.wait()

    def _check_deadline(self) -> None:
        self._timer = None
        if not self._pending:
            return
        left = self._pending[0].deadline - self._loop.time()
        if left <= 0:
            self.end(TimeoutError("no reply in time"))
        else:
            self._timer = self._loop.call_later(left, self._check_deadline)


async def _open(address: Address, seconds: float) -> _BrokerProtocol:
    protocol = _BrokerProtocol()
    try:
        with anyio.fail_after(seconds):
            await address.connect(lambda: protocol)
            if address.greeting:
                greeting = b"".join(map(pack, address.greeting))
                for reply in await protocol.send_request(greeting, len(address.greeting), seconds):
                    if isinstance(reply, ReplyError):
                        raise ConnectionError(reply.reply)
    except (OSError, TimeoutError) as error:
        protocol.end(error)
        raise protocol.closed.result() from error
    except BaseException:
        protocol.end(None)
        raise
    return protocol


class BrokerConnection:
    """One connection to the broker. It is opened at its first use, and at the first use after an error.

    Args:
        address: The address of the broker.
        timeout: As for `tailrace.server.cluster.broker.Broker`.
    """

    def __init__(self, address: Address, timeout: float = TIMEOUT) -> None:
        self._address = address
        self._timeout = timeout
        self._protocol: _BrokerProtocol | None = None
        self._opening = anyio.Lock(fast_acquire=True)

    async def run(self, *commands: Command, waits: float = 0.0) -> list[Any]:
        """Run commands in one round trip, and return their replies. A `ReplyError` is returned, not raised.

        After a cancellation, it is unknown whether the commands ran.

        Args:
            commands: The commands, at least one.
            waits: Seconds for which a command may block at the broker, and delay later commands.

        Raises:
            BrokerError: There is no reply. It is unknown whether the commands ran.
        """
        protocol = self._protocol
        if protocol is None or protocol.closed.done():
            protocol = await self._connect()
        data = b"".join(map(pack, commands))
        return await protocol.send_request(data, len(commands), self._timeout + waits)

    def drop_buffer(self) -> None:
        """Release the buffer of earlier replies."""
        if self._protocol is not None:
            self._protocol.drop_buffer()

    async def close(self) -> None:
        """Close the connection. The next use opens it again."""
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            await protocol.close()

    async def _connect(self) -> _BrokerProtocol:
        async with self._opening:
            if self._protocol is not None:
                if not self._protocol.closed.done():
                    return self._protocol  # another caller opened it
                await self.close()
            self._protocol = await _open(self._address, self._timeout)
            return self._protocol


class Script:
    """A script that runs at the broker."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._name = sha1(source, usedforsecurity=False).hexdigest().encode()

    async def run(
        self, link: BrokerConnection, *calls: Command, accept: Callable[[object], bool] = lambda _: False
    ) -> list[Any]:
        """Run the script once for each call, in one round trip, and return the results.

        Args:
            link: The connection.
            calls: The key and the arguments of each call.
            accept: Called with each error. If it returns True, the error becomes the result of its call; otherwise, it is raised.

        Raises:
            ReplyError: A call failed with an error that ``accept`` does not accept. The other calls ran.
            BrokerError: As for `BrokerConnection.run`.
        """
        commands = [(b"EVALSHA", self._name, 1, *call) for call in calls]
        replies = await link.run(*commands)
        unknown = [at for at, reply in enumerate(replies) if _is_unknown_script(reply)]
        if unknown:  # the broker was restarted, or has not received the script yet
            again = await link.run((b"SCRIPT", b"LOAD", self._source), *(commands[at] for at in unknown))
            for at, reply in zip(unknown, again[1:], strict=True):
                replies[at] = reply
        for reply in replies:
            if isinstance(reply, ReplyError) and not accept(reply):
                raise reply
        return replies


def _is_unknown_script(reply: object) -> bool:
    return isinstance(reply, ReplyError) and reply.reply.startswith(("NOSCRIPT", "No matching script"))


class Subscriber:
    """A connection that is subscribed to channels.

    Args:
        address: The address of the broker.
        on_subscribed: Called with a channel when its subscription is confirmed.
        on_message: Called with the channel and a published message.
        timeout: As for `tailrace.server.cluster.broker.Broker`.
    """

    def __init__(
        self,
        address: Address,
        on_subscribed: Callable[[bytes], None],
        on_message: Callable[[bytes, bytes], None],
        timeout: float = TIMEOUT,
    ) -> None:
        self._address = address
        self._timeout = timeout
        self._on_subscribed = on_subscribed
        self._on_message = on_message
        self._protocol: _BrokerProtocol | None = None
        self._last = 0.0

    def subscribe(self, *channels: bytes) -> None:
        """Subscribe to further channels. Do nothing without a connection."""
        if channels and self._protocol is not None:
            self._protocol.send(pack((b"SUBSCRIBE", *channels)))

    def unsubscribe(self, channel: bytes) -> None:
        """Unsubscribe from a channel. Do nothing without a connection."""
        if self._protocol is not None:
            self._protocol.send(pack((b"UNSUBSCRIBE", channel)))

    def drop_buffer(self) -> None:
        """Release the buffer of earlier messages."""
        if self._protocol is not None:
            self._protocol.drop_buffer()

    async def run(self, channels: Callable[[], Collection[bytes]]) -> None:
        """Receive messages until the connection breaks.

        Args:
            channels: Returns the initial channels. Called when the connection is open.

        Raises:
            BrokerError: The connection failed. Messages that are published before the next connection are lost.
        """
        self._last = asyncio.get_running_loop().time()
        protocol = await _open(self._address, self._timeout)
        protocol.on_message = self._receive
        self._protocol = protocol
        try:
            self.subscribe(*channels())
            while not protocol.closed.done():
                protocol.send(pack((b"PING",)))
                with anyio.move_on_after(PING_INTERVAL):
                    await asyncio.shield(protocol.closed)
                silent = asyncio.get_running_loop().time() - self._last
                if silent > PING_INTERVAL + self._timeout:
                    protocol.end(TimeoutError("it is silent"))
            raise protocol.closed.result()
        finally:
            self._protocol = None
            await protocol.close()

    def _receive(self, reply: Any) -> None:
        self._last = asyncio.get_running_loop().time()
        if isinstance(reply, ReplyError):
            raise reply
        if not isinstance(reply, list):
            return  # not a message or subscription, for example the reply to the first PING
        kind, channel, *rest = cast("list[bytes]", reply)
        if kind == b"message":
            self._on_message(channel, rest[0])
        elif kind == b"subscribe":
            self._on_subscribed(channel)

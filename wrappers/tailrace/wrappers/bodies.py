"""The body of a provider's answer as it comes, and the end of the wait when nothing comes.

Whoever reads a body waits for each piece of it. A timeout around every wait would cost as much as decoding what
arrives, and most answers arrive in thousands of pieces: here a reader only notes that it waits, and one timer an answer
looks now and then for how long it has.
"""

import asyncio
import math
from collections.abc import Callable
from contextvars import copy_context
from typing import Self, cast
from weakref import WeakKeyDictionary

import aiohttp
import anyio.lowlevel

SMALL_BYTES = 32 * 1024
"""How much of a body is taken at once in any case."""

ROUND_BYTES = 512 * 1024
"""How much is taken in one round of the event loop of bodies that have more: ten milliseconds, for which all else waits."""


class _Rounds:
    """Shares the rounds of an event loop out among bodies that come faster than they are taken.

    A provider that has a whole answer ready sends thousands of pieces with one read. Were all of them taken as they come,
    everything else (other streams, requests, a call that cancels) would wait for every such answer in every round.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = ROUND_BYTES

    def share(self, size: int, loop: asyncio.AbstractEventLoop) -> int:
        """How much of so many bytes of a body may be taken in this round; 0 for none."""
        if self._left <= 0:
            return 0
        if self._left == ROUND_BYTES:
            loop.call_soon(self._end)
        given = min(size, max(self._left, SMALL_BYTES))
        self._left -= given
        return given

    def _end(self) -> None:
        self._left = ROUND_BYTES


_ROUNDS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Rounds] = WeakKeyDictionary()


def _share(size: int, loop: asyncio.AbstractEventLoop) -> int:
    rounds = _ROUNDS.get(loop)
    if rounds is None:
        rounds = _ROUNDS[loop] = _Rounds()
    return rounds.share(size, loop)


class _PieceReader(aiohttp.StreamReader):
    """aiohttp's own reader of a body, for somebody who takes whatever there is and does not ask where HTTP's chunks end.

    aiohttp notes the end of each, and with every reading it takes up reading and parsing again, whether they were held up
    or not: several times what decoding a token costs, and providers send a token a chunk.
    """

    __slots__ = ()

    def feed_data(self, data: bytes, size: int = 0) -> bool:
        """As in the base class."""
        if not data:
            return False
        self._buffer.append(data)
        self._size += len(data)
        self.total_bytes += len(data)
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
        if self._size > self._high_water:
            self._protocol.pause_reading()
        return False

    def begin_http_chunk_receiving(self) -> None:
        """Nobody asks."""

    def end_http_chunk_receiving(self) -> None:
        """Nobody asks."""

    def begin(self) -> None:
        """Go on with a body that aiohttp held up for its many chunks, until somebody would read it as aiohttp does."""
        self._http_chunk_splits = None  # nobody asks, and it takes 0.8 KB
        if self._size <= self._high_water and not self._eof:
            self._protocol.resume_reading()

    def listen(self, listener: "_Listener") -> None:
        """Have a listener told of what comes next, in the place of a future."""
        self._waiter = cast("asyncio.Future[None]", listener)

    def leave(self, listener: "_Listener") -> None:
        """Have it told no more."""
        if self._waiter is cast("object", listener):
            self._waiter = None

    @property
    def has_more(self) -> bool:
        """Whether there is something to take already."""
        return bool(self._buffer)

    @property
    def is_over(self) -> bool:
        """Nothing will follow what is there."""
        return self._eof or self._exception is not None

    def arrival(self) -> asyncio.Future[None] | None:
        """What to wait for before `taken`; None when there is something to take, or nothing follows.

        Raises:
            Exception: The connection broke, and all that came before was taken.
        """
        if self._buffer:
            return None
        if self._exception is not None:
            raise self._exception
        if self._eof:
            return None
        self._waiter = self._loop.create_future()
        return self._waiter

    def taken(self) -> bytes | None:
        """What is there, or as much of it as may be taken in this round of the event loop.

        Returns:
            Empty at the end of the body; None when it is another round's.
        """
        buffer, size, offset = self._buffer, self._size, self._buffer_offset
        if not buffer:
            return b""
        share = size if size <= SMALL_BYTES else _share(size, self._loop)
        if not share:
            return None
        data = buffer[0] if len(buffer) == 1 else b"".join(buffer)
        buffer.clear()
        self._size = size - share
        if self._size:
            buffer.append(data)
            self._buffer_offset = offset + share
            data = data[offset : offset + share]
        elif offset:
            self._buffer_offset = 0
            data = data[offset:]
        if size > self._high_water >= self._size:
            self._protocol.resume_reading()
        return data


class _Listener:
    """Waits for the pieces of a body as a future does, and hands them on without anybody being woken.

    aiohttp tells it what it tells a future. Pieces that come with one read are handed on together: it tells of the first, and
    they are taken in the event loop's next round, in the context of whoever waits. Of many, each round takes some.

    Args:
        body: Whose pieces they are.
        reader: Has them.
        take: Given each; False ends the wait.

    Attributes:
        woken: Ends the wait: True when what came was taken, None when it has yet to be.
    """

    __slots__ = ("_body", "_context", "_loop", "_reader", "_take", "woken")

    def __init__(self, body: "PostedBody", reader: _PieceReader, take: Callable[[bytes], bool]) -> None:
        self._body = body
        self._reader = reader
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self.woken: asyncio.Future[bool | None] = self._loop.create_future()
        if reader.has_more:
            self.set_result(None)
        else:
            reader.listen(self)

    def done(self) -> bool:
        """As a future's."""
        return self.woken.done()

    def set_result(self, _result: None) -> None:
        """Something came, or the body is over."""
        self._loop.call_soon(self._hand_on, context=self._context)

    def set_exception(self, error: BaseException) -> None:
        """The connection broke, or what came could not be taken."""
        if not self.woken.done():
            self.woken.set_exception(error)

    def _hand_on(self) -> None:
        if self.woken.done():  # whoever waited has left: what came stays for the next
            return
        reader = self._reader
        try:
            data = reader.taken()
            if data is None:
                self._loop.call_soon(self._hand_on, context=self._context)
                return
            goes_on = not data or self._take(data)
        except Exception as error:
            self.set_exception(error)
            return
        if self.woken.done():  # cancelled by what was taken
            return
        self._body.waits_on()
        if not goes_on:
            self.woken.set_result(True)
        elif reader.has_more:
            self._loop.call_soon(self._hand_on, context=self._context)
        elif reader.is_over:
            self.woken.set_result(None)
        else:
            reader.listen(self)


# What `_PieceReader` leans on is aiohttp's own business: an aiohttp that is otherwise is read as it likes to be.
_KNOWN = {
    "_buffer",
    "_buffer_offset",
    "_eof",
    "_exception",
    "_high_water",
    "_http_chunk_splits",
    "_loop",
    "_protocol",
    "_size",
    "_waiter",
}
_IS_KNOWN = set(getattr(aiohttp.StreamReader, "__slots__", ())) >= _KNOWN


def _piece_reader(response: aiohttp.ClientResponse) -> _PieceReader | None:
    """The reader of a response as ours, with what has come already; None where it cannot be that."""
    reader = response.content
    if not _IS_KNOWN or type(reader) is not aiohttp.StreamReader:
        return None
    reader.__class__ = _PieceReader
    ours = cast("_PieceReader", reader)
    ours.begin()
    return ours


def _hear(closed: "asyncio.Future[None]") -> None:
    """What a connection ended with is told by what was under way on it; asyncio wants it to be heard all the same."""
    if not closed.cancelled():
        closed.exception()


class PostedBody:
    """The body of an answer, as an iterator of the pieces that it comes in. To be closed.

    The transport's read timeout is switched off: it costs a timer a piece. And where the peer breaks HTTP's framing, the
    transport closes the connection without a word to whoever waits: that is seen to here.

    Args:
        response: Its headers have been read; closed with this.
        timeout: Seconds that a reader waits for a piece. What the reader does between two pieces does not count.

    Attributes:
        take: Given pieces in the place of whoever waits for them, so that nobody need be woken. When it returns False, or
            raises, the wait is over: by an empty piece, as all that came was taken, or by what was raised. None for nobody.

    Raises:
        TimeoutError: While iterating: nothing came for too long.
        aiohttp.ClientError: While iterating: the connection broke; or an OSError.
    """

    def __init__(self, response: aiohttp.ClientResponse, timeout: float) -> None:
        self.take: Callable[[bytes], bool] | None = None
        self._response = response
        self._reader = _piece_reader(response)
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._waits_since = math.inf
        self._is_behind = False  # more had come than was taken at once
        self._is_silent = False
        self._timer = self._loop.call_later(timeout, self._look)
        self._closed: asyncio.Future[None] | None = None
        if response.connection is not None and response.connection.protocol is not None:
            response.connection.protocol.read_timeout = None
            self._closed = response.connection.protocol.closed
            if self._closed is None:
                self._end_broken()
            else:
                self._closed.remove_done_callback(_hear)  # one, however many answers a connection brings
                self._closed.add_done_callback(_hear)
                self._closed.add_done_callback(self._end_broken)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        reader = self._reader
        try:
            if reader is None:
                self._waits_since = self._loop.time()
                data = await self._response.content.readany()
            else:
                arrival = reader.arrival()
                if arrival is not None or self._is_behind:
                    self._is_behind = False
                    self.waits_on()
                    if self.take is not None:
                        if await self._all_taken(reader, self.take):
                            return b""
                    elif arrival is not None:
                        await arrival
                    else:
                        await anyio.lowlevel.checkpoint()  # everybody else is let run
                while (data := reader.taken()) is None:
                    await anyio.lowlevel.checkpoint()
                self._is_behind = reader.has_more
        except (aiohttp.ClientError, OSError) as error:
            if self._is_silent:
                raise TimeoutError from error
            raise
        finally:
            self._waits_since = math.inf
        if data:
            return data
        if self._is_silent:
            raise TimeoutError
        raise StopAsyncIteration

    async def _all_taken(self, reader: _PieceReader, take: Callable[[bytes], bool]) -> bool | None:
        listener = _Listener(self, reader, take)
        try:
            taken = await listener.woken
        finally:
            reader.leave(listener)
        if not taken:
            reader.arrival()  # raises what the connection broke with, meanwhile
        return taken

    def waits_on(self) -> None:
        """From now on somebody waits for the next piece."""
        self._waits_since = self._loop.time()

    def close(self) -> None:
        """Close the connection, unless the body was read to its end."""
        self.take = None  # which may hold this
        self._timer.cancel()
        if self._closed is not None:
            self._closed.remove_done_callback(self._end_broken)
        self._response.close()

    def _end_broken(self, _closed: object = None) -> None:
        """The connection is closed: where nobody has said so to whoever reads, this does."""
        reader = self._response.content
        if not reader.is_eof() and reader.exception() is None:
            reader.set_exception(aiohttp.ClientPayloadError("what came is not HTTP"))

    def _look(self) -> None:
        waited = self._loop.time() - self._waits_since
        if waited >= self._timeout:
            self._is_silent = True
            self._response.close()  # which ends the wait
        else:
            self._timer = self._loop.call_later(self._timeout - max(waited, 0.0), self._look)

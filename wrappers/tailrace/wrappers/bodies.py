"""The body of a provider's answer as it comes, and the end of the wait when nothing comes.

Whoever reads a body waits for each piece of it. A timeout around every wait would cost as much as decoding what
arrives, and most answers arrive in thousands of pieces: here a reader only notes that it waits, and one timer an answer
looks now and then for how long it has.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Protocol, Self

import aiohttp


class Body(Protocol):
    """The pieces of a body, in order."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The pieces.

        Raises:
            TimeoutError: Nothing came for too long.
            Exception: What the transport raises when the connection breaks.
        """
        ...


class PostedBody:
    """The body of an answer to a request of our own. To be closed.

    The transport's read timeout is switched off: it costs a timer a piece, and the transport forgets it when the peer
    breaks HTTP's framing.

    Args:
        response: Its headers have been read; closed with this.
        timeout: Seconds that a reader waits for a piece. What the reader does between two pieces does not count.
    """

    def __init__(self, response: aiohttp.ClientResponse, timeout: float) -> None:
        self._response = response
        self._read = response.content.readany
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._waits_since = math.inf
        self._is_silent = False
        self._timer = self._loop.call_later(timeout, self._look)
        if response.connection is not None and response.connection.protocol is not None:
            response.connection.protocol.read_timeout = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        self._waits_since = self._loop.time()
        try:
            data = await self._read()
        except (aiohttp.ClientError, OSError) as error:
            if self._is_silent:
                raise TimeoutError from error
            raise
        self._waits_since = math.inf
        if data:
            return data
        if self._is_silent:
            raise TimeoutError
        raise StopAsyncIteration

    def close(self) -> None:
        """Close the connection, unless the body was read to its end."""
        self._timer.cancel()
        self._response.close()

    def _look(self) -> None:
        waited = self._loop.time() - self._waits_since
        if waited >= self._timeout:
            self._is_silent = True
            self._response.close()  # which ends the wait
        else:
            self._timer = self._loop.call_later(self._timeout - max(waited, 0.0), self._look)


class ClientBody:
    """The body of an answer as an official client hands it out.

    Args:
        pieces: The client's iterator, whose timeout is the same but is not to be relied on.
        timeout: Seconds that a reader waits for a piece.
    """

    def __init__(self, pieces: AsyncIterator[bytes], timeout: float) -> None:
        self._pieces = pieces
        self._timeout = timeout + 1

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        async with asyncio.timeout(self._timeout):
            return await anext(self._pieces)

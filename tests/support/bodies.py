"""A provider that sends the body of an answer as a test tells it, and the body as a model reads it."""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp

from tailrace.wrappers.bodies import PostedBody

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
COMPRESSED = HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@asynccontextmanager
async def posted(answer: Answer, patience: float = 30) -> AsyncGenerator[PostedBody]:
    """The body of an answer to a request; the client is aiohttp's, with its read timeout as models have it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            await answer(writer)
        except ConnectionError:
            pass  # the client left
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/") as response,
    ):
        body = PostedBody(response, patience)
        try:
            yield body
        finally:
            body.close()


async def whole(body: PostedBody) -> bytes:
    return b"".join([piece async for piece in body])


class Told:
    """A provider that sends what it is told to, each thing by itself; as an `Answer`, its headers first.

    What it is told before a body is waited for arrives while it is: nothing runs between.
    """

    def __init__(self, head: bytes) -> None:
        self._head = head
        self._next: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._resets = False

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        writer.write(self._head)
        await writer.drain()
        while (data := await self._next.get()) is not None:
            writer.write(data)
            await writer.drain()
        if self._resets:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

    def send(self, *sent: bytes) -> None:
        for data in sent:
            self._next.put_nowait(data)

    def close(self) -> None:
        """Leave when everything is sent, be the body whole or not."""
        self._next.put_nowait(None)

    def reset(self) -> None:
        """Leave as a crashed process does."""
        self._resets = True
        self.close()


@asynccontextmanager
async def told(patience: float = 30, head: bytes = HEAD) -> AsyncGenerator[tuple[Told, PostedBody]]:
    """A body, and who sends it."""
    provider = Told(head)
    async with posted(provider, patience) as body:
        try:
            yield provider, body
        finally:
            provider.close()


class Taker:
    """Takes pieces of a body in the place of whoever waits for them.

    Args:
        then: Called behind each; without one, or with True, the next one is taken, too.

    Attributes:
        pieces: That were taken.
    """

    def __init__(self, then: Callable[[], bool] = lambda: True) -> None:
        self.pieces: list[bytes] = []
        self._then = then

    def __call__(self, data: bytes) -> bool:
        self.pieces.append(data)
        return self._then()

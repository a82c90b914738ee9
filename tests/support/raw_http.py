"""A client of HTTP/1.1 that reads when it is told to, byte by byte, and takes nothing for granted."""

import asyncio
import re
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Connection:
    """One connection to a server.

    Attributes:
        head: Of the response that is read: the line of its status, and its headers.
        chunks: Those that have been read of its body.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = b""
        self.chunks: list[bytes] = []
        self._reader = reader
        self._writer = writer

    @property
    def body(self) -> bytes:
        """What has been read of it."""
        return b"".join(self.chunks)

    def ask(
        self, method: str, path: str, body: bytes = b"", *, version: str = "1.1", **headers: object
    ) -> None:
        """Send a request, with an underscore for each hyphen in the name of a header."""
        given = {"host": "t", "content-type": "application/json", "content-length": len(body), **headers}
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
        start = "\r\n".join([f"{method} {path} HTTP/{version}", *lines, "", ""])
        self._writer.write(start.encode() + body)

    async def begin(self) -> None:
        """Read the head of a response."""
        self.chunks = []
        self.head = await self._reader.readuntil(b"\r\n\r\n")

    async def chunk(self) -> bytes:
        """Read one of the body; nothing when that was the last one."""
        size = await self._reader.readuntil(b"\r\n")
        assert re.fullmatch(rb"[0-9a-f]+\r\n", size), size
        data = await self._reader.readexactly(int(size, 16) + 2)
        assert data.endswith(b"\r\n"), data[-100:]
        self.chunks.append(data[:-2])
        return data[:-2]

    async def until(self, part: str) -> None:
        """Read on up to the chunk that this is in."""
        while part.encode() not in (found := await self.chunk()):
            assert found, f"the body ended without {part[:100]}"

    async def rest(self) -> None:
        """Read what there is still to be read of the body."""
        while await self.chunk():
            pass

    async def at_end(self) -> bool:
        """Whether nothing more comes, as the server has closed the connection."""
        return await self._reader.read(1) == b""

    def abort(self) -> None:
        """Leave as a program does that was killed, with what came and was not read: the server is sent a reset."""
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()

    def close(self) -> None:
        """Leave in good order."""
        self._writer.close()


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[Connection]:
    """A connection with little room for what is not read, open while the block runs."""
    host, port = url.removeprefix("http://").split(":")
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.setblocking(False)
    await asyncio.get_running_loop().sock_connect(opened, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=opened, limit=4096)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()

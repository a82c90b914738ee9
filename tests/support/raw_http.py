"""An HTTP/1.1 client that reads on request, byte by byte."""

import asyncio
import re
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Connection:
    """One connection to a server.

    Attributes:
        head: The status line and headers of the current response.
        chunks: The chunks of its body read so far.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = b""
        self.chunks: list[bytes] = []
        self._reader = reader
        self._writer = writer

    @property
    def body(self) -> bytes:
        """The part of the body read so far."""
        return b"".join(self.chunks)

    def ask(
        self, method: str, path: str, body: bytes = b"", *, version: str = "1.1", **headers: object
    ) -> None:
        """Send a request; underscores in the names of headers become hyphens."""
        given = {
            "host": "localhost",
            "content-type": "application/json",
            "content-length": len(body),
            **headers,
        }
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
        start = "\r\n".join([f"{method} {path} HTTP/{version}", *lines, "", ""])
        self._writer.write(start.encode() + body)

    async def begin(self) -> None:
        """Read the head of a response."""
        self.chunks = []
        self.head = await self._reader.readuntil(b"\r\n\r\n")

    async def chunk(self) -> bytes:
        """Read a chunk of the body; empty after the last one."""
        size = await self._reader.readuntil(b"\r\n")
        assert re.fullmatch(rb"[0-9a-f]+\r\n", size), size
        data = await self._reader.readexactly(int(size, 16) + 2)
        assert data.endswith(b"\r\n"), data[-100:]
        self.chunks.append(data[:-2])
        return data[:-2]

    async def until(self, part: str) -> None:
        """Read up to the chunk with this content."""
        while part.encode() not in (found := await self.chunk()):
            assert found, f"the body ended without {part[:100]}"

    async def rest(self) -> None:
        """Read the rest of the body."""
        while await self.chunk():
            pass

    async def at_end(self) -> bool:
        """Wait for more data; return whether the server has closed the connection."""
        return await self._reader.read(1) == b""

    def abort(self) -> None:
        """Abort the connection as a killed process does."""
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()

    def close(self) -> None:
        """Close the connection gracefully."""
        self._writer.close()


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[Connection]:
    """A connection with a small receive buffer, open while the block runs."""
    host, port = url.removeprefix("http://").split(":")
    client_socket = socket.socket()
    client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client_socket.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client_socket, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=client_socket, limit=4096)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()

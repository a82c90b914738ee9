"""A reader's connection: it writes a request, keeps what comes with the time that it came, and looks at nothing but the end.

What the bytes say is found out afterwards (`benchmarks.gateway.answers`), so that reading costs next to nothing while a
server is measured.
"""

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import cast

_LAST_CHUNK = b"\r\n0\r\n\r\n"
_TAIL = 32  # bytes of one read that are kept for what the next one completes
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(slots=True, eq=False)
class Recording:
    """One response as it arrived.

    Attributes:
        asked: When the request was written, in ns of the machine's monotonic clock.
        times: When each read came.
        reads: What each read held.
        broken: The connection ended before the response did.
    """

    asked: int
    times: list[int] = field(default_factory=list[int])
    reads: list[bytes] = field(default_factory=list[bytes])
    broken: bool = False

    @property
    def ended(self) -> int:
        """When the last read came."""
        return self.times[-1] if self.times else self.asked


class Connection(asyncio.Protocol):
    """A connection that is kept for one request after the other."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._recording = Recording(0)
        self._tail = b""
        self._head: bytes | None = None  # until it is whole
        self._left: int | None = None  # of a body whose length is known
        self._done: asyncio.Future[Recording] | None = None
        self._wanted = b""
        self._seen: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's have no such base

    def ask(self, request: bytes) -> "asyncio.Future[Recording]":
        """Write a request; gives its response once that is over, however it ended."""
        self._recording = Recording(time.monotonic_ns())
        self._tail, self._head, self._left, self._seen = b"", b"", None, None
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._done

    def seen(self, wanted: bytes) -> "asyncio.Future[None]":
        """Done when a read of the response to the last request held that, or when the response is over."""
        self._wanted = wanted
        self._seen = asyncio.get_running_loop().create_future()
        if self._done is None or self._done.done() or wanted in b"".join(self._recording.reads):
            self._seen.set_result(None)
        return self._seen

    @property
    def recording(self) -> Recording:
        """What has come so far of the last response."""
        return self._recording

    def close(self) -> None:
        """Leave."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Keep it, and see whether it was the last."""
        self._recording.times.append(time.monotonic_ns())
        self._recording.reads.append(data)
        if self._seen is not None and not self._seen.done() and self._wanted in self._tail + data:
            self._seen.set_result(None)
        if self._left is not None:
            self._left -= len(data)
        elif self._head is not None:
            self._look_at_head(self._head + data)
        self._tail = data[-_TAIL:] if len(data) >= _TAIL else (self._tail + data)[-_TAIL:]
        if self._left == 0 or (self._left is None and self._tail.endswith(_LAST_CHUNK)):
            self._end()

    def _look_at_head(self, data: bytes) -> None:
        """A response whose length is told beforehand (a refusal) ends with its last byte."""
        head, found, body = data.partition(_HEAD_END)
        self._head = None if found else data
        length = _LENGTH.search(head) if found else None
        if length is not None:
            self._left = int(length[1]) - len(body)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server left."""
        if self._done is not None and not self._done.done():
            self._recording.broken = True
            self._end()

    def _end(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(self._recording)
        if self._seen is not None and not self._seen.done():
            self._seen.set_result(None)


async def connect(port: int) -> Connection:
    """A connection to a server on this machine."""
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection

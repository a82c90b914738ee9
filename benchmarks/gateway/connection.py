"""A reader's connection, which records each read with its time.

The bytes are parsed after the measurement (`benchmarks.gateway.responses`).
"""

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import cast

_LAST_CHUNK = b"\r\n0\r\n\r\n"
_TAIL = 32  # bytes of one read that are kept to detect markers across reads
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(slots=True, eq=False)
class Recording:
    """A response as it arrived.

    Attributes:
        requested_at: When the request was written, in ns of the machine's monotonic clock.
        times: The time of each read.
        reads: The bytes of each read.
        broken: True if the connection ended before the end of the response.
    """

    requested_at: int
    times: list[int] = field(default_factory=list[int])
    reads: list[bytes] = field(default_factory=list[bytes])
    broken: bool = False

    @property
    def ended(self) -> int:
        """The time of the last read."""
        return self.times[-1] if self.times else self.requested_at


class Connection(asyncio.Protocol):
    """A connection for consecutive requests."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._recording = Recording(0)
        self._tail = b""
        self._head: bytes | None = None  # until it is complete
        self._left: int | None = None  # remaining bytes of a body of known length
        self._done: asyncio.Future[Recording] | None = None
        self._wanted = b""
        self._seen: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports have no such base class

    def ask(self, request: bytes) -> "asyncio.Future[Recording]":
        """Send a request, and return a future of the response, which may be incomplete."""
        self._recording = Recording(time.monotonic_ns())
        self._tail, self._head, self._left, self._seen = b"", b"", None, None
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._done

    def seen(self, wanted: bytes) -> "asyncio.Future[None]":
        """Return a future that is done when the last response contains the marker, or has ended."""
        self._wanted = wanted
        self._seen = asyncio.get_running_loop().create_future()
        if self._done is None or self._done.done() or wanted in b"".join(self._recording.reads):
            self._seen.set_result(None)
        return self._seen

    @property
    def recording(self) -> Recording:
        """Return the last response so far."""
        return self._recording

    def close(self) -> None:
        """Close the connection."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Record the data and detect the end of the response."""
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
        """Parse the head; a response with a content length (an error) ends with its last byte."""
        head, found, body = data.partition(_HEAD_END)
        self._head = None if found else data
        length = _LENGTH.search(head) if found else None
        if length is not None:
            self._left = int(length[1]) - len(body)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response, because the server closed the connection."""
        if self._done is not None and not self._done.done():
            self._recording.broken = True
            self._end()

    def _end(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(self._recording)
        if self._seen is not None and not self._seen.done():
            self._seen.set_result(None)


async def connect(port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection

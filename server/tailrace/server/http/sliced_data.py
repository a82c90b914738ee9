"""The data that a connection received, passed to its parser in slices between which other tasks run."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context

SLICE_BYTES = 16 * 1024
"""Bytes that are parsed at once: about 3 ms for a body in chunks of one byte, and 15 ms for 64 KiB of them."""


class SlicedData:
    """Passes data to a parser: at most `SLICE_BYTES` of a connection in one iteration of the event loop.

    An event loop reads up to 256 KB at once, and repeats that in the same iteration while the client sends as fast. Reading is
    paused while data waits here, so that never more than one read waits.

    uvicorn's flow control pauses this object in place of the transport: parsing then pauses as well.

    Args:
        transport: The connection.
        parse: The parser. It is called in the context in which this object was created, or in that of `feed`.
    """

    __slots__ = ("_context", "_is_paused", "_is_scheduled", "_parse", "_transport", "_waiting")

    def __init__(self, transport: asyncio.Transport, parse: Callable[[bytes], None]) -> None:
        self._transport = transport
        self._parse = parse
        self._context = copy_context()
        self._waiting = bytearray()
        self._is_paused = False
        self._is_scheduled = False

    def feed(self, data: bytes) -> None:
        """Parse data, or as much of it as may be parsed now."""
        if self._waiting:
            self._waiting += data
        elif len(data) <= SLICE_BYTES:
            self._parse(data)
        else:
            self._waiting += data
            self._parse_slice()

    def close(self) -> None:
        """Drop the data that waits, and the parser: it refers to the protocol, which would stay until garbage is collected."""
        self._waiting.clear()
        self._parse = _discard

    def pause_reading(self) -> None:
        """Parse and read nothing until `resume_reading`."""
        self._is_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Parse what waits, then read again."""
        self._is_paused = False
        if self._waiting:
            self._schedule()
        else:
            self._transport.resume_reading()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._resume_parsing, context=self._context)

    def _resume_parsing(self) -> None:
        self._is_scheduled = False
        if not self._is_paused and not self._transport.is_closing():
            self._parse_slice()

    def _parse_slice(self) -> None:
        data = bytes(self._waiting[:SLICE_BYTES])
        del self._waiting[:SLICE_BYTES]
        self._parse(data)
        if self._transport.is_closing():
            self._waiting.clear()
        elif self._waiting:
            self._transport.pause_reading()
            self._schedule()
        elif not self._is_paused:
            self._transport.resume_reading()


def _discard(_: bytes) -> None:
    """Ignore data of a closed connection."""

"""Passes the received data of a connection to the parser in slices."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context

SLICE_BYTES = 16 * 1024
"""Maximum bytes of a slice, which takes at most about 3 ms (with one-byte chunks)."""


class SlicedData:
    """Passes at most `SLICE_BYTES` of a connection to the parser in each iteration of the event loop.

    The event loop reads up to 256 KB at a time, which is too much to parse at once. uvicorn's flow control pauses this object
    instead of the transport, so that parsing is paused, too.

    Args:
        transport: The transport of the connection.
        parse: The parser.
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
        """Parse the first slice of the data, and schedule the parsing of the rest."""
        if self._waiting:
            self._waiting += data
        elif len(data) <= SLICE_BYTES:
            self._parse(data)
        else:
            self._waiting += data
            self._parse_slice()

    def close(self) -> None:
        """Delete waiting data, and the reference to the parser, which would be part of a cycle."""
        self._waiting.clear()
        self._parse = _discard

    def pause_reading(self) -> None:
        """Pause parsing and reading until `resume_reading`."""
        self._is_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume parsing. If no data waits, resume reading."""
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

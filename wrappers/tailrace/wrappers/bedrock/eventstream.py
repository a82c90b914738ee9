"""The binary framing of AWS event streams, ``application/vnd.amazon.eventstream``.

A frame is::

    total length   4 bytes, of the whole frame
    headers length 4 bytes
    checksum       4 bytes, CRC-32 of the eight before it
    headers        name length (1 byte), name, type (1 byte), value; one after the other
    payload
    checksum       4 bytes, CRC-32 of everything before it

All numbers are big-endian. Sans-IO.
"""

from struct import Struct
from struct import error as struct_error
from typing import NoReturn
from zlib import crc32

import msgspec

from tailrace.wrappers.errors import UpstreamError, UpstreamFault
from tailrace.wrappers.wire import MAX_EVENT_BYTES

HeaderValue = bool | int | bytes | str
"""A header's value: timestamps are milliseconds since 1970, UUIDs their 16 bytes."""

_PRELUDE = Struct("!III")
_CHECKSUM = Struct("!I")
_LENGTH = Struct("!H")
_SMALLEST = _PRELUDE.size + _CHECKSUM.size
_KEPT_HEADERS = 32  # a stream's frames have one set of headers for each type of event

# How the types of header values are written; those without an entry are told apart in `_read_value`.
_TRUE, _FALSE, _BYTES, _STRING, _UUID = 0, 1, 6, 7, 9
_INTEGERS = {2: Struct("!b"), 3: Struct("!h"), 4: Struct("!i"), 5: Struct("!q"), 8: Struct("!q")}
_UUID_BYTES = 16


class EventStreamFrame(msgspec.Struct, frozen=True, gc=False):
    """One frame, its checksums verified.

    Attributes:
        headers: By name (``:message-type``, ``:event-type``, …); shared between frames, not to be changed.
        payload: What it carries.
    """

    headers: dict[str, HeaderValue]
    payload: bytes


class EventStreamDecoder:
    """Decodes the frames of an event stream, cut into reads anywhere.

    Args:
        max_frame_bytes: Bound on one frame.

    Attributes:
        damage: What is wrong with the frame after those that were returned (a checksum, a length, a header);
            empty as long as nothing is. Behind such a frame no beginning of another can be found: whatever
            follows is ignored.
    """

    __slots__ = ("_bound", "_failed", "_held", "_known", "_needed", "_pieces", "damage")

    def __init__(self, *, max_frame_bytes: int = MAX_EVENT_BYTES) -> None:
        self.damage = ""
        self._bound = max_frame_bytes
        self._pieces: list[bytes] = []  # of the frame that is not whole
        self._held = 0
        self._needed = 0  # bytes of it that must be there before it is looked at again
        self._failed = False
        self._known: dict[bytes, dict[str, HeaderValue]] = {}

    @property
    def unfinished(self) -> bool:
        """A frame has begun whose end has yet to come."""
        return bool(self._held)

    def feed(self, data: bytes) -> list[EventStreamFrame]:
        """Take the next bytes of the body; return the frames that they complete, in order.

        Raises:
            UpstreamError: A frame is larger than the bound (fault ``event_too_large``). Frames before it in the
                same read are returned first; the error is then raised by the next call, be it `close`.
        """
        if self._failed:
            self._raise()
        if self.damage:
            return []
        if self._held:
            self._pieces.append(data)
            self._held += len(data)
            if self._held < self._needed:
                return []
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._held = 0
        frames: list[EventStreamFrame] = []
        try:
            rest = self._read_frames(data, frames)
        except ValueError as error:
            self.damage = str(error)
            return frames
        if self._failed:
            if not frames:
                self._raise()
        elif rest < len(data):
            self._pieces.append(data[rest:])
            self._held = len(data) - rest
        return frames

    def close(self) -> None:
        """The body is over.

        Raises:
            UpstreamError: As `feed`, where no call of it followed.
        """
        if self._failed:
            self._raise()

    def _read_frames(self, data: bytes, frames: list[EventStreamFrame]) -> int:
        """Add the whole frames; return where the rest begins."""
        position, end = 0, len(data)
        self._needed = _PRELUDE.size
        while end - position >= _PRELUDE.size:
            total, headers_size, checksum = _PRELUDE.unpack_from(data, position)
            if crc32(data[position : position + 8]) != checksum:
                raise ValueError("the checksum of a frame's lengths is wrong")
            if total > self._bound:
                self._failed = True
                break
            if total < headers_size + _SMALLEST:
                raise ValueError(f"a frame of {total} bytes cannot hold headers of {headers_size}")
            stop = position + total
            if stop > end:
                self._needed = total
                break
            headers_end = position + _PRELUDE.size + headers_size
            if crc32(data[position : stop - 4]) != _CHECKSUM.unpack_from(data, stop - 4)[0]:
                raise ValueError("the checksum of a frame is wrong")
            headers = self._read_headers(data[position + _PRELUDE.size : headers_end])
            frames.append(EventStreamFrame(headers, data[headers_end : stop - 4]))
            position = stop
        return position

    def _read_headers(self, data: bytes) -> dict[str, HeaderValue]:
        headers = self._known.get(data)
        if headers is None:
            headers = _parse_headers(data)
            if len(self._known) < _KEPT_HEADERS:
                self._known[data] = headers
        return headers

    def _raise(self) -> NoReturn:
        raise UpstreamError(
            f"one frame of the stream is larger than the allowed {self._bound} bytes",
            fault=UpstreamFault.TOO_LARGE,
        )


def _parse_headers(data: bytes) -> dict[str, HeaderValue]:
    """The headers in a frame's block of headers.

    Raises:
        ValueError: They are cut, of an unknown type, not UTF-8, or a name comes twice.
    """
    headers: dict[str, HeaderValue] = {}
    position = 0
    while position < len(data):
        name_end = position + 1 + data[position]
        if name_end >= len(data):
            raise ValueError("a frame's header is cut")
        name = data[position + 1 : name_end].decode()
        if name in headers:
            raise ValueError(f"a frame has the header {name!r} twice")
        try:
            headers[name], position = _read_value(data, name_end + 1, data[name_end])
        except struct_error:
            raise ValueError("a frame's header is cut") from None
    return headers


def _read_value(data: bytes, position: int, kind: int) -> tuple[HeaderValue, int]:
    """A header's value, and where it ends."""
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, position
    integer = _INTEGERS.get(kind)
    if integer is not None:
        return integer.unpack_from(data, position)[0], position + integer.size
    if kind == _UUID:
        end = position + _UUID_BYTES
    elif kind in (_BYTES, _STRING):
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        end = position + length
    else:
        raise ValueError(f"a frame's header has the unknown type {kind}")
    if end > len(data):
        raise ValueError("a frame's header is cut")
    value = data[position:end]
    return value.decode() if kind == _STRING else value, end

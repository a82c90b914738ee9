"""The binary framing of AWS event streams, ``application/vnd.amazon.eventstream``.

A frame is::

    total length   4 bytes, the length of the complete frame
    headers length 4 bytes
    checksum       4 bytes, CRC-32 of the previous 8 bytes
    headers        one after the other: name length (1 byte), name, type (1 byte), value
    payload
    checksum       4 bytes, CRC-32 of all previous bytes of the frame

All numbers are big-endian. The decoder is Sans-IO.
"""

from struct import Struct
from struct import error as struct_error
from typing import NoReturn
from zlib import crc32

import msgspec

from tailrace.wrappers.decoding.framing import MAX_EVENT_BYTES
from tailrace.wrappers.errors import UpstreamError, UpstreamFault

HeaderValue = bool | int | bytes | str
"""The value of a header. A timestamp is the number of milliseconds since 1970. A UUID is ``bytes`` of length 16."""

_PRELUDE = Struct("!III")
_CHECKSUM = Struct("!I")
_LENGTH = Struct("!H")
_SMALLEST = _PRELUDE.size + _CHECKSUM.size
_MAX_CACHED_HEADERS = 32  # all frames with the same type of event have the same headers

# Type codes of header values.
_TRUE, _FALSE, _BYTES, _STRING, _UUID = 0, 1, 6, 7, 9
_INTEGERS = {2: Struct("!b"), 3: Struct("!h"), 4: Struct("!i"), 5: Struct("!q"), 8: Struct("!q")}
_UUID_BYTES = 16


class EventStreamFrame(msgspec.Struct, frozen=True, gc=False):
    """One frame with verified checksums.

    Attributes:
        headers: Headers by name (``:message-type``, ``:event-type``, …). Several frames share the dict.
    """

    headers: dict[str, HeaderValue]
    payload: bytes


class EventStreamDecoder:
    """Decoder of the frames of an event stream. The data can be split at any byte.

    Args:
        max_frame_bytes: Maximum size of one frame in bytes.

    Attributes:
        damage: Description of the first invalid frame (wrong checksum, length or header); empty if there is none. All data after
            it is ignored, because the start of the next frame is unknown.
    """

    __slots__ = ("_bound", "_buffered", "_chunks", "_failed", "_header_cache", "_required", "damage")

    def __init__(self, *, max_frame_bytes: int = MAX_EVENT_BYTES) -> None:
        self.damage = ""
        self._bound = max_frame_bytes
        self._chunks: list[bytes] = []  # the received data of the incomplete frame
        self._buffered = 0
        # Number of bytes after which the incomplete frame is parsed again.
        self._required = 0
        self._failed = False
        self._header_cache: dict[bytes, dict[str, HeaderValue]] = {}

    @property
    def unfinished(self) -> bool:
        """True if an incomplete frame is buffered."""
        return bool(self._buffered)

    def feed(self, data: bytes) -> list[EventStreamFrame]:
        """Decode the next bytes of the body. Return the complete frames.

        Raises:
            UpstreamError: A frame exceeds the maximum size (fault ``event_too_large``). Complete frames before it are returned
                first, and the next call of `feed` or `close` raises the error.
        """
        if self._failed:
            self._raise()
        if self.damage:
            return []
        if self._buffered:
            self._chunks.append(data)
            self._buffered += len(data)
            if self._buffered < self._required:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._buffered = 0
        frames: list[EventStreamFrame] = []
        try:
            end = self._read_frames(data, frames)
        except ValueError as error:
            self.damage = str(error)
            return frames
        if self._failed:
            if not frames:
                self._raise()
        elif end < len(data):
            self._chunks.append(data[end:])
            self._buffered = len(data) - end
        return frames

    def close(self) -> None:
        """End the body.

        Raises:
            UpstreamError: The last call of `feed` found a frame that exceeds the maximum size.
        """
        if self._failed:
            self._raise()

    def _read_frames(self, data: bytes, frames: list[EventStreamFrame]) -> int:
        """Append the complete frames to ``frames``. Return the position after the last complete frame."""
        position, end = 0, len(data)
        self._required = _PRELUDE.size
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
                self._required = total
                break
            headers_end = position + _PRELUDE.size + headers_size
            if crc32(data[position : stop - 4]) != _CHECKSUM.unpack_from(data, stop - 4)[0]:
                raise ValueError("the checksum of a frame is wrong")
            headers = self._read_headers(data[position + _PRELUDE.size : headers_end])
            frames.append(EventStreamFrame(headers, data[headers_end : stop - 4]))
            position = stop
        return position

    def _read_headers(self, data: bytes) -> dict[str, HeaderValue]:
        headers = self._header_cache.get(data)
        if headers is None:
            headers = _parse_headers(data)
            if len(self._header_cache) < _MAX_CACHED_HEADERS:
                self._header_cache[data] = headers
        return headers

    def _raise(self) -> NoReturn:
        raise UpstreamError(
            f"a frame of the stream is larger than the allowed {self._bound} bytes",
            fault=UpstreamFault.TOO_LARGE,
        )


def _parse_headers(data: bytes) -> dict[str, HeaderValue]:
    """Parse the headers of a frame.

    Raises:
        ValueError: A header is truncated, is repeated, has an unknown type, or is not UTF-8.
    """
    headers: dict[str, HeaderValue] = {}
    position = 0
    while position < len(data):
        name_end = position + 1 + data[position]
        if name_end >= len(data):
            raise ValueError("a frame's header is truncated")
        name = data[position + 1 : name_end].decode()
        if name in headers:
            raise ValueError(f"a frame has the header {name!r} twice")
        try:
            headers[name], position = _read_value(data, name_end + 1, data[name_end])
        except struct_error:
            raise ValueError("a frame's header is truncated") from None
    return headers


def _read_value(data: bytes, position: int, kind: int) -> tuple[HeaderValue, int]:
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
        raise ValueError("a frame's header is truncated")
    value = data[position:end]
    return value.decode() if kind == _STRING else value, end

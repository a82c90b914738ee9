"""Decompression of response bodies. The output of each step is limited."""

import zlib
from collections import deque
from collections.abc import Iterable

from tailrace.wrappers.http.errors import TransportError

ACCEPTED = "gzip, deflate"
"""Supported content encodings: the value of the header ``accept-encoding``."""

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS  # zlib detects gzip or zlib from the header of the data
_GZIP_MAGIC = b"\x1f"  # the first of two magic bytes; the second may arrive later
_ZLIB_METHOD = 8  # lower four bits in the first byte of zlib data


class ContentDecoder:
    """Sans-IO decompressor for gzip and deflate. Deflate data may have a zlib header or no header.

    The output of each call is limited, because decompressed data may be a thousand times larger than compressed data.

    Args:
        encoding: The header ``content-encoding`` of the response.

    Raises:
        TransportError: The encoding is not supported.

    Attributes:
        has_more: True if `read` may return more output for the data that was fed.
    """

    __slots__ = ("_chunks", "_deflate", "_encoding", "_inflater", "has_more")

    def __init__(self, encoding: str) -> None:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise TransportError(
                f"the server sent content-encoding {encoding[:40]!r}; accepted are {ACCEPTED}"
            )
        self._encoding = encoding
        self._inflater = None
        self._chunks: deque[bytes] = deque()
        self.has_more = False

    def feed(self, chunks: Iterable[bytes]) -> None:
        """Add compressed data."""
        self._chunks.extend(chunks)
        self.has_more = self.has_more or bool(self._chunks)

    def read(self, limit: int) -> bytes:
        """Return up to ``limit`` decompressed bytes.

        Raises:
            TransportError: The data is invalid. Earlier calls have returned the valid output before the invalid data.
        """
        parts: list[bytes] = []
        while self.has_more and limit > 0:
            data = self._chunks.popleft() if self._chunks else b""
            try:
                part, rest = self._decompress(data, limit)
            except zlib.error as error:
                self._chunks.appendleft(data)
                if parts:
                    break
                raise TransportError(f"the body is not valid {self._encoding}: {error}") from None
            if rest:
                self._chunks.appendleft(rest)
            if part:
                parts.append(part)
            # If the output has reached the limit, the decompressor may have more output, even without new input.
            self.has_more = bool(self._chunks) or len(part) == limit
            limit -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Check that the data is complete.

        Raises:
            TransportError: The compressed data is incomplete.
        """
        if self._inflater is not None and not self._inflater.eof:
            raise TransportError(f"the body ends in the middle of its {self._encoding} data")

    def _decompress(self, data: bytes, limit: int) -> tuple[bytes, bytes]:
        inflater = self._inflater
        if inflater is None:
            raw = self._encoding == "deflate" and data[:1] and data[0] & 0x0F != _ZLIB_METHOD
            inflater = self._inflater = zlib.decompressobj(-zlib.MAX_WBITS if raw else _GZIP_OR_ZLIB)
        elif inflater.eof:
            if not data.startswith(_GZIP_MAGIC):
                return b"", b""  # padding after the compressed stream
            inflater = self._inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
        part = inflater.decompress(data, limit)
        return part, inflater.unused_data or inflater.unconsumed_tail

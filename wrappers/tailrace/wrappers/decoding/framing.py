"""Decoders that split an HTTP body into payloads: server-sent events and NDJSON.

Sans-IO. ``feed(data)`` decodes the bytes of one network read, and returns the complete payloads. ``close()`` must be called once
at the end of the body. Lines end with LF, CR or CRLF. A read may end within a character, and U+2028 or U+0085 in a JSON text does
not end a line. The size of each buffer is limited.
"""

import itertools
from typing import NoReturn

import msgspec

from tailrace.wrappers.errors import UpstreamError, UpstreamFault

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""Default maximum size of one event or line in bytes. Deltas with images have up to 2 MB."""

_LF, _CR = b"\n\r"  # integers, because searching for an integer is ten times faster than searching for bytes
_BOM = b"\xef\xbb\xbf"
# 15 digits of milliseconds are up to 30,000 years. ``int()`` would raise an exception for very long texts.
_MAX_RETRY_DIGITS = 15


class ServerSentEvent(msgspec.Struct, frozen=True, gc=False):
    """One server-sent event.

    Attributes:
        data: The data lines, joined with LF, as UTF-8.
        event: The type of the event; empty for the default type ``message``.
        id: The last event id of the stream up to this event; empty if there was none.
    """

    data: bytes
    event: str = ""
    id: str = ""


class _Lines:
    """Splits a byte stream into lines. At most one unfinished line is buffered.

    A byte order mark at the start is dropped. After a call of `fail`, `feed` and `close` raise the error.
    """

    __slots__ = ("_bound", "_buffered_size", "_fragments", "_head", "_skip_lf", "failed")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._fragments: list[bytes] = []
        self._buffered_size = 0
        self._skip_lf = False
        self._head: bytes | None = b""  # the first bytes, while they may be a byte order mark; then None
        self.failed = ""

    def feed(self, data: bytes) -> list[bytes]:
        if self.failed:
            self._raise()
        if self._head is not None:
            self._head += data
            if len(self._head) < len(_BOM) and _BOM.startswith(self._head):
                return []
            data = self._head.removeprefix(_BOM)
            self._head = None
        if self._skip_lf and data:
            # The previous read ended with CR. An LF at the start of this read belongs to the same line end.
            self._skip_lf = False
            if data[0] == _LF:
                data = data[1:]
        if not data:
            return []
        lines = data.splitlines()
        last = data[-1]
        if last == _LF or last == _CR:
            self._skip_lf = last == _CR
            rest = b""
        else:
            rest = lines.pop()
        if lines and self._fragments:
            self._fragments.append(lines[0])
            lines[0] = b"".join(self._fragments)
            self._fragments.clear()
            self._buffered_size = 0
            if len(lines[0]) > self._bound:
                return self._within_bound(lines)
        if rest:
            self._fragments.append(rest)
            self._buffered_size += len(rest)
        if self._buffered_size > self._bound or len(data) > self._bound:
            return self._within_bound(lines)
        return lines

    @property
    def idle(self) -> bool:
        """True if the last byte ended a line, and the next byte belongs to another line."""
        return not (self._fragments or self._skip_lf or self.failed) and self._head is None

    def close(self) -> bytes:
        if self.failed:
            self._raise()
        rest, self._head = b"".join(self._fragments) or self._head or b"", None
        self._fragments.clear()
        self._buffered_size = 0
        return rest

    def fail(self, unit: str, *, now: bool) -> None:
        """Stop reading. Raise the error now, or in the next call if complete items can be returned first."""
        self.failed = unit
        self._fragments.clear()
        if now:
            self._raise()

    def _within_bound(self, lines: list[bytes]) -> list[bytes]:
        """Return the lines before the first line that is too large, which may be unfinished."""
        accepted = list(itertools.takewhile(lambda line: len(line) <= self._bound, lines))
        if len(accepted) < len(lines) or self._buffered_size > self._bound:
            self.fail("line", now=not accepted)
        return accepted

    def _raise(self) -> NoReturn:
        raise UpstreamError(
            f"one {self.failed} of the stream is larger than the allowed {self._bound} bytes",
            fault=UpstreamFault.TOO_LARGE,
        )


class SSEDecoder:
    """Decoder of ``text/event-stream`` bodies (WHATWG HTML, section 9.2.6, "Server-sent events").

    As the standard requires, the decoder ignores comments, unknown and invalid fields, and events without a ``data`` line.

    Args:
        error_field: True to return each line ``error: {...}`` immediately as an event of the type ``error``. Some servers send
            this field, which is not standard.
        max_event_bytes: Maximum size in bytes of one line, and of all ``data`` lines of one event together.

    Attributes:
        idle: True if nothing is buffered, because the last read ended with a blank line.
        last_event_id: The event id at the last blank line. It is never the id of an incomplete event.
        retry: The latest reconnection time from the server in milliseconds; None if the server sent no ``retry`` field.
    """

    __slots__ = (
        "_bound",
        "_data",
        "_error_field",
        "_event",
        "_id",
        "_lines",
        "_size",
        "idle",
        "last_event_id",
        "retry",
    )

    def __init__(self, *, error_field: bool = False, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.last_event_id = ""
        self.retry: int | None = None
        self._error_field = error_field
        self._bound = max_event_bytes
        self._lines = _Lines(max_event_bytes)
        self._data: list[bytes] = []
        self._size = 0
        self._event = ""
        self._id = ""
        self.idle = False

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Decode the next bytes of the body. Return the complete events.

        Raises:
            UpstreamError: An event exceeds the maximum size (fault ``event_too_large``). Complete events before it are returned
                first, and the next call raises the error.
        """
        if self.idle and len(data) <= self._bound:
            event, payloads = self.complete_events(data)
            if payloads:
                return [ServerSentEvent(payload, event, self._id) for payload in payloads]
        events = self._parse_lines(self._lines.feed(data))
        self.idle = data[-2:] == b"\n\n" or data[-4:] == b"\r\n\r\n"
        self.idle = self.idle and not self._lines.failed
        return events

    def complete_events(self, data: bytes) -> tuple[str, list[bytes]]:
        """Return the events of a read with a common shape. This is a fast path of `feed` without side effects.

        The common shapes are one or several events with one data line each, and one event with an ``event`` line and one data
        line. Call this method only if the decoder is `idle`, and the read does not exceed the maximum size.

        Returns:
            The type of the events, and the data of each event. If the list is empty, the read has another shape; call `feed`.
        """
        if data[-2:] == b"\n\n":
            body = data[:-2]
        elif data[-4:] == b"\r\n\r\n":
            body = data[:-4]
        else:
            return "", []
        event = ""
        if body[:7] == b"event: ":
            name, _, body = body[7:].partition(b"\n")
            if _CR in name[:-1] or _LF in body:
                return "", []
            event = name.removesuffix(b"\r").decode("utf-8", "replace")
        if body[:6] != b"data: " or _CR in body:
            return "", []
        if _LF not in body:
            return event, [body[6:]]
        payloads = body[6:].split(b"\n\ndata: ")
        # No payload may contain a line end.
        return "", payloads if body.count(_LF) == 2 * len(payloads) - 2 else []

    def close(self) -> list[ServerSentEvent]:
        """End the body. Return the last event, even if no blank line follows it.

        The standard drops such an event, but some servers omit the last blank line. Check whether the payload is complete.
        `last_event_id` does not change. An unfinished line is used only if it is a ``data`` or ``error`` line, because a
        truncated ``id`` or ``retry`` would be wrong.

        Raises:
            UpstreamError: See `feed`.
        """
        rest = self._lines.close()
        events = self._parse_lines([rest]) if rest.partition(b":")[0] in (b"data", b"error") else []
        if self._data:
            events.append(ServerSentEvent(b"\n".join(self._data), self._event, self._id))
            self._data.clear()
        return events

    def _parse_lines(self, lines: list[bytes]) -> list[ServerSentEvent]:
        events: list[ServerSentEvent] = []
        pending, size, bound = self._data, self._size, self._bound
        for line in lines:
            if line[:6] == b"data: ":  # the most common line
                size += len(line)
                if size > bound:
                    break
                pending.append(line[6:])
            elif line:
                size += self._field(line, events)
                if size > bound:
                    break
            else:
                self.last_event_id = self._id
                if pending:
                    events.append(ServerSentEvent(b"\n".join(pending), self._event, self._id))
                    pending.clear()
                    size = 0
                self._event = ""
        self._size = size
        if size > bound:
            pending.clear()
            self._lines.fail("event", now=not events)
        return events

    def _field(self, line: bytes, events: list[ServerSentEvent]) -> int:
        """Read a line that is not a common data line. Return the number of bytes that it adds to the data of the event."""
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            return len(line)
        if name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
        elif name == b"retry":
            if value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
                self.retry = int(value)
        elif name == b"error" and self._error_field:
            events.append(ServerSentEvent(value, "error", self._id))
        return 0


class NDJSONDecoder:
    """Decoder of newline-delimited JSON: each line is one payload.

    Blank lines, and a byte order mark at the start, are dropped.

    Args:
        max_line_bytes: Maximum size of one line in bytes.
    """

    __slots__ = ("_lines",)

    def __init__(self, *, max_line_bytes: int = MAX_EVENT_BYTES) -> None:
        self._lines = _Lines(max_line_bytes)

    def feed(self, data: bytes) -> list[bytes]:
        """Decode the next bytes of the body. Return the complete payloads.

        Raises:
            UpstreamError: A line exceeds the maximum size (fault ``event_too_large``). Complete lines before it are returned
                first, and the next call raises the error.
        """
        return [line for line in self._lines.feed(data) if line.strip()]

    @property
    def idle(self) -> bool:
        """True if nothing is buffered, because the last read ended with a line end."""
        return self._lines.idle

    def close(self) -> list[bytes]:
        """End the body. Return the last line, even if no line end follows it.

        Raises:
            UpstreamError: See `feed`.
        """
        rest = self._lines.close()
        return [rest] if rest.strip() else []

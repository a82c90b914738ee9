"""Bytes of an HTTP body in, payloads out: decoders for Server-Sent Events and newline-delimited JSON.

Both are sans-IO and push-shaped: ``feed(data)`` takes whatever one read of the network gave and returns what is
complete by then; ``close()`` is called once at the end of the body. Lines are cut on bytes (LF, CR, CRLF) before
anything is decoded, so a character that is split between two reads is safe, and U+2028 or U+0085 inside a JSON
text never ends a line. Work is linear in the bytes fed, however they are cut, and what is buffered is bounded.
"""

import msgspec

from tailrace.wrappers.errors import UpstreamError, UpstreamFault

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""Default bound on one event (or line): image deltas of 2 MB are real, a body without line ends is not."""

_BOM = b"\xef\xbb\xbf"


class ServerSentEvent(msgspec.Struct, frozen=True, gc=False):
    """One dispatched event.

    Attributes:
        data: The data lines joined with LF; still UTF-8 bytes.
        event: The event's type; empty for the default (``message``).
        id: The last event id as of this event; empty when none was ever set.
    """

    data: bytes
    event: str = ""
    id: str = ""


def _too_large(what: str, bound: int) -> UpstreamError:
    return UpstreamError(
        f"one {what} of the stream is larger than the allowed {bound} bytes", fault=UpstreamFault.TOO_LARGE
    )


class _LineSplitter:
    """Cuts a byte stream into lines; holds at most one unfinished line, as pieces that are joined once."""

    __slots__ = ("_bound", "_held", "_pieces", "_skip_lf", "_what")

    def __init__(self, bound: int, what: str) -> None:
        self._bound = bound
        self._what = what
        self._pieces: list[bytes] = []
        self._held = 0
        self._skip_lf = False

    def feed(self, data: bytes) -> list[bytes]:
        if self._skip_lf and data:
            # The last line ended in CR at the end of a read: an LF that follows belongs to it.
            self._skip_lf = False
            if data[0] == 0x0A:
                data = data[1:]
        if not data:
            return []
        lines = data.splitlines()
        last = data[-1]
        if last == 0x0A or last == 0x0D:
            self._skip_lf = last == 0x0D
            rest = b""
        else:
            rest = lines.pop()
        if lines and self._pieces:
            self._pieces.append(lines[0])
            lines[0] = b"".join(self._pieces)
            self._pieces.clear()
            self._held = 0
        if rest:
            self._pieces.append(rest)
            self._held += len(rest)
            if self._held > self._bound:
                raise _too_large(self._what, self._bound)
        return lines

    def close(self) -> bytes:
        rest = b"".join(self._pieces)
        self._pieces.clear()
        self._held = 0
        return rest


class SSEDecoder:
    """Decodes ``text/event-stream`` as the WHATWG text says (HTML, "Server-sent events", 9.2.6).

    One leading BOM is dropped; comments, unknown fields and events without a ``data`` line are ignored; ``data``
    lines are joined with LF (a lone empty one gives an event with empty data); an ``id`` with NUL and a ``retry``
    that is not all digits are ignored.

    Args:
        error_field: Some servers report a failure in a line ``error: {...}``, a field that the standard does not
            know. True delivers each such line at once, as an event of type ``error``.
        max_event_bytes: Bound on the bytes held for one event.

    Attributes:
        last_event_id: The id most recently set by the server.
        retry: The reconnection time in milliseconds most recently set by the server; None when it set none.
    """

    __slots__ = (
        "_bound",
        "_data",
        "_error_field",
        "_event",
        "_head",
        "_lines",
        "_size",
        "last_event_id",
        "retry",
    )

    def __init__(self, *, error_field: bool = False, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.last_event_id = ""
        self.retry: int | None = None
        self._error_field = error_field
        self._bound = max_event_bytes
        self._lines = _LineSplitter(max_event_bytes, "line")
        self._head: bytes | None = b""  # the first bytes, until it is known whether they are a BOM
        self._data: list[bytes] = []
        self._size = 0
        self._event = ""

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Take the next bytes of the body; return the events that they complete, in order.

        Raises:
            UpstreamError: An event is larger than the bound (fault ``event_too_large``).
        """
        if self._head is not None:
            self._head += data
            if len(self._head) < len(_BOM) and _BOM.startswith(self._head):
                return []
            data = self._head.removeprefix(_BOM)
            self._head = None
        return self._take(self._lines.feed(data))

    def close(self) -> list[ServerSentEvent]:
        """The body is over. Returns the event that was never closed by a blank line, if there is one.

        The standard drops such an event; it is handed over here because servers do forget the last blank line,
        and only the caller can tell from its payload whether it is whole.
        """
        head, self._head = self._head or b"", None
        events = self._take(self._lines.feed(head)) if head else []
        rest = self._lines.close()
        return events + self._take([rest, b""] if rest else [b""])

    def _take(self, lines: list[bytes]) -> list[ServerSentEvent]:
        events: list[ServerSentEvent] = []
        pending = self._data
        for line in lines:
            if line[:6] == b"data: ":  # what nearly every line is
                self._size += len(line)
                pending.append(line[6:])
            elif line:
                self._field(line, events)
            else:
                if pending:
                    data = pending[0] if len(pending) == 1 else b"\n".join(pending)
                    events.append(ServerSentEvent(data, self._event, self.last_event_id))
                    pending.clear()
                    self._size = 0
                self._event = ""
        if self._size > self._bound:
            raise _too_large("event", self._bound)
        return events

    def _field(self, line: bytes, events: list[ServerSentEvent]) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._size += len(line) + 1  # an empty line of data is kept too, so it counts
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id":
            if b"\0" not in value:
                self.last_event_id = value.decode("utf-8", "replace")
        elif name == b"retry":
            if value.isdigit():
                self.retry = int(value)
        elif name == b"error" and self._error_field:
            events.append(ServerSentEvent(value, "error", self.last_event_id))


class NDJSONDecoder:
    """Decodes newline-delimited JSON: one payload a line, blank lines ignored.

    Args:
        max_line_bytes: Bound on the bytes held for one line.
    """

    __slots__ = ("_lines",)

    def __init__(self, *, max_line_bytes: int = MAX_EVENT_BYTES) -> None:
        self._lines = _LineSplitter(max_line_bytes, "line")

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes of the body; return the payloads that they complete, in order.

        Raises:
            UpstreamError: A line is larger than the bound (fault ``event_too_large``).
        """
        return [line for line in self._lines.feed(data) if line.strip()]

    def close(self) -> list[bytes]:
        """The body is over. Returns the last line when it was not ended by a newline."""
        rest = self._lines.close()
        return [rest] if rest.strip() else []

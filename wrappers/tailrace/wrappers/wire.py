"""Bytes of an HTTP body in, payloads out: decoders for Server-Sent Events and newline-delimited JSON.

Both are sans-IO and push-shaped: ``feed(data)`` takes whatever one read of the network gave and returns what is
complete by then; ``close()`` is called once at the end of the body. Lines are cut on bytes (LF, CR, CRLF) before
anything is decoded, so a character that is split between two reads is safe, and U+2028 or U+0085 inside a JSON
text never ends a line. Work is linear in the bytes fed, however they are cut, and what is buffered is bounded.
"""

import itertools
from typing import NoReturn

import msgspec

from tailrace.wrappers.errors import UpstreamError, UpstreamFault

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""Default bound on one event (or line): image deltas of 2 MB are real, a body without line ends is not."""

_LF, _CR = b"\n\r"  # as numbers: bytes are searched for a number ten times as fast as for bytes
_BOM = b"\xef\xbb\xbf"
_MAX_RETRY_DIGITS = 15  # thirty thousand years; int() raises for very long texts


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


class _Lines:
    """Cuts a byte stream into lines; holds at most one unfinished line, as pieces that are joined once.

    Drops one leading BOM. Once `fail` was called, nothing more is held and every call raises.
    """

    __slots__ = ("_bound", "_head", "_held", "_pieces", "_skip_lf", "failed")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._pieces: list[bytes] = []
        self._held = 0
        self._skip_lf = False
        self._head: bytes | None = b""  # the first bytes, until it is known whether they are a BOM
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
            # The last line ended in CR at the end of a read: an LF that follows belongs to it.
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
        if lines and self._pieces:
            self._pieces.append(lines[0])
            lines[0] = b"".join(self._pieces)
            self._pieces.clear()
            self._held = 0
            if len(lines[0]) > self._bound:
                return self._within_bound(lines)
        if rest:
            self._pieces.append(rest)
            self._held += len(rest)
        if self._held > self._bound or len(data) > self._bound:
            return self._within_bound(lines)
        return lines

    def close(self) -> bytes:
        if self.failed:
            self._raise()
        rest, self._head = b"".join(self._pieces) or self._head or b"", None
        self._pieces.clear()
        self._held = 0
        return rest

    def fail(self, what: str, *, now: bool) -> None:
        """Stop reading: raise at once, or at the next call when something whole must be handed over first."""
        self.failed = what
        self._pieces.clear()
        if now:
            self._raise()

    def _within_bound(self, lines: list[bytes]) -> list[bytes]:
        """The lines before the first one that is too large; a line that is not read to its end counts too."""
        kept = list(itertools.takewhile(lambda line: len(line) <= self._bound, lines))
        if len(kept) < len(lines) or self._held > self._bound:
            self.fail("line", now=not kept)
        return kept

    def _raise(self) -> NoReturn:
        raise UpstreamError(
            f"one {self.failed} of the stream is larger than the allowed {self._bound} bytes",
            fault=UpstreamFault.TOO_LARGE,
        )


class SSEDecoder:
    """Decodes ``text/event-stream`` as the WHATWG text says (HTML, "Server-sent events", 9.2.6).

    One leading BOM is dropped; comments, unknown fields and events without a ``data`` line are ignored; ``data``
    lines are joined with LF (a lone empty one gives an event with empty data); an ``id`` with NUL and a ``retry``
    that is not 1 to 15 digits are ignored.

    Args:
        error_field: Some servers report a failure in a line ``error: {...}``, a field that the standard does not
            know. True delivers each such line at once, as an event of type ``error``.
        max_event_bytes: Bound on one line, and on the ``data`` lines of one event together.

    Attributes:
        last_event_id: The id as of the last blank line, which is where the standard makes it valid: it never
            names an event that has not been delivered.
        retry: The reconnection time in milliseconds most recently set by the server; None when it set none.
    """

    __slots__ = (
        "_bound",
        "_data",
        "_error_field",
        "_event",
        "_id",
        "_idle",
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
        self._lines = _Lines(max_event_bytes)
        self._data: list[bytes] = []
        self._size = 0
        self._event = ""
        self._id = ""
        self._idle = False  # the last read ended with a blank line: nothing is begun, nothing is held

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Take the next bytes of the body; return the events that they complete, in order.

        Raises:
            UpstreamError: An event is larger than the bound (fault ``event_too_large``). Events before it in
                the same read are returned first; the error is then raised by the next call.
        """
        if self._idle and data[:6] == b"data: " and data[-2:] == b"\n\n" and len(data) <= self._bound:
            # Models stream one event a read: nearly every read is one data line and nothing else.
            payload = data[6:-2]
            if _LF not in payload and _CR not in payload:
                return [ServerSentEvent(payload, "", self._id)]
        events = self._take(self._lines.feed(data))
        self._idle = data[-2:] == b"\n\n" and not self._lines.failed
        return events

    def close(self) -> list[ServerSentEvent]:
        """The body is over. Returns the event that was never closed by a blank line, if there is one.

        The standard drops such an event; it is handed over here because servers do forget the last blank line,
        and only the caller can tell from its payload whether it is whole. `last_event_id` stays as it was. Of a
        line without an end only data counts: half an ``id`` or ``retry`` would be a wrong one.

        Raises:
            UpstreamError: See `feed`.
        """
        rest = self._lines.close()
        events = self._take([rest]) if rest.partition(b":")[0] in (b"data", b"error") else []
        if self._data:
            events.append(ServerSentEvent(b"\n".join(self._data), self._event, self._id))
            self._data.clear()
        return events

    def _take(self, lines: list[bytes]) -> list[ServerSentEvent]:
        events: list[ServerSentEvent] = []
        pending, size, bound = self._data, self._size, self._bound
        for line in lines:
            if line[:6] == b"data: ":  # what nearly every line is
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
                    data = pending.pop() if len(pending) == 1 else b"\n".join(pending)
                    events.append(ServerSentEvent(data, self._event, self._id))
                    pending.clear()
                    size = 0
                self._event = ""
        self._size = size
        if size > bound:
            pending.clear()
            self._lines.fail("event", now=not events)
        return events

    def _field(self, line: bytes, events: list[ServerSentEvent]) -> int:
        """Take a line that is not the usual one; give the bytes that it adds to the event's data."""
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
    """Decodes newline-delimited JSON: one payload a line, blank lines ignored, one leading BOM dropped.

    Args:
        max_line_bytes: Bound on one line.
    """

    __slots__ = ("_lines",)

    def __init__(self, *, max_line_bytes: int = MAX_EVENT_BYTES) -> None:
        self._lines = _Lines(max_line_bytes)

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes of the body; return the payloads that they complete, in order.

        Raises:
            UpstreamError: A line is larger than the bound (fault ``event_too_large``). Lines before it in the
                same read are returned first; the error is then raised by the next call.
        """
        return [line for line in self._lines.feed(data) if line.strip()]

    def close(self) -> list[bytes]:
        """The body is over. Returns the last line when it was not ended by a newline.

        Raises:
            UpstreamError: See `feed`.
        """
        rest = self._lines.close()
        return [rest] if rest.strip() else []

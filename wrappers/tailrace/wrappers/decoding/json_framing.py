"""Decoder of bodies that are a series of JSON objects. Sans-IO; see `tailrace.wrappers.decoding.framing`."""

import re
from typing import NoReturn

import msgspec

from tailrace.wrappers.decoding.framing import MAX_EVENT_BYTES, NDJSONDecoder, ServerSentEvent
from tailrace.wrappers.errors import UpstreamError, UpstreamFault

_LF, _CR = b"\n\r"  # integers
# Matches a complete string, or a character that begins or ends a string, an object or a list. Possessive quantifiers
# prevent backtracking.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["{}\[\]]', re.DOTALL)
_STRING_END = re.compile(rb'(?:[^"\\]++|\\.)*+"', re.DOTALL)
_QUOTE, _LIST = b'"['
_OPENERS = b"{["
_STRING_RUN = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_LEADING_SEPARATORS = b" \t\r\n,"  # bytes that may precede an element of an array
_TRAILING_SEPARATORS = b" \t\r\n,]"  # bytes that may follow an element of an array
_check_json = msgspec.json.Decoder(msgspec.Raw).decode


class JSONDecoder:
    """Decoder of a series of JSON objects, either on separate lines or as elements of one array.

    If a line end follows the first object, and the object itself contains no line end, each line is an object. Otherwise, objects
    may span several lines. Each object is returned as an event of the default type.

    Args:
        max_value_bytes: Maximum size of one object in bytes.

    Attributes:
        idle: True if nothing is buffered, because the last read ended after an object or a line.
    """

    __slots__ = (
        "_bound",
        "_buffered_size",
        "_depth",
        "_failed",
        "_first",
        "_fragments",
        "_in_string",
        "_lines",
        "_partial_escape",
        "_undecided",
        "idle",
    )

    def __init__(self, *, max_value_bytes: int = MAX_EVENT_BYTES) -> None:
        self.idle = False
        self._bound = max_value_bytes
        self._lines: NDJSONDecoder | None = None  # the decoder if each line is an object
        self._first = True  # True until the first object is complete
        # True after the first object, until the next byte shows whether each line is an object.
        self._undecided = False
        self._depth = 0
        self._in_string = False
        # A backslash at the end of the last read.
        self._partial_escape = b""
        self._fragments: list[bytes] = []
        self._buffered_size = 0
        self._failed = False

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Decode the next bytes of the body. Return the complete objects.

        Raises:
            UpstreamError: An object exceeds the maximum size (fault ``event_too_large``). Complete objects before it are returned
                first, and the next call raises the error.
        """
        lines = self._lines or self._decide(data)
        if lines is not None:
            complete = lines.feed(data)
            self.idle = lines.idle
            return [ServerSentEvent(line) for line in complete]
        if self._failed:
            self._raise()
        if not (self._depth or self._in_string or self._partial_escape) and len(data) <= self._bound:
            # Google separates elements with these bytes. An element may also contain them, so each element is checked.
            first, *further = data.split(b"\n,\r\n{")
            values = [_only_object(first, is_start=self._first)]
            values += [_only_object(b"{" + other) for other in further if values[0]]
            if all(values):
                self._first = False
                self.idle = True
                return [ServerSentEvent(value) for value in values]
        events: list[ServerSentEvent] = []
        self._scan(self._partial_escape + data, events)
        if self._buffered_size > self._bound:
            self._failed = True
            self._fragments.clear()
            if not events:
                self._raise()
        # The next byte shows whether each line is an object.
        self.idle = not (
            self._first or self._depth or self._in_string or self._partial_escape or self._failed
        )
        self.idle = self._lines.idle if self._lines is not None else self.idle and not self._undecided
        return events

    def find_object(self, data: bytes) -> bytes:
        """Return the object of a read that seems to be exactly one object. This is a fast path of `feed` without side effects.

        Call this method only if the decoder is `idle`, and the read does not exceed the maximum size. Call `feed` for the same
        read only if the result is not valid JSON.

        Returns:
            The bytes of the object; empty if the read is not one object.
        """
        if self._lines is None:
            return _between_braces(data)
        line = data[:-1]
        ends = data[-1:] == b"\n" and _LF not in line and _CR not in line
        return line if ends and line[:1] == b"{" else b""

    def close(self) -> list[ServerSentEvent]:
        """End the body. Return the incomplete object, or the last line if each line is an object.

        Raises:
            UpstreamError: See `feed`.
        """
        if self._lines is not None:
            return [ServerSentEvent(line) for line in self._lines.close()]
        if self._failed:
            self._raise()
        rest, self._fragments = b"".join(self._fragments), []
        return [ServerSentEvent(rest)] if rest else []

    def _scan(self, data: bytes, events: list[ServerSentEvent]) -> None:
        position, begin = 0, 0 if self._depth else -1
        self._partial_escape = b""
        while True:
            if self._in_string:
                position = self._skip_string(data, position)
                if self._in_string:
                    break
            token = _TOKEN.search(data, position)
            if token is None:
                position = len(data)
                break
            position = token.end()
            opener = data[token.start()]
            if opener == _QUOTE:
                self._in_string = position - token.start() == 1
            elif opener in _OPENERS:
                if opener == _LIST and self._first and not self._depth:
                    self._first = False
                    continue
                if not self._depth:
                    begin = token.start()
                self._depth += 1
            elif self._depth:
                self._depth -= 1
                if not self._depth:
                    value, begin = self._join_fragments(data[begin:position]), -1
                    if len(value) > self._bound:
                        self._buffered_size = len(value)
                        return
                    events.append(ServerSentEvent(value))
                    if self._first:
                        self._first = False
                        self._undecided = _LF not in value and _CR not in value
                        lines = self._decide(data[position : position + 1])
                        if lines is not None:
                            events += [ServerSentEvent(line) for line in lines.feed(data[position:])]
                            return
        if begin >= 0:
            self._fragments.append(data[begin:position])
            self._buffered_size += position - begin

    def _decide(self, following: bytes) -> NDJSONDecoder | None:
        """Return the decoder of lines if each line is an object; otherwise None."""
        if self._undecided and following:
            self._undecided = False
            if following[0] == _LF or following[0] == _CR:
                self._lines = NDJSONDecoder(max_line_bytes=self._bound)
        return self._lines

    def _skip_string(self, data: bytes, position: int) -> int:
        """Return the position after the current string.

        If the string does not end in ``data``, return the end of ``data``, or the start of an incomplete escape sequence there.
        """
        end = _STRING_END.match(data, position)
        if end is not None:
            self._in_string = False
            return end.end()
        run = _STRING_RUN.match(data, position)
        position = run.end() if run is not None else position
        self._partial_escape = data[position:]
        return position

    def _join_fragments(self, last: bytes) -> bytes:
        self._fragments.append(last)
        value = b"".join(self._fragments)
        self._fragments.clear()
        self._buffered_size = 0
        return value

    def _raise(self) -> NoReturn:
        raise UpstreamError(
            f"one object of the stream is larger than the allowed {self._bound} bytes",
            fault=UpstreamFault.TOO_LARGE,
        )


def _between_braces(data: bytes, *, is_start: bool = False) -> bytes:
    """Return the data from the first to the last brace; empty if there is other data than separators outside the braces.

    Args:
        data: The bytes of one read, or a part of them.
        is_start: True if ``data`` is the start of the body, and must begin with an array.
    """
    value = data.lstrip(_LEADING_SEPARATORS)
    if is_start:
        if value[:1] != b"[":
            return b""
        value = value[1:].lstrip(_LEADING_SEPARATORS)
    value = value.rstrip(_TRAILING_SEPARATORS)
    return value if value[:1] == b"{" and value[-1:] == b"}" else b""


def _only_object(data: bytes, *, is_start: bool = False) -> bytes:
    """Return the result of `_between_braces` if it is exactly one object; otherwise empty bytes."""
    value = _between_braces(data, is_start=is_start)
    try:
        if value:
            _check_json(value)
    except (msgspec.DecodeError, RecursionError):
        return b""
    return value

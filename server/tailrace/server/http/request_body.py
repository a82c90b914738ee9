"""Reads and decodes the JSON bodies of requests, with limits on size, time and number of JSON values.

`JsonScan` counts the values of a body while it arrives. A request with too many values is rejected before the rest of its body is
received.

Objects, arrays and their members count as one value each. Long numbers and escapes count as further values (`_CHARACTERS`,
`_ESCAPES`), because they take longer to decode. JSON in a string, for example the arguments of a tool call, counts like other
JSON, because it is decoded later.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from typing import Any, cast

import anyio
import anyio.lowlevel
from fastapi import Request

from tailrace.server.http.upload_deadlines import has_body, upload_deadlines_of
from tailrace.server.runtime.limits import RequestMediaTypeError, RequestTooLargeError
from tailrace.server.settings import Settings
from tailrace.streaming.a2a.errors import InvalidParamsError, ParseError
from tailrace.wrappers.concurrency.worker_thread import release_memory_later, run_bounded, text_cost
from tailrace.wrappers.messages import join_surrogates

MAX_DEPTH = 200
"""Maximum nesting depth of arrays and objects in a body."""

MEDIA_TYPES = ("application/json", "application/a2a+json")

_SLOWEST = 64 * 1024  # minimum upload rate in bytes per second
_SLICE = 64 * 1024  # bytes in one scan; other tasks run between two scans

_NOT_STRUCTURE = bytes(set(range(256)) - set(b",[{"))
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_WHITE_SPACE = b" \t\r\n"
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_CHARACTERS = 20  # number of characters in a number that count as one value
_ESCAPES = 32  # number of escapes that count as one value

# Line separators in UTF-8. They count as escapes, because responses escape them.
_SEPARATORS = (b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85")

# Matches numbers that may exceed 64 bits: at least 19 digits, or an exponent of at least three digits.
_LARGE_NUMBER = re.compile(rb"[0-9]{19}|[eE]\+?[0-9]{3}")
_OVERLAP = 24  # last bytes of a slice that are scanned again

# Bytes that may precede JSON in a string: white space and quotes, with or without escapes.
_BEFORE_JSON = b' \t\r\n\\"ntru029aAdD'

# Matches escapes, such as \u007b, of characters that have a meaning in JSON, which could hide JSON in a string from the scan. No
# common encoder writes these escapes.
_HIDDEN = re.compile(rb"\\u00(?:2[cC]|3[0-9]|[46][1-9a-fA-F]|5[0-9a-cA-C]|7[0-9abAB])")
_HIDDEN_OVERLAP = 5  # bytes; one less than the length of an escape

_MAX_INT_DIGITS = 20

_ESCAPE_BYTES = 6
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class JsonBody:
    """A decoded request body.

    Attributes:
        value: The decoded JSON. Strings have no lone surrogates. Integers that exceed 64 bits are floats.
        raw: The body as bytes.
        cost: The cost of processing the body, for `run_bounded`.
    """

    value: object
    raw: bytes
    cost: int

    @property
    def members(self) -> dict[str, Any]:
        """The members of the body, which must be a JSON object.

        Raises:
            InvalidParamsError: The body is not an object.
        """
        value = self.value
        if not isinstance(value, dict):
            raise InvalidParamsError("the body must be a JSON object")
        return cast("dict[str, Any]", value)


async def read_json(request: Request, settings: Settings, *, optional: bool = False) -> JsonBody:
    """Read the JSON body of a request.

    Args:
        request: The request.
        settings: The settings.
        optional: True to accept a request without a body, as an empty object.

    Raises:
        RequestMediaTypeError: The request's media type is not JSON.
        RequestTooLargeError: The body has too many bytes or values.
        RequestTimeoutError: The body did not arrive in time.
        OverloadedError: The server is stopping.
        ParseError: The body is not valid JSON.
        ClientDisconnect: The client disconnected before the body was complete.
    """
    if not is_json(request) and not (optional and not has_body(request)):
        raise RequestMediaTypeError(request.headers.get("content-type", ""))
    scan = JsonScan(settings.bounds.max_request_values)
    body = await _read(request, settings, scan)
    if optional and not body.strip():
        return JsonBody({}, body, 0)
    cost = scan.values + text_cost(body)
    return JsonBody(await run_bounded(cost, scan.decode, body), body, cost)


def is_json(request: Request) -> bool:
    """Return whether the request's media type is JSON."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type in MEDIA_TYPES


async def _read(request: Request, settings: Settings, scan: "JsonScan") -> bytes:
    body = bytearray()
    limit = settings.max_request_bytes
    with upload_deadlines_of(request.scope).receiving() as extend_deadline:
        async for chunk in request.stream():
            body += chunk
            if limit and len(body) > limit:
                release_memory_later()
                raise RequestTooLargeError(limit)
            extend_deadline(len(chunk))
            for at in range(0, len(chunk), _SLICE):
                if at:
                    await anyio.lowlevel.checkpoint()
                scan.feed(chunk[at : at + _SLICE])
    return bytes(body)


class JsonScan:
    """Counts the values and the nesting depth of a JSON text without decoding it.

    Args:
        limit: The maximum number of values; 0 for no limit.

    Attributes:
        values: The number of values so far.
    """

    def __init__(self, limit: int) -> None:
        self.values = 1
        self._limit = limit
        self._in_string = False
        self._is_json_string: bool | None = (
            None  # whether the current string contains JSON; None while it has only bytes that may precede JSON
        )
        self._hidden = False  # True if escapes may hide JSON; JSON is then counted in all strings
        self._escape = b""  # the end of the last slice, which may contain the beginning of an escape
        self._escapes = 0
        self._escaped = False  # True if the last slice ended with a backslash
        self._depth = 0
        self._number_bytes = 0
        self._large_numbers = False
        self._end = b""

    def feed(self, chunk: bytes) -> None:
        """Scan the next bytes of the text.

        Raises:
            RequestTooLargeError: The text has too many values.
            ParseError: The nesting is deeper than `MAX_DEPTH`, or a closing bracket has no opening bracket.
        """
        self._count_hidden(chunk)
        if self._escaped:
            chunk, self._escaped = chunk[1:], False
        if b"\\" in chunk:
            self._escapes += chunk.count(b"\\")
            chunk = chunk.replace(b"\\\\", b"").replace(b'\\"', b"")
            if chunk.endswith(b"\\"):
                chunk, self._escaped = chunk[:-1], True
        if not chunk.isascii():
            self._escapes += sum(map(chunk.count, _SEPARATORS))
        self.count(0)
        parts = chunk.split(b'"')
        inside = parts[not self._in_string :: 2]
        if inside:
            self._scan_strings(inside)
        outside = b'"'.join(parts[self._in_string :: 2])
        self._in_string ^= len(parts) % 2 == 0
        if outside:
            self._scan_structure(outside)

    def feed_string(self, text: bytes) -> None:
        """Count the values of JSON in a string of a message that is not JSON.

        Raises:
            RequestTooLargeError: There are too many values.
        """
        self._hidden, self._escape = False, b""
        self._count_hidden(text)
        self._scan_strings([text])

    def count(self, values: int) -> None:
        """Add to the number of values.

        Raises:
            RequestTooLargeError: There are too many values.
        """
        self.values += values
        long = self._number_bytes // _CHARACTERS + self._escapes // _ESCAPES
        if self._limit and self.values + long > self._limit:
            raise RequestTooLargeError(self._limit, setting="max_request_values")

    def _count_hidden(self, chunk: bytes) -> None:
        text = self._escape + chunk
        if b"\\u00" in text and (found := len(_HIDDEN.findall(text))):
            self._hidden = True
            self.count(found)
        self._escape = text[-_HIDDEN_OVERLAP:]

    def _scan_strings(self, strings: Sequence[bytes]) -> None:
        """Count the values of JSON in strings, for example in the arguments of tool calls."""
        known = self._is_json_string if self._in_string else None
        firsts = [text.lstrip(_BEFORE_JSON)[:1] for text in strings]
        begins = [self._hidden or first in (b"{", b"[") for first in firsts]
        if known is not None:
            begins[0] = known or self._hidden
        if any(begins):
            json_strings = b"".join(compress(strings, begins))
            self.count(len(json_strings.translate(None, _NOT_STRUCTURE)))
        is_known = firsts[-1] or (known is not None and len(strings) == 1)
        self._is_json_string = begins[-1] if is_known else None

    def _scan_structure(self, outside: bytes) -> None:
        self._number_bytes += len(outside.translate(None, _WHITE_SPACE + b',[]{}":'))
        self.count(len(outside.translate(None, _NOT_STRUCTURE)))
        brackets = outside.translate(None, _NOT_BRACKETS)
        if brackets:
            depths = list(accumulate(map(_STEPS.__getitem__, brackets), initial=self._depth))
            self._depth = depths[-1]
            if max(depths) > MAX_DEPTH:
                raise ParseError(f"the JSON is nested deeper than {MAX_DEPTH} levels")
            if min(depths) < 0:
                raise ParseError("the JSON has a closing bracket without an opening bracket")
        if not self._large_numbers:
            text = self._end + outside
            self._large_numbers = _LARGE_NUMBER.search(text) is not None
            self._end = text[-_OVERLAP:]

    def decode(self, text: bytes) -> Any:
        """Decode the scanned text.

        Raises:
            ParseError: The text is not valid JSON, or a number exceeds the range of a float.
        """
        decode = _DECODE_LARGE if self._large_numbers else _DECODE
        try:
            value = decode(text.decode())
        except (ValueError, RecursionError) as error:
            raise ParseError(_reason(error)) from None
        return _without_surrogates(value) if self._escapes and _has_surrogates(text) else value


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"the body is not UTF-8 (byte {error.start})"
    return str(error)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _read_float(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


def _read_int(number: str) -> int | float:
    """Convert an integer. An integer beyond 64 bits becomes a float, because most JSON parsers do not support it."""
    value = int(number) if len(number) <= _MAX_INT_DIGITS else _read_float(number)
    return value if -(2**63) <= value < 2**63 else _read_float(number)


def _has_surrogates(text: bytes) -> bool:
    slices = range(0, len(text), _SLICE)
    return any(_SURROGATE.search(text, at, at + _SLICE + _ESCAPE_BYTES) for at in slices)


def _without_surrogates(value: Any) -> Any:
    """Apply `join_surrogates` to all strings of a JSON value. Lone surrogates could not be encoded later."""
    if isinstance(value, str):
        return join_surrogates(value)
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        return {join_surrogates(name): _without_surrogates(member) for name, member in members}
    if isinstance(value, list):
        return [_without_surrogates(item) for item in cast("list[Any]", value)]
    return value


_DECODE = json.JSONDecoder(parse_constant=_refuse_constant).decode
_DECODE_LARGE = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_int=_read_int, parse_float=_read_float
).decode

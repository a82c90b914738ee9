"""Request bodies: read within bounds, checked before they are decoded, and decoded in bounded time.

A body is scanned while it arrives. The scan counts what decoding it would create, so that a request that would create
too much is refused after at most `limit` values, before an object exists and before the rest of the body is received.

One value is an object, an array, or a member of either. A number counts once more for every 20 characters, because
converting a long number takes longer, and texts count once more for every 32 escapes. JSON in a string counts as if it stood
outside, however it is escaped: arguments of tools are decoded later.
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

from tailrace.server.http.uploads import has_body, uploads_of
from tailrace.server.runtime.limits import RequestMediaTypeError, RequestTooLargeError
from tailrace.server.settings import Settings
from tailrace.streaming.a2a.errors import InvalidParamsError, ParseError
from tailrace.wrappers.concurrency.worker_thread import release_memory_later, run_bounded, text_cost
from tailrace.wrappers.messages import join_surrogates

MAX_DEPTH = 200
"""Levels of arrays and objects in a body. What may be nested in a message has its own, lower bound."""

MEDIA_TYPES = ("application/json", "application/a2a+json")

_SLOWEST = 64 * 1024  # bytes a second: a large body on a slow line is not cut off
_SLICE = 64 * 1024  # bytes that are scanned at once: the event loop runs other tasks in between

_NOT_STRUCTURE = bytes(set(range(256)) - set(b",[{"))
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_WHITE_SPACE = b" \t\r\n"
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_CHARACTERS = 20  # of a number, for which it counts once more
_ESCAPES = 32  # in texts, which count once more: each takes as long as 20 other characters

# Written as escapes in every response (see `tailrace.streaming.a2a.encoding`).
_SEPARATORS = (b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85")

# Numbers that 64 bits may not hold: 19 digits, or an exponent of three.
_LARGE_NUMBER = re.compile(rb"[0-9]{19}|[eE]\+?[0-9]{3}")
_OVERLAP = 24  # bytes: a number may begin in one slice and end in the next

# Written before JSON in a string, at any level of encoding: white space and quotes, escaped or not.
_BEFORE_JSON = b' \t\r\n\\"ntru029aAdD'

# Escapes of the characters with which JSON can be hidden in a string: of structure, and of escapes themselves. No encoder
# writes them. HTML-safe encoders escape other characters.
_HIDDEN = re.compile(rb"\\u00(?:2[cC]|3[0-9]|[46][1-9a-fA-F]|5[0-9a-cA-C]|7[0-9abAB])")
_HIDDEN_OVERLAP = 5  # bytes: one less than an escape has

_MAX_INT_DIGITS = 20

_ESCAPE_BYTES = 6
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class JsonBody:
    """A body that was decoded.

    Attributes:
        value: Its JSON. Texts hold no lone surrogates, and numbers fit in 64 bits; larger integers are floats.
        raw: Its bytes.
        cost: What processing it may take, for `run_bounded`.
    """

    value: object
    raw: bytes
    cost: int

    @property
    def members(self) -> dict[str, Any]:
        """The members of a body that has to be an object.

        Raises:
            InvalidParamsError: It is none.
        """
        value = self.value
        if not isinstance(value, dict):
            raise InvalidParamsError("the body must be a JSON object")
        return cast("dict[str, Any]", value)


async def read_json(request: Request, settings: Settings, *, optional: bool = False) -> JsonBody:
    """Read the JSON body of a request.

    Args:
        request: The request.
        settings: ``max_request_bytes`` and ``max_request_values``.
        optional: Accept a request without a body, whatever its media type: its value is an empty object.

    Raises:
        RequestMediaTypeError: The request's media type is not JSON.
        RequestTooLargeError: The body has too many bytes or values.
        RequestTimeoutError: It did not arrive in time.
        OverloadedError: The server is stopping.
        ParseError: It is not JSON.
        ClientDisconnect: The client disconnected before it was complete.
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
    with uploads_of(request.scope).receiving() as extend_deadline:
        async for piece in request.stream():
            body += piece
            if limit and len(body) > limit:
                release_memory_later()
                raise RequestTooLargeError(limit)
            extend_deadline(len(piece))
            for at in range(0, len(piece), _SLICE):
                if at:
                    await anyio.lowlevel.checkpoint()
                scan.feed(piece[at : at + _SLICE])
    return bytes(body)


class JsonScan:
    """Counts the values of a JSON text and the levels of their nesting, without decoding it.

    For a text that is not JSON the count is right up to the first error, which is as far as a decoder reads.

    Args:
        limit: How many values the text may have; 0 for any number.

    Attributes:
        values: How many there are so far.
    """

    def __init__(self, limit: int) -> None:
        self.values = 1
        self._limit = limit
        self._in_string = False
        self._is_json_string: bool | None = (
            None  # of the string that goes on; None while it has only what may precede JSON
        )
        self._hidden = False  # JSON may be hidden by escapes: all strings count
        self._escape = b""  # the end of the last slice, where an escape may have begun
        self._escapes = 0
        self._escaped = False  # the next slice begins with what a backslash escapes
        self._depth = 0
        self._number_bytes = 0
        self._large_numbers = False
        self._end = b""

    def feed(self, piece: bytes) -> None:
        """Scan the next bytes of the text.

        Raises:
            RequestTooLargeError: There are too many values.
            ParseError: They are nested too deep.
        """
        self._count_hidden(piece)
        if self._escaped:
            piece, self._escaped = piece[1:], False
        if b"\\" in piece:
            self._escapes += piece.count(b"\\")
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
            if piece.endswith(b"\\"):
                piece, self._escaped = piece[:-1], True
        if not piece.isascii():
            self._escapes += sum(map(piece.count, _SEPARATORS))
        self._count(0)
        parts = piece.split(b'"')
        inside = parts[not self._in_string :: 2]
        if inside:
            self._scan_strings(inside)
        outside = b'"'.join(parts[self._in_string :: 2])
        self._in_string ^= len(parts) % 2 == 0
        if outside:
            self._scan_structure(outside)

    def _count_hidden(self, piece: bytes) -> None:
        text = self._escape + piece
        if b"\\u00" in text and (found := len(_HIDDEN.findall(text))):
            self._hidden = True
            self._count(found)
        self._escape = text[-_HIDDEN_OVERLAP:]

    def _scan_strings(self, strings: Sequence[bytes]) -> None:
        """Count the values of JSON in strings, which is decoded later: arguments of tools, above all."""
        known = self._is_json_string if self._in_string else None
        firsts = [text.lstrip(_BEFORE_JSON)[:1] for text in strings]
        begins = [self._hidden or first in (b"{", b"[") for first in firsts]
        if known is not None:
            begins[0] = known or self._hidden
        if any(begins):
            json_strings = b"".join(compress(strings, begins))
            self._count(len(json_strings.translate(None, _NOT_STRUCTURE)))
        is_known = firsts[-1] or (known is not None and len(strings) == 1)
        self._is_json_string = begins[-1] if is_known else None

    def _count(self, values: int) -> None:
        self.values += values
        long = self._number_bytes // _CHARACTERS + self._escapes // _ESCAPES
        if self._limit and self.values + long > self._limit:
            raise RequestTooLargeError(self._limit, setting="max_request_values")

    def _scan_structure(self, outside: bytes) -> None:
        self._number_bytes += len(outside.translate(None, _WHITE_SPACE + b',[]{}":'))
        self._count(len(outside.translate(None, _NOT_STRUCTURE)))
        brackets = outside.translate(None, _NOT_BRACKETS)
        if brackets:
            depths = list(accumulate(map(_STEPS.__getitem__, brackets), initial=self._depth))
            self._depth = depths[-1]
            if max(depths) > MAX_DEPTH:
                raise ParseError(f"the JSON is nested deeper than {MAX_DEPTH} levels")
            if min(depths) < 0:
                raise ParseError("a bracket is closed that was not opened")
        if not self._large_numbers:
            text = self._end + outside
            self._large_numbers = _LARGE_NUMBER.search(text) is not None
            self._end = text[-_OVERLAP:]

    def decode(self, text: bytes) -> Any:
        """Decode the text that was scanned.

        Raises:
            ParseError: It is not JSON, or has a number that no reader can hold.
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
    """An integer, or the nearest float of one that 64 bits cannot hold: most readers know no other numbers."""
    value = int(number) if len(number) <= _MAX_INT_DIGITS else _read_float(number)
    return value if -(2**63) <= value < 2**63 else _read_float(number)


def _has_surrogates(text: bytes) -> bool:
    slices = range(0, len(text), _SLICE)
    return any(_SURROGATE.search(text, at, at + _SLICE + _ESCAPE_BYTES) for at in slices)


def _without_surrogates(value: Any) -> Any:
    """A JSON value with `join_surrogates` applied to all texts: what cannot be encoded must not get any further."""
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

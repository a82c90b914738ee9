"""Base classes of the decoders of all providers, which convert the bytes of a streamed response to chunk wrappers. Sans-IO.

The *framing* of a body separates its JSON objects: they are server-sent events, lines, or elements of one array. The decoder
detects the framing from the first bytes, because gateways use different framings for the same API. The decoder of each provider
implements `EventDecoder.wrap`, which interprets the objects.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.decoding.error_reports import provider_error
from tailrace.wrappers.decoding.framing import MAX_EVENT_BYTES, ServerSentEvent, SSEDecoder
from tailrace.wrappers.decoding.json_framing import JSONDecoder
from tailrace.wrappers.decoding.json_value_counter import count_json_values
from tailrace.wrappers.decoding.lenient_json import as_mappings, read_json
from tailrace.wrappers.errors import UpstreamError, UpstreamFault

W = TypeVar("W", bound=ChunkWrapper[Any])

_BOM = b"\xef\xbb\xbf"
_BOM_SIZE = 3
_SPACE = b" \t\r\n"
_SPACES = _SPACE.decode()
# Searching ``bytes`` for an integer is ten times faster than searching for ``bytes``.
_LF, _CR = b"\n\r"
MAX_RESPONSE_BYTES = 128 * 1024 * 1024
"""Maximum size of one response in bytes: 131,072 tokens with 1 KiB each."""

MAX_EVENT_VALUES = 50_000
"""Maximum number of JSON values in one event. The last event of a response may repeat the JSON schemas of all tools."""

_SHORT_BYTES = 16 * 1024  # maximum size of an event whose values are not counted
_HEAD_BYTES = 64 * 1024  # number of bytes of a body without events after which no more are stored
_MAX_EXCERPT = 80  # maximum number of bytes of invalid JSON in an error message
# Fields of server-sent events without content. A comment has an empty field name.
_EMPTY_FIELDS = frozenset({b"", b"data", b"event", b"id", b"retry"})

_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_scan_json = json.JSONDecoder().raw_decode
_decode_json: Any = msgspec.json.Decoder().decode


class ResponseDecoder(ABC, Generic[W]):
    """Sans-IO decoder that converts the bytes of one streamed response body to chunk wrappers.

    Attributes:
        done: True if the provider has ended the response. The rest of the body need not be read.
    """

    done: bool = False

    @abstractmethod
    def feed(self, data: bytes) -> list[W]:
        """Decode the next bytes of the body. Return the chunk wrappers of all complete events.

        If the provider reports an error, or an event is not JSON, the last chunk wrapper has ``details.error``.

        Raises:
            UpstreamError: An event or the response exceeds the maximum size.
        """

    @abstractmethod
    def close(self) -> list[W]:
        """End the body. Return the chunk wrappers of the last event if it was not terminated.

        If the last event is truncated, or if the body has data but no event, the list contains an error.

        Raises:
            UpstreamError: See `feed`.
        """


class EventDecoder(ResponseDecoder[W]):
    """Base class of decoders for streams of JSON objects.

    A response with more than `MAX_RESPONSE_BYTES` bytes, or an event with more than `MAX_EVENT_VALUES` JSON values, is an error.

    Args:
        provider: The provider's name in errors.
        max_event_bytes: Maximum size of one event in bytes.
    """

    __slots__ = (
        "_bound",
        "_framing",
        "_has_ended",
        "_has_event",
        "_head",
        "_json_decoder",
        "_max_fast_bytes",
        "_provider",
        "_remaining_bytes",
        "_sse_decoder",
        "done",
    )

    def __init__(self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._provider = provider
        self._bound = max_event_bytes
        self._max_fast_bytes = min(max_event_bytes, _SHORT_BYTES)
        self._remaining_bytes = MAX_RESPONSE_BYTES
        self._framing: SSEDecoder | JSONDecoder | None = None
        # After the first event, one of these two is the decoder for the detected framing.
        self._sse_decoder: SSEDecoder | None = None
        self._json_decoder: JSONDecoder | None = None
        self._head = bytearray()  # the start of the body, until the first event
        self._has_event = False  # True if an event has been received
        self._has_ended = False  # True after ``[DONE]``; later data is ignored
        self.done = False

    @abstractmethod
    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[W]:
        """Return the chunk wrappers of one JSON object of the stream.

        Missing, null and invalid fields must not cause an exception. The method sets `done` after the last object of the
        response. For an object without content (a ping, an object of another API), the list is empty.

        Args:
            fields: The object. The method may change it.
            error_event: True if the object is the payload of a server-sent event with the type ``error``.
        """

    def wrap_common(self, payload: bytes) -> list[W]:
        """Return the chunk wrappers of an event with a common shape. This is a fast path of `wrap`, with the same result.

        If the list is empty, the event is decoded and passed to `wrap`.

        Args:
            payload: The data of the event, usually JSON. The type of the event is not ``error``.
        """
        return []

    @abstractmethod
    def wrap_error(self, error: UpstreamError) -> W:
        """Return a chunk wrapper that contains only this error."""

    def feed(self, data: bytes) -> list[W]:
        """Decode the next bytes of the body; see `ResponseDecoder.feed`."""
        sse = self._sse_decoder
        if sse is not None:
            size = len(data)
            self._remaining_bytes -= size  # `_count_bytes`, inlined for speed
            if self._remaining_bytes < 0:
                raise self._size_error()
            if sse.idle and size <= self._max_fast_bytes:
                if data[:6] == b"data: " and (data[-2:] == b"\n\n" or data[-4:] == b"\r\n\r\n"):
                    # `SSEDecoder.complete_events`, inlined for the most common case: a read with one data line.
                    payload = data[6:-2] if data[-2:] == b"\n\n" else data[6:-4]
                    if _LF not in payload and _CR not in payload:
                        return self.wrap_common(payload) or self._wrap_object(payload)
                kind, payloads = sse.complete_events(data)
                if len(payloads) == 1 and kind != "error":
                    return self.wrap_common(payloads[0]) or self._wrap_object(payloads[0], kind)
                if payloads and kind != "error":
                    return self._wrap_payloads(payloads, kind)
            return self.wrap_events(sse.feed(data))
        json_decoder = self._json_decoder
        if json_decoder is not None and json_decoder.idle and len(data) <= self._max_fast_bytes:
            payload = json_decoder.find_object(data)
            if payload:
                self._count_bytes(data)
                wrappers = self.wrap_common(payload)
                if wrappers:
                    return wrappers
                value = _decoded(payload)
                if value.__class__ is dict:
                    return self.wrap(value)
        return self._feed_slow(data)

    def _feed_slow(self, data: bytes) -> list[W]:
        if self._has_ended:
            return []
        self._count_bytes(data)
        if self._framing is None:
            self._head += data
            data = self._choose_framing(data)
        elif not self._has_event and len(self._head) < _HEAD_BYTES:
            self._head += data[:_HEAD_BYTES]
        framing = self._framing
        if framing is None:
            return []
        wrappers = self.wrap_events(framing.feed(data))
        if self._has_event:
            self._head.clear()
            if self._has_ended:
                pass
            elif isinstance(framing, SSEDecoder):
                self._sse_decoder = framing
            else:
                self._json_decoder = framing
        return wrappers

    def close(self) -> list[W]:
        """End the body; see `ResponseDecoder.close`."""
        if self._has_ended:
            return []
        wrappers = self.wrap_events(self._framing.close(), last=True) if self._framing is not None else []
        if self._has_event:
            return wrappers
        body = bytes(self._head).removeprefix(_BOM).strip()
        if all(line.partition(b":")[0] in _EMPTY_FIELDS for line in body.splitlines()):
            return wrappers
        return [*wrappers, self.wrap_error(self._invalid("a body that is not an event stream", body))]

    def resume(self) -> None:
        """Continue the same response with the body of another connection. An incomplete event is dropped."""
        self._framing = self._sse_decoder = self._json_decoder = None
        self._head.clear()
        self._has_ended = self.done = False

    def wrap_events(self, events: Sequence[ServerSentEvent], *, last: bool = False) -> list[W]:
        """Return the chunk wrappers of events, in order.

        Args:
            events: The events.
            last: True if the body has ended, so that incomplete JSON in the last event was truncated.
        """
        wrappers: list[W] = []
        for event in events:
            if self._has_ended:
                break
            if (error := self._value_error(event.data)) is not None:
                wrappers.append(self.wrap_error(error))
                self._read_done()
                break
            common = self.wrap_common(event.data) if event.event != "error" else None
            if common:
                self._has_event = True
                wrappers += common
            else:
                self.wrap_event(event, wrappers, last=last)
        return wrappers

    def _value_error(self, payload: bytes) -> UpstreamError | None:
        """Return an error if an event has too many JSON values; otherwise None."""
        if len(payload) <= _SHORT_BYTES or count_json_values(payload, MAX_EVENT_VALUES) <= MAX_EVENT_VALUES:
            return None
        return self._too_large("one event of the stream", f"{MAX_EVENT_VALUES} JSON values")

    def _count_bytes(self, data: bytes) -> None:
        self._remaining_bytes -= len(data)
        if self._remaining_bytes < 0:
            raise self._size_error()

    def _size_error(self) -> UpstreamError:
        return self._too_large("the response", f"{MAX_RESPONSE_BYTES} bytes")

    def _too_large(self, subject: str, allowed: str) -> UpstreamError:
        return UpstreamError(
            f"{subject} has more than the allowed {allowed}",
            fault=UpstreamFault.TOO_LARGE,
            provider=self._provider,
        )

    def _wrap_payloads(self, payloads: Sequence[bytes], kind: str) -> list[W]:
        """Return the chunk wrappers of events with the same type, in order."""
        wrappers: list[W] = []
        for payload in payloads:
            wrappers += self.wrap_common(payload) or self._wrap_object(payload, kind)
            if self._has_ended:
                break
        return wrappers

    def _wrap_object(self, payload: bytes, kind: str = "") -> list[W]:
        """Return the chunk wrappers of an event after the first, whose type is not ``error``. A fast path of `wrap_event`."""
        value = _decoded(payload)
        if value.__class__ is dict:
            return self.wrap(value)
        wrappers: list[W] = []
        self.wrap_event(ServerSentEvent(payload, kind), wrappers, last=False)
        return wrappers

    def wrap_event(self, event: ServerSentEvent, wrappers: list[W], *, last: bool) -> None:
        """Append the chunk wrappers of one event of any shape to ``wrappers``."""
        is_error = event.event == "error"
        is_event = isinstance(self._framing, SSEDecoder)
        try:
            value = _decode_json(event.data)
        except _NOT_JSON:
            payload = event.data.strip()
            if not payload and not is_error:
                return
            if payload.startswith(b"[DONE]") or (last and payload and b"[DONE]".startswith(payload)):
                self._read_done()
                return
            try:
                value = read_json(payload)
            except (ValueError, RecursionError):
                if not (is_event or self._has_event):
                    return  # `close` reports the error
                self._has_event = True
                rest = self._wrap_values(payload, wrappers, is_error=is_error, last=last)
                error = self._no_json(event, rest, last=last) if rest or not payload else None
                if error is not None:
                    wrappers.append(self.wrap_error(error))
                return
        self._has_event = self._has_event or is_event
        if isinstance(value, dict):
            wrappers += self.wrap(cast("dict[str, Any]", value), error_event=is_error)
            self._has_event = self._has_event or bool(wrappers)
        elif is_error:
            wrappers.append(self.wrap_error(provider_error(value or "", self._provider)))
        elif isinstance(value, list):
            for fields in as_mappings(cast("object", value)):
                wrappers += self.wrap(dict(fields))

    def _wrap_values(self, payload: bytes, wrappers: list[W], *, is_error: bool, last: bool) -> bytes:
        """Decode a payload with several JSON objects, and append their chunk wrappers to ``wrappers``.

        Servers that omit the blank lines between events create such payloads.

        Returns:
            The data after the last complete object (may be empty).
        """
        if payload[:1] != b"{":
            return payload
        text = payload.decode("utf-8", "replace")
        position = 0
        while position < len(text):
            if text.startswith("[DONE]", position):
                self._read_done()
                return b""
            try:
                value, end = _scan_json(text, position)
            except (ValueError, RecursionError):
                break
            for fields in as_mappings(value):
                wrappers += self.wrap(dict(fields), error_event=is_error)
            position = end
            while position < len(text) and text[position] in _SPACES:
                position += 1
        rest = text[position:]
        if position and rest and last and "[DONE]".startswith(rest):
            self._read_done()
            return b""
        return rest.encode("utf-8", "surrogatepass")

    def _read_done(self) -> None:
        """End the response after ``[DONE]``, or after an event with too many values. Later data is ignored."""
        self._has_event = self.done = self._has_ended = True
        self._sse_decoder = self._json_decoder = None

    def _choose_framing(self, data: bytes) -> bytes:
        """Detect the framing from the first byte that is neither white space nor part of a byte order mark.

        Returns:
            All bytes of the body so far; empty if the framing is not known yet.
        """
        head = self._head
        if _BOM.startswith(head):
            return b""
        is_start = len(head) - len(data) < _BOM_SIZE  # the byte order mark may end in the latest bytes
        first_byte = (head.removeprefix(_BOM) if is_start else data).lstrip(_SPACE)[:1]
        if first_byte and first_byte in b"{[":
            self._framing = JSONDecoder(max_value_bytes=self._bound)
        elif first_byte or len(head) >= _HEAD_BYTES:
            self._framing = SSEDecoder(error_field=True, max_event_bytes=self._bound)
        else:
            return b""
        return bytes(head)

    def _no_json(self, event: ServerSentEvent, payload: bytes, *, last: bool) -> UpstreamError | None:
        if event.event == "error":
            return provider_error(payload.decode("utf-8", "replace"), self._provider)
        if last:
            return UpstreamError(
                "the stream broke off in the middle of an event",
                fault=UpstreamFault.TRUNCATED,
                provider=self._provider,
            )
        if event.event not in ("", "message"):
            return None  # the event belongs to another API
        return self._invalid("an event that is not JSON", payload)

    def _invalid(self, subject: str, payload: bytes) -> UpstreamError:
        start = payload[:_MAX_EXCERPT].decode("utf-8", "replace")
        return UpstreamError(
            f"the provider sent {subject}: {start!r}{'…' if len(payload) > _MAX_EXCERPT else ''}",
            fault=UpstreamFault.INVALID,
            provider=self._provider,
        )


def _decoded(payload: bytes) -> Any:
    """Return the JSON value of a payload; None if it is not valid JSON."""
    try:
        return _decode_json(payload)
    except _NOT_JSON:
        return None


def merged_usage(known: Mapping[str, Any], new: object) -> dict[str, Any]:
    """Merge two usage objects of one request. For each field, the last value that is not null is used.

    Some providers send the number of input tokens first and the number of output tokens later. Others repeatedly send increasing
    numbers.
    """
    if not isinstance(new, Mapping):
        return dict(known)
    later = cast("Mapping[str, Any]", new)
    return {**known, **{name: value for name, value in later.items() if value is not None}}

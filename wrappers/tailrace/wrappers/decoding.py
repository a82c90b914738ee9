"""From the bytes of a streamed response to its chunks: what the decoders of all providers have in common.

Sans-IO. How the JSON objects of a stream are framed (Server-Sent Events, one a line, elements of an array) is told
from the first bytes; every provider has gateways in front of it that frame otherwise. What the objects mean is a
provider's own business, see `EventDecoder.wrap`.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.error_reports import provider_error
from tailrace.wrappers.errors import UpstreamError, UpstreamFault
from tailrace.wrappers.loose_json import as_mappings, read_json
from tailrace.wrappers.wire import MAX_EVENT_BYTES, JSONDecoder, ServerSentEvent, SSEDecoder

W = TypeVar("W", bound=ChunkWrapper[Any])

_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_SPACES = _SPACE.decode()
_LF, _CR = b"\n\r"  # as numbers: bytes are searched for a number ten times as fast as for bytes
_HEAD_BYTES = 64 * 1024  # of a body without any event: enough to say what it is instead
_SHOWN_BYTES = 80  # of what is no JSON, in the error's message
# What a line may begin with (up to the colon) in an event stream that has no event yet; comments with nothing.
_EMPTY_FIELDS = frozenset({b"", b"data", b"event", b"id", b"retry"})

_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_scan_json = json.JSONDecoder().raw_decode
_decode_json: Any = msgspec.json.Decoder().decode


class ResponseDecoder(ABC, Generic[W]):
    """Bytes of one streamed response body in, the deltas that they complete out. Sans-IO.

    Attributes:
        done: The provider has said that the answer is over: nothing more needs to be read.
    """

    done: bool = False

    @abstractmethod
    def feed(self, data: bytes) -> list[W]:
        """Take the next bytes of the body; return the deltas that they complete, in order.

        An error that the provider reports, and an event that is not JSON, come as a delta whose
        ``details.error`` is set; nothing that was read before is lost.

        Raises:
            UpstreamError: One event is larger than the bound.
        """

    @abstractmethod
    def close(self) -> list[W]:
        """The body is over. Returns what an unfinished last event held, and an error if that was cut.

        A body that held no event at all is looked at as a whole: one of nothing but keep-alives is empty;
        anything else is an error of fault ``invalid_stream``.

        Raises:
            UpstreamError: See `feed`.
        """


class EventDecoder(ResponseDecoder[W]):
    """Base of the decoders of streams that are a series of JSON objects.

    Args:
        provider: Named in errors.
        max_event_bytes: Bound on one event.
    """

    __slots__ = (
        "_bound",
        "_framing",
        "_head",
        "_objects",
        "_over",
        "_provider",
        "_seen",
        "_usual",
        "done",
    )

    def __init__(self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._provider = provider
        self._bound = max_event_bytes
        self._framing: SSEDecoder | JSONDecoder | None = None
        # The framing, from the first event to the last: the one of these that it is.
        self._usual: SSEDecoder | None = None
        self._objects: JSONDecoder | None = None
        self._head = bytearray()  # the beginning of the body; all of it until the framing is chosen
        self._seen = False  # an event, of whatever content; of JSON without events one that says something
        self._over = False  # ``[DONE]`` was received: whatever follows is ignored
        self.done = False

    @abstractmethod
    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[W]:
        """The deltas of one object of the stream, whatever of its fields are missing, null or misshapen.

        Sets `done` where the object is the last one that counts. An object that says nothing (a ping, one of
        somebody else's vocabulary) has no delta.

        Args:
            fields: The object, which is the callee's to change.
            error_event: It came as the payload of an event of type ``error``.
        """

    def wrap_usual(self, payload: bytes) -> list[W]:
        """The deltas of an event of the shape that nearly all of a provider's events have, decoded at speed.

        For speed alone: what gives none here goes through `wrap`, which has to give the same for all others. The
        default gives none.

        Args:
            payload: JSON, or whatever else a server sent; of an event that is not of type ``error``.
        """
        return []

    @abstractmethod
    def wrap_error(self, error: UpstreamError) -> W:
        """An empty delta with this error in its details."""

    def feed(self, data: bytes) -> list[W]:
        """Take the next bytes of the body; see `ResponseDecoder.feed`."""
        usual = self._usual
        if usual is not None:
            if usual.idle and len(data) <= self._bound:
                if data[:6] == b"data: " and (data[-2:] == b"\n\n" or data[-4:] == b"\r\n\r\n"):
                    # As in SSEDecoder.whole_events, without a call: nearly every read is one data line.
                    payload = data[6:-2] if data[-2:] == b"\n\n" else data[6:-4]
                    if _LF not in payload and _CR not in payload:
                        return self.wrap_usual(payload) or self._wrap_object(payload)
                kind, payloads = usual.whole_events(data)
                if len(payloads) == 1 and kind != "error":
                    return self.wrap_usual(payloads[0]) or self._wrap_object(payloads[0], kind)
                if payloads and kind != "error":
                    return self._wrap_payloads(payloads, kind)
            return self.wrap_events(usual.feed(data))
        objects = self._objects
        if objects is not None and objects.idle and len(data) <= self._bound:
            payload = objects.likely_object(data)
            if payload:
                wrappers = self.wrap_usual(payload)
                if wrappers:
                    return wrappers
                value = _decoded(payload)
                if value.__class__ is dict:
                    return self.wrap(value)
        return self._feed_any(data)

    def _feed_any(self, data: bytes) -> list[W]:
        """The deltas of a read of which nothing is taken for granted."""
        if self._over:
            return []
        if self._framing is None:
            self._head += data
            data = self._choose_framing(data)
        elif not self._seen and len(self._head) < _HEAD_BYTES:
            self._head += data[:_HEAD_BYTES]
        framing = self._framing
        if framing is None:
            return []
        wrappers = self.wrap_events(framing.feed(data))
        if self._seen:
            self._head.clear()
            if self._over:
                pass
            elif isinstance(framing, SSEDecoder):
                self._usual = framing
            else:
                self._objects = framing
        return wrappers

    def close(self) -> list[W]:
        """The body is over; see `ResponseDecoder.close`."""
        if self._over:
            return []
        wrappers = self.wrap_events(self._framing.close(), last=True) if self._framing is not None else []
        if self._seen:
            return wrappers
        body = bytes(self._head).removeprefix(_BOM).strip()
        if all(line.partition(b":")[0] in _EMPTY_FIELDS for line in body.splitlines()):
            return wrappers
        return [*wrappers, self.wrap_error(self._invalid("a body that is not an event stream", body))]

    def wrap_events(self, events: Sequence[ServerSentEvent], *, last: bool = False) -> list[W]:
        """The deltas of events, in order.

        Args:
            events: Complete ones.
            last: The body is over: an event whose JSON is cut broke off.
        """
        wrappers: list[W] = []
        for event in events:
            if self._over:
                break
            usual = self.wrap_usual(event.data) if event.event != "error" else None
            if usual:
                self._seen = True
                wrappers += usual
            else:
                self.wrap_event(event, wrappers, last=last)
        return wrappers

    def _wrap_payloads(self, payloads: Sequence[bytes], kind: str) -> list[W]:
        """The deltas of events of one type, in order."""
        wrappers: list[W] = []
        for payload in payloads:
            wrappers += self.wrap_usual(payload) or self._wrap_object(payload, kind)
            if self._over:
                break
        return wrappers

    def _wrap_object(self, payload: bytes, kind: str = "") -> list[W]:
        """What `wrap_event` gives for an event behind the first, without its questions where it holds an object.

        Args:
            payload: The event's data.
            kind: Its type, which is not ``error``.
        """
        value = _decoded(payload)
        if value.__class__ is dict:
            return self.wrap(value)
        others: list[W] = []
        self.wrap_event(ServerSentEvent(payload, kind), others, last=False)
        return others

    def wrap_event(self, event: ServerSentEvent, wrappers: list[W], *, last: bool) -> None:
        """Add the deltas of one event, of any shape."""
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
                if not (is_event or self._seen):
                    return  # no JSON, and no events: `close` says what it is
                self._seen = True
                rest = self._wrap_values(payload, wrappers, is_error=is_error, last=last)
                error = self._no_json(event, rest, last=last) if rest or not payload else None
                if error is not None:
                    wrappers.append(self.wrap_error(error))
                return
        self._seen = self._seen or is_event
        if isinstance(value, dict):
            wrappers += self.wrap(cast("dict[str, Any]", value), error_event=is_error)
            self._seen = self._seen or bool(wrappers)
        elif is_error:
            wrappers.append(self.wrap_error(provider_error(value or "", self._provider)))
        elif isinstance(value, list):
            for fields in as_mappings(cast("object", value)):
                wrappers += self.wrap(dict(fields))

    def _wrap_values(self, payload: bytes, wrappers: list[W], *, is_error: bool, last: bool) -> bytes:
        """Add the deltas of a payload that is several: objects one behind the other, on a line each or all on one.

        That is what is left of events between which a server forgets the blank line. What stands between objects is
        white space; ``[DONE]`` ends the answer.

        Returns:
            What stands behind the last whole object; nothing where that is all.
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
        """``[DONE]``: the answer is over, and whatever follows is ignored."""
        self._seen = self.done = self._over = True
        self._usual = self._objects = None

    def _choose_framing(self, data: bytes) -> bytes:
        """Choose by the first byte that says something.

        Args:
            data: The last bytes of those so far; those before it said nothing.

        Returns:
            All bytes so far, which are to be read; none as long as nothing was chosen.
        """
        head = self._head
        if len(head) < len(_BOM) and _BOM.startswith(head):
            return b""
        begun = len(head) - len(data) < len(_BOM)  # a BOM may end in these bytes
        begin = (head.removeprefix(_BOM) if begun else data).lstrip(_SPACE)[:1]
        if begin and begin in b"{[":
            self._framing = JSONDecoder(max_value_bytes=self._bound)
        elif begin or len(head) >= _HEAD_BYTES:
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
            return None  # an event of somebody else's vocabulary
        return self._invalid("an event that is not JSON", payload)

    def _invalid(self, what: str, payload: bytes) -> UpstreamError:
        start = payload[:_SHOWN_BYTES].decode("utf-8", "replace")
        return UpstreamError(
            f"the provider sent {what}: {start!r}{'…' if len(payload) > _SHOWN_BYTES else ''}",
            fault=UpstreamFault.INVALID,
            provider=self._provider,
        )


def _decoded(payload: bytes) -> Any:
    """The JSON value of a payload; None for what is none."""
    try:
        return _decode_json(payload)
    except _NOT_JSON:
        return None


def merged_usage(known: Mapping[str, Any], new: object) -> dict[str, Any]:
    """A provider's usage object with the fields of a later one over it: each field's last value counts.

    Providers send theirs in parts (input first, output later) or again and again, growing; adding them up would
    count twice. Null never replaces a number.
    """
    if not isinstance(new, Mapping):
        return dict(known)
    later = cast("Mapping[str, Any]", new)
    return {**known, **{name: value for name, value in later.items() if value is not None}}

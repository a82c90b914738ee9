"""Amazon Bedrock's streams: those of ConverseStream, and those of InvokeModelWithResponseStream.

On the wire both are binary frames. Recorded streams are often the decoded frames instead, one JSON object a line:
``{"event": …, "payload": …}``, or the events as boto3 hands them out. `BedrockDecoder` reads them all; `wrap_chunk`
takes a single one of boto3's events.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tailrace.wrappers.bedrock.blocks import blob
from tailrace.wrappers.bedrock.events import EVENTS, ConverseEvents
from tailrace.wrappers.bedrock.eventstream import EventStreamDecoder, EventStreamFrame
from tailrace.wrappers.bedrock.invocation import InvocationEvents
from tailrace.wrappers.bedrock.wrapper import BedrockWrapper, service_error
from tailrace.wrappers.chunks import ChunkDetails, ChunkWrapper
from tailrace.wrappers.decoding import EventDecoder
from tailrace.wrappers.errors import UpstreamError, UpstreamFault
from tailrace.wrappers.loose_json import as_mapping, as_text, read_json
from tailrace.wrappers.wire import MAX_EVENT_BYTES

_SHOWN_BYTES = 80  # of what is no JSON, in the error's message


class _Chunk(msgspec.Struct, gc=False):
    """The payload of an InvokeModel chunk, whose base64 is decoded with the rest."""

    bytes: bytes


_decode_json = msgspec.json.Decoder().decode
_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class BedrockDecoder(EventDecoder[ChunkWrapper[Any]]):
    """Decodes the body of a streamed response of ConverseStream or InvokeModelWithResponseStream. Sans-IO.

    Binary frames (``application/vnd.amazon.eventstream``) and decoded ones as JSON lines are told apart by the first
    byte. A complete response that was not streamed is understood too.

    Args:
        provider: Named in errors.
        max_event_bytes: Bound on one frame, and on one content block that is handed over whole.

    Attributes:
        done: The last event was received.
    """

    __slots__ = ("_broken", "_converse", "_frames", "_invocation")

    def __init__(self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(provider=provider, max_event_bytes=max_event_bytes)
        self._frames: EventStreamDecoder | None = None
        self._broken = False  # damage was reported
        self._converse = ConverseEvents(provider=provider, max_block_bytes=max_event_bytes)
        self._invocation = InvocationEvents(provider=provider, max_block_bytes=max_event_bytes)

    def feed(self, data: bytes) -> list[ChunkWrapper[Any]]:
        """Take the next bytes of the body; see `ResponseDecoder.feed`."""
        frames = self._frames
        if frames is None:
            # A frame begins with its length, which is less than 2²⁴; JSON never begins with this byte.
            if self._head or self._seen or data[:1] != b"\0":
                return super().feed(data)
            frames = self._frames = EventStreamDecoder(max_frame_bytes=self._bound)
        wrappers: list[ChunkWrapper[Any]] = []
        for frame in frames.feed(data):
            wrappers += self._wrap_frame(frame)
        if frames.damage and not self._broken:
            self._broken = True
            wrappers.append(self._error(f"the stream is damaged: {frames.damage}"))
        return wrappers

    def close(self) -> list[ChunkWrapper[Any]]:
        """The body is over; see `ResponseDecoder.close`."""
        wrappers: list[ChunkWrapper[Any]] = []
        if self._frames is None:
            wrappers += super().close()
        else:
            self._frames.close()
        wrappers += self._converse.close()
        wrappers += self._invocation.close()
        if self._frames is not None and self._frames.unfinished and not self._broken:
            wrappers.append(
                self._error("the stream broke off in the middle of a frame", UpstreamFault.TRUNCATED)
            )
        return wrappers

    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[Any]:
        """The deltas of one decoded frame, of one of boto3's events, or of one model's chunk without an envelope.

        Args:
            fields: The object.
            error_event: It came as the payload of an event of type ``error``.
        """
        name = fields.get("event")
        if isinstance(name, str) and "payload" in fields:
            return self._wrap_event(name, fields["payload"])
        if error_event:
            return [self.wrap_error(service_error("", fields, self._provider))]
        if len(fields) == 1:
            ((name, payload),) = fields.items()
            if name in EVENTS or name == "chunk" or name.endswith("Exception"):
                return self._wrap_event(name, payload)
        if as_mapping(fields.get("output")) is not None:
            self.done = True
            return self._converse.wrap_response(fields)
        return self._wrap_model_chunk(fields)

    def wrap_error(self, error: UpstreamError) -> BedrockWrapper:
        """An empty delta with this error."""
        return BedrockWrapper({}, details=ChunkDetails(error=error))

    def _wrap_frame(self, frame: EventStreamFrame) -> list[Any]:
        headers = frame.headers
        kind = headers.get(":message-type", "event")
        if kind == "event":
            name = headers.get(":event-type")
            if name == "chunk":
                try:
                    return self._wrap_invocation(_decode_chunk(frame.payload).bytes)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    pass  # another shape: read it as what it is
            payload = _read_payload(frame.payload)
            if isinstance(name, str) and payload is not None:
                return self._wrap_event(name, payload)
            return [self._not_json(frame.payload)] if payload is None else []
        payload = _read_payload(frame.payload)
        if kind == "error":
            payload = {"message": headers.get(":error-message"), **(as_mapping(payload) or {})}
            name = headers.get(":error-code")
        else:
            payload = frame.payload.decode("utf-8", "replace") if payload is None else payload
            name = headers.get(":exception-type")
        self.done = True
        return [self.wrap_error(service_error(as_text(name), payload, self._provider))]

    def _wrap_event(self, name: str, payload: Any) -> list[Any]:
        if name != "chunk":
            wrappers = self._converse.wrap_event(name, payload)
            if self._converse.ended:
                self.done = True
            return wrappers
        # The model's JSON is wrapped in base64, or somebody has taken it out already.
        fields = as_mapping(payload)
        if fields is None:
            return []
        data = blob(fields.get("bytes"))
        return self._wrap_model_chunk(fields) if data is None else self._wrap_invocation(data)

    def _wrap_invocation(self, data: bytes) -> list[Any]:
        value = _read_payload(data)
        if value is None:
            return [self._not_json(data)]
        fields = as_mapping(value)
        return [] if fields is None else self._wrap_model_chunk(fields)

    def _wrap_model_chunk(self, fields: Mapping[str, Any]) -> list[Any]:
        wrappers = self._invocation.wrap(fields)
        if self._invocation.ended:
            self.done = True
        return wrappers

    def _not_json(self, payload: bytes) -> BedrockWrapper:
        start = payload[:_SHOWN_BYTES].decode("utf-8", "replace")
        return self._error(
            f"an event that is not JSON: {start!r}{'…' if len(payload) > _SHOWN_BYTES else ''}"
        )

    def _error(self, what: str, fault: UpstreamFault = UpstreamFault.INVALID) -> BedrockWrapper:
        return self.wrap_error(UpstreamError(what, fault=fault, provider=self._provider))


def wrap_chunk(event: Mapping[str, Any]) -> list[ChunkWrapper[Any]]:
    """The deltas of one event as boto3 hands it out, without regard to those before it.

    Which blocks of text run together, and what a block holds that comes in pieces (images, results of the provider's own
    tools), is known only to `ConverseEvents`, which sees the whole stream.

    Args:
        event: One event of ``converse_stream()["stream"]`` or ``invoke_model_with_response_stream()["body"]``.
    """
    return [*BedrockDecoder().wrap(dict(event))]


def _read_payload(payload: bytes) -> Any:
    """The JSON in a payload, an empty one being an empty object; None where there is none."""
    if not payload:
        return {}
    try:
        return _decode_json(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return read_json(payload)
        except (ValueError, RecursionError):
            return None

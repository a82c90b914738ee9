"""Decoder of the streams of Amazon Bedrock: ConverseStream and InvokeModelWithResponseStream.

Bedrock sends both streams as binary frames. Recordings often contain decoded frames: one JSON object on each line, either
``{"event": …, "payload": …}`` or an event of boto3. `BedrockDecoder` reads all these formats.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tailrace.wrappers.bedrock.chunk_wrapper import BedrockWrapper, service_error
from tailrace.wrappers.bedrock.content_blocks import blob
from tailrace.wrappers.bedrock.events import EVENTS, ConverseEvents
from tailrace.wrappers.bedrock.eventstream import EventStreamDecoder, EventStreamFrame
from tailrace.wrappers.bedrock.invoke_model import InvocationEvents
from tailrace.wrappers.chunks import ChunkDetails, ChunkWrapper
from tailrace.wrappers.decoding.decoder import EventDecoder
from tailrace.wrappers.decoding.framing import MAX_EVENT_BYTES
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_text, read_json
from tailrace.wrappers.errors import UpstreamError, UpstreamFault

_MAX_EXCERPT = 80  # bytes of an invalid payload in an error message


class _Chunk(msgspec.Struct, gc=False):
    """The payload of an InvokeModel chunk. The base64 text is decoded to bytes."""

    bytes: bytes


_decode_json = msgspec.json.Decoder().decode
_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class BedrockDecoder(EventDecoder[ChunkWrapper[Any]]):
    """Sans-IO decoder of a response body of ConverseStream or InvokeModelWithResponseStream.

    The body has binary frames (``application/vnd.amazon.eventstream``) or JSON lines, or is a complete (not streamed) response.

    Args:
        provider: The provider's name in errors.
        max_event_bytes: Maximum size in bytes of one frame or JSON line, and of one buffered content block.

    Attributes:
        done: True after the last event.
    """

    __slots__ = ("_broken", "_converse", "_frames", "_invocation")

    def __init__(self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(provider=provider, max_event_bytes=max_event_bytes)
        self._frames: EventStreamDecoder | None = None
        self._broken = False  # True if a damaged frame has been reported
        self._converse = ConverseEvents(provider=provider, max_block_bytes=max_event_bytes)
        self._invocation = InvocationEvents(provider=provider, max_block_bytes=max_event_bytes)

    def feed(self, data: bytes) -> list[ChunkWrapper[Any]]:
        """Decode the next bytes of the body; see `ResponseDecoder.feed`."""
        frames = self._frames
        if frames is None:
            # A frame begins with its length, which is less than 2²⁴, and therefore with a zero byte. JSON never does.
            if self._head or self._has_event or data[:1] != b"\0":
                return super().feed(data)
            frames = self._frames = EventStreamDecoder(max_frame_bytes=self._bound)
        self._count_bytes(data)
        wrappers: list[ChunkWrapper[Any]] = []
        for frame in frames.feed(data):
            wrappers += self._wrap_frame(frame)
        if frames.damage and not self._broken:
            self._broken = True
            wrappers.append(self._error(f"the stream is damaged: {frames.damage}"))
        return wrappers

    def close(self) -> list[ChunkWrapper[Any]]:
        """End the body; see `ResponseDecoder.close`."""
        wrappers: list[ChunkWrapper[Any]] = []
        if self._frames is None:
            wrappers += super().close()
        else:
            self._frames.close()
        wrappers += self._converse.close()
        wrappers += self._invocation.close()
        if self._frames is not None and self._frames.unfinished and not self._broken:
            wrappers.append(self._error("the stream ended in the middle of a frame", UpstreamFault.TRUNCATED))
        return wrappers

    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[Any]:
        """Return the chunk wrappers of a decoded frame, an event of boto3, a chunk of InvokeModel, or a complete response.

        Args:
            fields: The JSON object.
            error_event: True if the object is the payload of an SSE event with the name ``error``.
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
        """Return a chunk wrapper that contains only this error."""
        return BedrockWrapper({}, details=ChunkDetails(error=error))

    def _wrap_frame(self, frame: EventStreamFrame) -> list[Any]:
        if (error := self._value_error(frame.payload)) is not None:
            self.done = True
            return [self.wrap_error(error)]
        headers = frame.headers
        kind = headers.get(":message-type", "event")
        if kind == "event":
            name = headers.get(":event-type")
            if name == "chunk":
                try:
                    return self._wrap_invocation(_decode_chunk(frame.payload).bytes)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    pass  # the payload has another format, which is read below
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
        # The model's JSON is encoded as base64, but some recordings contain the JSON itself.
        fields = as_mapping(payload)
        if fields is None:
            return []
        data = blob(fields.get("bytes"))
        return self._wrap_model_chunk(fields) if data is None else self._wrap_invocation(data)

    def _wrap_invocation(self, data: bytes) -> list[Any]:
        if (error := self._value_error(data)) is not None:
            self.done = True
            return [self.wrap_error(error)]
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
        start = payload[:_MAX_EXCERPT].decode("utf-8", "replace")
        return self._error(f"an event is not JSON: {start!r}{'…' if len(payload) > _MAX_EXCERPT else ''}")

    def _error(self, message: str, fault: UpstreamFault = UpstreamFault.INVALID) -> BedrockWrapper:
        return self.wrap_error(UpstreamError(message, fault=fault, provider=self._provider))


def wrap_chunk(event: Mapping[str, Any]) -> list[ChunkWrapper[Any]]:
    """Return the chunk wrappers of a single event of boto3, without knowledge of earlier events.

    For complete streams, use `BedrockDecoder` or `ConverseEvents`, which join the deltas and fragments of a block.

    Args:
        event: One event of ``converse_stream()["stream"]`` or ``invoke_model_with_response_stream()["body"]``.
    """
    return [*BedrockDecoder().wrap(dict(event))]


def _read_payload(payload: bytes) -> Any:
    """Return the JSON value of a payload; an empty object for an empty payload, and None for invalid JSON."""
    if not payload:
        return {}
    try:
        return _decode_json(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return read_json(payload)
        except (ValueError, RecursionError):
            return None

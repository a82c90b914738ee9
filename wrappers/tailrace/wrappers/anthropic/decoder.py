"""Decoder of streams of the Anthropic Messages API."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailrace.wrappers.anthropic.events import AnthropicEventWrapper, MessageEvents
from tailrace.wrappers.chunks import ChunkDetails
from tailrace.wrappers.decoding.decoder import EventDecoder
from tailrace.wrappers.decoding.framing import MAX_EVENT_BYTES
from tailrace.wrappers.decoding.lenient_json import as_object
from tailrace.wrappers.errors import UpstreamError

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ("AnthropicDecoder", "AnthropicEventWrapper", "MessageEvents", "wrap_chunk")


class AnthropicDecoder(EventDecoder[AnthropicEventWrapper]):
    """Sans-IO decoder of the body of a streamed Messages response.

    The decoder also reads streams of the legacy text completions API, and complete (not streamed) messages.

    Args:
        provider: The provider's name in errors.
        max_event_bytes: Maximum size of one event in bytes.
        start_repeated: See `MessageEvents`.

    Attributes:
        done: True after the last event of a message. Later events are also decoded, because some bodies contain several messages.
    """

    __slots__ = ("_events",)

    def __init__(
        self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES, start_repeated: bool = False
    ) -> None:
        super().__init__(provider=provider, max_event_bytes=max_event_bytes)
        self._events = MessageEvents(provider=provider, start_repeated=start_repeated)

    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[AnthropicEventWrapper]:
        """Return the chunk wrappers of one event; see `MessageEvents.wrap`."""
        wrappers = self._events.wrap(fields, error_event=error_event)
        if self._events.done:
            self.done = True
        return wrappers

    def wrap_error(self, error: UpstreamError) -> AnthropicEventWrapper:
        """Return a chunk wrapper that contains only this error."""
        return AnthropicEventWrapper({}, details=ChunkDetails(error=error))

    def close(self) -> list[AnthropicEventWrapper]:
        """End the body. Return the chunk wrappers of buffered data and of an unfinished block."""
        return [*super().close(), *self._events.close()]


def wrap_chunk(chunk: "BaseModel | Mapping[str, Any]") -> list[AnthropicEventWrapper]:
    """Return the chunk wrappers of a single event, without knowledge of earlier events.

    Use `MessageEvents` for complete streams, because content may be sent twice, and several events may contain parts of the
    usage.

    Args:
        chunk: An event of a stream or a complete ``Message``, as an object of the ``anthropic`` package or as its JSON object.
    """
    events = MessageEvents()
    return [*events.wrap(as_object(chunk) or {}), *events.close()]

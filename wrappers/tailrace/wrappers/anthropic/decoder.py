"""Decoding of Anthropic Messages API streams.

`AnthropicDecoder` reads the bytes of a response body, and `wrap_chunk(event)` the anthropic package's events. Events are
interpreted by `tailrace.wrappers.anthropic.events`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailrace.wrappers.anthropic.events import AnthropicEventWrapper, MessageEvents
from tailrace.wrappers.chunks import ChunkDetails
from tailrace.wrappers.decoding.decoder import EventDecoder
from tailrace.wrappers.decoding.lenient_json import as_object
from tailrace.wrappers.decoding.wire import MAX_EVENT_BYTES
from tailrace.wrappers.errors import UpstreamError

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ("AnthropicDecoder", "AnthropicEventWrapper", "MessageEvents", "wrap_chunk")


class AnthropicDecoder(EventDecoder[AnthropicEventWrapper]):
    """Sans-IO decoder of a streamed Messages response body.

    Event names are not needed, since each object has a type. The decoder also reads streams of the legacy text
    completions and complete messages.

    Args:
        provider: The provider's name in errors.
        max_event_bytes: Maximum size of one event in bytes.
        start_repeated: See `MessageEvents`.

    Attributes:
        done: The message's last event was received. Later data is read nevertheless, since some bodies
            contain several messages.
    """

    __slots__ = ("_events",)

    def __init__(
        self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES, start_repeated: bool = False
    ) -> None:
        super().__init__(provider=provider, max_event_bytes=max_event_bytes)
        self._events = MessageEvents(provider=provider, start_repeated=start_repeated)

    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[AnthropicEventWrapper]:
        """Return the deltas of one event; see `MessageEvents.wrap`."""
        wrappers = self._events.wrap(fields, error_event=error_event)
        if self._events.done:
            self.done = True
        return wrappers

    def wrap_error(self, error: UpstreamError) -> AnthropicEventWrapper:
        """Return an empty delta with this error."""
        return AnthropicEventWrapper({}, details=ChunkDetails(error=error))

    def close(self) -> list[AnthropicEventWrapper]:
        """End the body, and return the remaining deltas, including those of an unfinished block."""
        return [*super().close(), *self._events.close()]


def wrap_chunk(chunk: "BaseModel | Mapping[str, Any]") -> list[AnthropicEventWrapper]:
    """Return the deltas of a single event: the anthropic package's object or its JSON object.

    The event is read without its context. Use `MessageEvents` where context matters: arguments or signatures sent both
    at a block's start and in its deltas, messages that restart, and usage counts split over several events.

    Args:
        chunk: An event of a stream, or a complete ``Message``.
    """
    events = MessageEvents()
    return [*events.wrap(as_object(chunk) or {}), *events.close()]

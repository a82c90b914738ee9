"""Streams of the Anthropic Messages API: from the bytes of a body, or from the package's own objects, to deltas.

Two ways in, one wrapper out: the bytes of a response body through `AnthropicDecoder`, or the anthropic package's events
through `wrap_chunk(event)`. What an event means is decided in `tailrace.wrappers.anthropic.events`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from tailrace.wrappers.anthropic.events import AnthropicEventWrapper, MessageEvents
from tailrace.wrappers.chunks import ChunkDetails
from tailrace.wrappers.decoding import EventDecoder
from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.wire import MAX_EVENT_BYTES

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ("AnthropicDecoder", "AnthropicEventWrapper", "MessageEvents", "package_fields", "wrap_chunk")


class AnthropicDecoder(EventDecoder[AnthropicEventWrapper]):
    """Decodes the body of a streamed Messages response. Sans-IO.

    The events' names are not needed: the objects say their type themselves. Streams of the legacy text completions are
    understood too, and so is a complete message that was not streamed.

    Args:
        provider: Named in errors.
        max_event_bytes: Bound on one event.
        start_repeated: See `MessageEvents`.

    Attributes:
        done: The message's last event was received. What is fed after it is read all the same, since some bodies
            hold several messages.
    """

    __slots__ = ("_events",)

    def __init__(
        self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES, start_repeated: bool = False
    ) -> None:
        super().__init__(provider=provider, max_event_bytes=max_event_bytes)
        self._events = MessageEvents(provider=provider, start_repeated=start_repeated)

    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[AnthropicEventWrapper]:
        """The deltas of one event; see `MessageEvents.wrap`."""
        wrappers = self._events.wrap(fields, error_event=error_event)
        if self._events.done:
            self.done = True
        return wrappers

    def wrap_error(self, error: UpstreamError) -> AnthropicEventWrapper:
        """An empty delta with this error."""
        return AnthropicEventWrapper({}, details=ChunkDetails(error=error))

    def close(self) -> list[AnthropicEventWrapper]:
        """The body is over. Returns what was held back of a block that was never ended, too."""
        return [*super().close(), *self._events.close()]


def wrap_chunk(chunk: "BaseModel | Mapping[str, Any]") -> list[AnthropicEventWrapper]:
    """The deltas of one event on its own: the anthropic package's object, or its JSON object.

    What is said of an event by those around it is not known here: where arguments, or a seal, stand at a block's start
    and again in its deltas, where a message begins anew, or where the counts of the usage come in parts, only
    `MessageEvents` has it right.

    Args:
        chunk: An event of a stream; also a whole ``Message``.
    """
    events = MessageEvents()
    return [*events.wrap(package_fields(chunk)), *events.close()]


def package_fields(value: object) -> dict[str, Any]:
    """The JSON object of the package's object, or of a mapping; of anything else an empty one."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    dump = getattr(value, "model_dump", None)
    if dump is None:
        return {}
    # The package builds its objects without validation, so that odd values are no reason to warn; some of its
    # attributes bear another name than their fields.
    return dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)

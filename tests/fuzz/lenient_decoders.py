"""Decoders without their fast tier: every event takes the lenient tier, which makes no assumptions.

The fast tier decodes the usual events of a stream with few checks. The result of a body must be the same without
it.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

from tailrace.wrappers.anthropic.decoder import AnthropicDecoder
from tailrace.wrappers.anthropic.events import AnthropicEventWrapper, MessageEvents
from tailrace.wrappers.bedrock.chunk_wrapper import BedrockWrapper
from tailrace.wrappers.bedrock.decoder import BedrockDecoder
from tailrace.wrappers.bedrock.events import ConverseEvents
from tailrace.wrappers.decoding.decoder import EventDecoder, ResponseDecoder
from tailrace.wrappers.decoding.json_framing import JSONDecoder

# pyright: reportPrivateUsage=false
# The fast tier is private: no option disables it.


class _LongMessageEvents(MessageEvents):
    __slots__ = ()

    def wrap_common(self, event: dict[str, Any]) -> list[AnthropicEventWrapper]:
        return []


class _LongConverseEvents(ConverseEvents):
    __slots__ = ()

    def wrap_event(self, name: str, payload: Any) -> list[BedrockWrapper]:
        return self._wrap_any(name, payload)


def without_shortcuts(decoder: ResponseDecoder[Any]) -> ResponseDecoder[Any]:
    """Return the decoder without its fast tier; its wrappers do not set `ChunkWrapper.plain`.

    Args:
        decoder: A new decoder, which is changed. One that detects the format is left unchanged.
    """
    if not isinstance(decoder, EventDecoder):
        return decoder
    reader: Any = decoder
    if isinstance(decoder, AnthropicDecoder):
        reader._events.__class__ = _LongMessageEvents
    if isinstance(decoder, BedrockDecoder):
        reader._converse.__class__ = reader._invocation._converse.__class__ = _LongConverseEvents
        reader._invocation._anthropic.__class__ = _LongMessageEvents
    reader.__class__ = _without_fast_tier(reader.__class__)
    return reader


@cache
def _without_fast_tier(kind: Any) -> type:
    """The subclass of a decoder's class whose events all take the lenient tier."""

    def feed(self: Any, data: bytes) -> list[Any]:
        # Known framing lets the decoder process complete reads: prevent its detection.
        self._usual = self._objects = None
        framing = self._framing
        if framing is not None:
            framing.idle = False
        pieces = [data[:1], data[1:]] if isinstance(framing, JSONDecoder) else [data]
        return _unpromised(wrapper for piece in pieces for wrapper in kind.feed(self, piece))

    def close(self: Any) -> list[Any]:
        return _unpromised(kind.close(self))

    def wrap_common(self: Any, payload: bytes) -> list[Any]:
        return []

    members = {"__slots__": (), "feed": feed, "close": close, "wrap_common": wrap_common}
    return type(f"Long{kind.__name__}", (kind,), members)


def _unpromised(wrappers: Iterable[Any]) -> list[Any]:
    found = list(wrappers)
    for wrapper in found:
        wrapper.plain = False
    return found

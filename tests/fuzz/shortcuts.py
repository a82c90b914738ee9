"""Decoders without their shortcuts: every event goes the long way, on which nothing is taken for granted.

The decoders recognise the events that nearly all of a stream is made of, and spare them most questions. What comes of
a body must be the same without that.
"""

from collections.abc import Iterable
from typing import Any

from tailrace.wrappers.anthropic.chunks import AnthropicDecoder
from tailrace.wrappers.anthropic.events import AnthropicEventWrapper, MessageEvents
from tailrace.wrappers.bedrock.chunks import BedrockDecoder
from tailrace.wrappers.bedrock.events import ConverseEvents
from tailrace.wrappers.bedrock.wrapper import BedrockWrapper
from tailrace.wrappers.decoding import EventDecoder, ResponseDecoder
from tailrace.wrappers.wire import JSONDecoder

# pyright: reportPrivateUsage=false
# The shortcuts are private: what is taken away here cannot be asked for.


class _LongMessageEvents(MessageEvents):
    __slots__ = ()

    def wrap_usual(self, event: dict[str, Any]) -> list[AnthropicEventWrapper]:
        return []


class _LongConverseEvents(ConverseEvents):
    __slots__ = ()

    def wrap_event(self, name: str, payload: Any) -> list[BedrockWrapper]:
        return self._wrap_any(name, payload)


def without_shortcuts(decoder: ResponseDecoder[Any]) -> ResponseDecoder[Any]:
    """The same decoder, which reads everything the long way; its wrappers promise nothing (`ChunkWrapper.plain`).

    Args:
        decoder: A fresh one; it is changed. One that first finds out the format is left as it is.
    """
    if not isinstance(decoder, EventDecoder):
        return decoder
    reader: Any = decoder
    if isinstance(decoder, AnthropicDecoder):
        reader._events.__class__ = _LongMessageEvents
    if isinstance(decoder, BedrockDecoder):
        reader._converse.__class__ = reader._invocation._converse.__class__ = _LongConverseEvents
        reader._invocation._anthropic.__class__ = _LongMessageEvents
    kind: Any = reader.__class__

    def feed(self: Any, data: bytes) -> list[Any]:
        # What the decoder knows of its framing lets it look at whole reads: it never gets to know it.
        self._usual = self._objects = None
        framing = self._framing
        if framing is not None:
            framing.idle = False
        pieces = [data[:1], data[1:]] if isinstance(framing, JSONDecoder) else [data]
        return _unpromised(wrapper for piece in pieces for wrapper in kind.feed(self, piece))

    def close(self: Any) -> list[Any]:
        return _unpromised(kind.close(self))

    def wrap_usual(self: Any, payload: bytes) -> list[Any]:
        return []

    members = {"__slots__": (), "feed": feed, "close": close, "wrap_usual": wrap_usual}
    reader.__class__ = type(f"Long{kind.__name__}", (kind,), members)
    return reader


def _unpromised(wrappers: Iterable[Any]) -> list[Any]:
    found = list(wrappers)
    for wrapper in found:
        wrapper.plain = False
    return found

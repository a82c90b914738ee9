"""The Anthropic Messages API, and everything that speaks it."""

from tailrace.wrappers.anthropic.chunks import AnthropicDecoder, wrap_chunk
from tailrace.wrappers.anthropic.events import AnthropicEventWrapper, MessageEvents
from tailrace.wrappers.anthropic.history import AnthropicConverter

__all__ = (
    "AnthropicConverter",
    "AnthropicDecoder",
    "AnthropicEventWrapper",
    "MessageEvents",
    "wrap_chunk",
)

"""The Anthropic Messages API and compatible servers: decoder, history converter and model client."""

from tailrace.wrappers.anthropic.converter import AnthropicConverter
from tailrace.wrappers.anthropic.decoder import AnthropicDecoder, wrap_chunk
from tailrace.wrappers.anthropic.events import AnthropicEventWrapper, MessageEvents

__all__ = (
    "AnthropicConverter",
    "AnthropicDecoder",
    "AnthropicEventWrapper",
    "MessageEvents",
    "wrap_chunk",
)

"""OpenAI Chat Completions and everything compatible with it."""

from tailrace.wrappers.openai.chunks import (
    ChatCompletionsDecoder,
    ChoiceDelta,
    ChoiceDeltaWrapper,
    wrap_chunk,
)
from tailrace.wrappers.openai.history import OpenAIConverter

__all__ = ("ChatCompletionsDecoder", "ChoiceDelta", "ChoiceDeltaWrapper", "OpenAIConverter", "wrap_chunk")

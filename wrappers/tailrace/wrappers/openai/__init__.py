"""OpenAI Chat Completions and everything compatible with it."""

from tailrace.wrappers.openai.chunks import (
    ChatCompletionsDecoder,
    ChoiceDelta,
    ChoiceDeltaWrapper,
    wrap_chunk,
)

__all__ = ("ChatCompletionsDecoder", "ChoiceDelta", "ChoiceDeltaWrapper", "wrap_chunk")

"""The OpenAI Responses API, and everything compatible with it."""

from tailrace.wrappers.openai_responses.chunks import ResponsesDecoder, wrap_chunk
from tailrace.wrappers.openai_responses.history import ResponsesConverter
from tailrace.wrappers.openai_responses.wrapper import ResponsesEventWrapper

__all__ = ("ResponsesConverter", "ResponsesDecoder", "ResponsesEventWrapper", "wrap_chunk")

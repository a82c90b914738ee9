"""The OpenAI Responses API and compatible servers: decoder, history converter and model client."""

from tailrace.wrappers.openai_responses.converter import ResponsesConverter
from tailrace.wrappers.openai_responses.decoder import ResponsesDecoder, ResponsesEventWrapper, wrap_chunk

__all__ = ("ResponsesConverter", "ResponsesDecoder", "ResponsesEventWrapper", "wrap_chunk")

"""Google Gemini: decoder, history converter and model client for generateContent, and an Interactions decoder."""

from tailrace.wrappers.gemini.converter import GeminiConverter
from tailrace.wrappers.gemini.decoder import GeminiDecoder, GeminiPartWrapper, wrap_chunk

__all__ = ("GeminiConverter", "GeminiDecoder", "GeminiPartWrapper", "wrap_chunk")

"""Google Gemini: decoder, history converter and model client for generateContent, and a decoder for Interactions."""

from tailrace.wrappers.gemini.converter import GeminiConverter
from tailrace.wrappers.gemini.decoder import GeminiDecoder, GeminiPartWrapper, wrap_chunk

__all__ = ("GeminiConverter", "GeminiDecoder", "GeminiPartWrapper", "wrap_chunk")

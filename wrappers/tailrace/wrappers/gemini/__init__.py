"""Google Gemini: generateContent of the Gemini API and Vertex AI, and streams of the Interactions API."""

from tailrace.wrappers.gemini.converter import GeminiConverter
from tailrace.wrappers.gemini.decoder import GeminiDecoder, GeminiPartWrapper, wrap_chunk

__all__ = ("GeminiConverter", "GeminiDecoder", "GeminiPartWrapper", "wrap_chunk")

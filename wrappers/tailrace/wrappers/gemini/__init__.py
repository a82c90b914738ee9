"""Google's Gemini: generateContent of the Gemini API and of Vertex AI, and streams of the Interactions API."""

from tailrace.wrappers.gemini.chunks import GeminiDecoder, GeminiPartWrapper, wrap_chunk
from tailrace.wrappers.gemini.history import GeminiConverter

__all__ = ("GeminiConverter", "GeminiDecoder", "GeminiPartWrapper", "wrap_chunk")

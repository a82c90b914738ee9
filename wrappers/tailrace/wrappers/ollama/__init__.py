"""Ollama's own API: ``/api/chat`` and ``/api/generate``."""

from tailrace.wrappers.ollama.chunks import OllamaDecoder, OllamaWrapper, wrap_chunk
from tailrace.wrappers.ollama.history import OllamaConverter

__all__ = ("OllamaConverter", "OllamaDecoder", "OllamaWrapper", "wrap_chunk")

"""Ollama's native API: ``/api/chat`` and ``/api/generate``."""

from tailrace.wrappers.ollama.converter import OllamaConverter
from tailrace.wrappers.ollama.decoder import OllamaDecoder, OllamaWrapper, wrap_chunk

__all__ = ("OllamaConverter", "OllamaDecoder", "OllamaWrapper", "wrap_chunk")

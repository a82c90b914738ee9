"""Ollama's native API: decoder for ``/api/chat`` and ``/api/generate``, history converter and model client."""

from tailrace.wrappers.ollama.converter import OllamaConverter
from tailrace.wrappers.ollama.decoder import OllamaDecoder, OllamaWrapper, wrap_chunk

__all__ = ("OllamaConverter", "OllamaDecoder", "OllamaWrapper", "wrap_chunk")

"""Mistral's API: Chat Completions with additions of its own."""

from tailrace.wrappers.mistral.chunks import MistralDecoder, MistralDeltaWrapper, wrap_chunk
from tailrace.wrappers.mistral.history import MistralConverter
from tailrace.wrappers.mistral.model import MistralModel

__all__ = ("MistralConverter", "MistralDecoder", "MistralDeltaWrapper", "MistralModel", "wrap_chunk")

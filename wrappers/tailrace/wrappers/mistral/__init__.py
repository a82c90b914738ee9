"""Mistral's variant of Chat Completions: decoder, history converter and model client."""

from tailrace.wrappers.mistral.converter import MistralConverter
from tailrace.wrappers.mistral.decoder import MistralDecoder, MistralDeltaWrapper, wrap_chunk
from tailrace.wrappers.mistral.model import MistralModel

__all__ = ("MistralConverter", "MistralDecoder", "MistralDeltaWrapper", "MistralModel", "wrap_chunk")

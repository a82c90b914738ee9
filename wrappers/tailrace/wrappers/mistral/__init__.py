"""Mistral's variant of Chat Completions: decoder, history converter and model client."""

from tailrace.wrappers.mistral.client import MistralModel
from tailrace.wrappers.mistral.converter import MistralConverter
from tailrace.wrappers.mistral.decoder import MistralDecoder, MistralDeltaWrapper, wrap_chunk

__all__ = ("MistralConverter", "MistralDecoder", "MistralDeltaWrapper", "MistralModel", "wrap_chunk")

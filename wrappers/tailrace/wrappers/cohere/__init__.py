"""Cohere's Chat API, version 2: decoder, history converter and model client."""

from tailrace.wrappers.cohere.converter import CohereConverter
from tailrace.wrappers.cohere.decoder import CohereDecoder, CohereWrapper, wrap_chunk

__all__ = ("CohereConverter", "CohereDecoder", "CohereWrapper", "wrap_chunk")

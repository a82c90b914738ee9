"""Cohere's Chat API, version 2."""

from tailrace.wrappers.cohere.chunks import CohereDecoder, CohereWrapper, wrap_chunk
from tailrace.wrappers.cohere.history import CohereConverter

__all__ = ("CohereConverter", "CohereDecoder", "CohereWrapper", "wrap_chunk")

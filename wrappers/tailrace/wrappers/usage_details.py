"""Details of the token counts in usage objects of all providers: cached tokens and reasoning tokens."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tailrace.wrappers.decoding.lenient_json import as_count, as_mapping

_DETAILS = (
    "input_tokens_details",
    "prompt_tokens_details",
    "output_tokens_details",
    "completion_tokens_details",
)
_CACHED = (
    "cached_tokens",  # OpenAI's APIs (in an object of `_DETAILS`), Moonshot, Cohere
    "prompt_cache_hit_tokens",  # DeepSeek
    "cache_read_input_tokens",  # Anthropic
    "cacheReadInputTokens",  # Bedrock
    "cacheReadInputTokenCount",
    "cachedContentTokenCount",  # Gemini
    "total_cached_tokens",
)
_CACHE_WRITTEN = (
    "cache_write_tokens",
    "cache_creation_input_tokens",
    "cacheWriteInputTokens",
    "cacheWriteInputTokenCount",
)
_REASONING = ("reasoning_tokens", "thoughtsTokenCount", "total_thought_tokens")


class UsageDetails(msgspec.Struct, frozen=True):
    """Details of the token counts of one request.

    Attributes:
        cached: Input tokens that the provider read from its cache.
        cache_written: Input tokens that the provider wrote to its cache.
        reasoning: Output tokens that were used for reasoning.
    """

    cached: int = 0
    cache_written: int = 0
    reasoning: int = 0

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "UsageDetails":
        """Read the details in the usage object of any provider (`Usage.raw`). A missing count is 0."""
        mappings = [
            raw,
            *(details for name in _DETAILS if (details := as_mapping(raw.get(name))) is not None),
        ]
        return cls(_count(mappings, _CACHED), _count(mappings, _CACHE_WRITTEN), _count(mappings, _REASONING))


def _count(mappings: list[Mapping[str, Any]], names: tuple[str, ...]) -> int:
    counts = (as_count(mapping.get(name)) for mapping in mappings for name in names)
    return max(0, next((count for count in counts if count is not None), 0))

"""Parts of token counts, in the usage objects of all providers."""

from typing import Any

import pytest

from tailrace.wrappers.usage_details import UsageDetails


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            {
                "prompt_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 2},
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
            (1, 2, 3),
        ),
        (
            {
                "input_tokens_details": {"cached_tokens": 1},
                "output_tokens_details": {"reasoning_tokens": 3},
            },
            (1, 0, 3),
        ),
        ({"prompt_cache_hit_tokens": 4}, (4, 0, 0)),
        ({"cache_read_input_tokens": 4, "cache_creation_input_tokens": 5}, (4, 5, 0)),
        ({"cacheReadInputTokens": 4, "cacheWriteInputTokens": 5}, (4, 5, 0)),
        ({"cachedContentTokenCount": 4, "thoughtsTokenCount": 6}, (4, 0, 6)),
        ({"total_cached_tokens": 4, "total_thought_tokens": 6}, (4, 0, 6)),
        ({"cached_tokens": "4", "reasoning_tokens": -1, "prompt_tokens_details": []}, (0, 0, 0)),
        ({}, (0, 0, 0)),
    ],
)
def test_parts_are_read_from_the_forms_of_all_providers(
    raw: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    details = UsageDetails.of(raw)
    assert (details.cached, details.cache_written, details.reasoning) == expected

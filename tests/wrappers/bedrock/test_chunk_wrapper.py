"""Finish reasons, token counts and exceptions of Bedrock's streams."""

from typing import Any

import pytest

from tailrace.wrappers import FinishMessage, FinishReason, ToolCallDelta, UpstreamFault, Usage
from tailrace.wrappers.bedrock import BedrockWrapper
from tailrace.wrappers.bedrock.chunk_wrapper import finish_message, read_usage, service_error

REASONS = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "tool_use": FinishReason.TOOL_CALLS,
    "content_filtered": FinishReason.CONTENT_FILTER,
    "guardrail_intervened": FinishReason.CONTENT_FILTER,
    "malformed_tool_use": FinishReason.UNSPECIFIED,
    "FINISH": FinishReason.STOP,
    "LENGTH": FinishReason.LENGTH,
    "COMPLETE": FinishReason.STOP,
    "MAX_TOKENS": FinishReason.LENGTH,
    "ERROR_TOXIC": FinishReason.CONTENT_FILTER,
}


@pytest.mark.parametrize("raw", REASONS)
def test_a_reason_is_the_common_word_beside_bedrocks_own(raw: str) -> None:
    assert finish_message(raw) == FinishMessage(REASONS[raw], raw)


@pytest.mark.parametrize("nothing", [None, "", 1, {}])
def test_what_is_no_word_is_no_reason(nothing: object) -> None:
    assert finish_message(nothing) is None


COUNTS: list[tuple[dict[str, Any], tuple[int, int, int]]] = [
    ({"inputTokens": 2, "outputTokens": 3, "totalTokens": 5}, (2, 3, 5)),
    ({"inputTokens": 2, "outputTokens": 3}, (2, 3, 5)),
    ({"inputTokens": 2, "outputTokens": 3, "totalTokens": 15, "cacheReadInputTokens": 6, "cacheWriteInputTokens": 4},
     (12, 3, 15)),
    # Some responses report the same counts twice.
    ({"inputTokens": 2, "outputTokens": 3, "cacheReadInputTokens": 6, "cacheReadInputTokenCount": 6}, (8, 3, 11)),
    ({"inputTokenCount": 2, "outputTokenCount": 3, "cacheWriteInputTokenCount": 4}, (6, 3, 9)),
    ({"prompt_token_count": 2, "generation_token_count": 3}, (2, 3, 5)),
    ({"outputTokens": 3, "inputTokens": None}, (0, 3, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "expected"), COUNTS)
def test_the_whole_prompt_is_counted_with_what_the_cache_held(
    fields: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    assert read_usage(fields) == Usage(*expected, raw=fields)


@pytest.mark.parametrize(
    "fields",
    [{}, {"inputTokens": None}, {"inputTokens": "2"}, {"inputTokens": True}, {"serverToolUsage": {}}],
)
def test_an_object_without_counts_is_no_usage(fields: dict[str, Any]) -> None:
    assert read_usage(fields) is None


def test_an_exception_has_its_type_and_its_text() -> None:
    error = service_error("throttlingException", {"message": "Too many tokens"}, "bedrock")
    assert (error.fault, error.provider) == (UpstreamFault.PROVIDER, "bedrock")
    assert (error.message, error.code, error.status) == ("Too many tokens", "throttlingException", None)
    assert error.details == {"message": "Too many tokens"}


@pytest.mark.parametrize(
    ("payload", "message", "status"),
    [
        ({"originalMessage": "x", "originalStatusCode": 503}, "x", 503),
        ({"Message": "x", "originalStatusCode": 200}, "x", None),
        ("text", "text", None),
        ({}, "modelStreamErrorException", None),
        ({"message": {"a": b"\0"}}, '{"a": "AA=="}', None),
        (None, "modelStreamErrorException", None),
    ],
)
def test_an_exception_of_any_shape_has_a_message(payload: object, message: str, status: int | None) -> None:
    error = service_error("modelStreamErrorException", payload)
    assert (error.message, error.status) == (message, status)


def test_an_empty_delta_gives_empty_values() -> None:
    wrapper = BedrockWrapper({})
    assert (wrapper.get_text(), wrapper.get_reasoning(), wrapper.get_tool_calls()) == ("", "", [])
    assert (wrapper.get_finish_message(), wrapper.get_usage()) == (None, None)
    assert BedrockWrapper({}, calls=(ToolCallDelta(0),)).get_tool_calls() == [ToolCallDelta(0)]

"""Chunks of InvokeModelWithResponseStream: the format of each model is detected by its fields."""

from collections.abc import Mapping
from typing import Any

import pytest

from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    FinishReason,
)
from tailrace.wrappers.bedrock.invoke_model import InvocationEvents

Chunk = Mapping[str, Any]
METRICS = {"inputTokenCount": 7, "outputTokenCount": 8, "invocationLatency": 9, "firstByteLatency": 1}
END = {"amazon-bedrock-invocationMetrics": METRICS}


def fold(*chunks: Chunk) -> Accumulator:
    events = InvocationEvents(provider="bedrock")
    answer = Accumulator()
    for chunk in chunks:
        for wrapper in events.wrap(chunk):
            answer.add(wrapper)
    for wrapper in events.close():
        answer.add(wrapper)
    return answer


def facts(answer: Accumulator) -> tuple[str, FinishReason | None, tuple[int, int] | None]:
    """Text, finish reason and token counts."""
    usage = answer.usage
    assert answer.first is not None
    return (
        answer.first.text,
        answer.first.finish_reason,
        None if usage is None else (usage.input_tokens, usage.output_tokens),
    )


ANTHROPIC: list[Chunk] = [
    {"type": "message_start", "message": {"id": "m", "model": "claude", "usage": {"input_tokens": 3, "output_tokens": 1}}},
    {"type": "ping"},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hi"}},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'}},
    {"type": "content_block_stop", "index": 2},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}},
    {"type": "message_stop", **END},
]  # fmt: skip


def test_anthropics_events_are_read_as_anthropics() -> None:
    answer = fold(*ANTHROPIC)
    reasoning, text, call = answer.message().content
    assert isinstance(reasoning, ContentPartReasoning)
    assert (reasoning.text, reasoning.signature) == ("hm", "s")
    assert "anthropic" in reasoning.metadata
    assert text == ContentPartText(text="Hi")
    assert call == ContentPartToolCall(id="t", name="f", arguments={"a": 1})
    assert facts(answer) == ("Hi", FinishReason.TOOL_CALLS, (3, 5))
    assert answer.metadata["id"] == "m"
    assert answer.metadata["amazon-bedrock-invocationMetrics"] == METRICS


FORMATS: dict[str, tuple[list[Chunk], tuple[str, FinishReason, tuple[int, int]]]] = {
    "Anthropic's text completions": (
        [{"completion": "a", "stop_reason": None}, {"completion": "b", "stop_reason": "stop_sequence", **END}],
        ("ab", FinishReason.STOP, (7, 8)),
    ),
    "Nova": (
        [
            {"messageStart": {"role": "assistant"}},
            {"contentBlockDelta": {"delta": {"text": "a"}, "contentBlockIndex": 0}},
            {"contentBlockStop": {"contentBlockIndex": 0}},
            {"contentBlockDelta": {"delta": {"text": "b"}, "contentBlockIndex": 1}},
            {"contentBlockStop": {"contentBlockIndex": 1}},
            {"messageStop": {"stopReason": "max_tokens"}},
            {"metadata": {"usage": {"inputTokens": 1, "outputTokens": 2}, "metrics": {}, "trace": {}}, **END},
        ],
        ("ab", FinishReason.LENGTH, (1, 2)),
    ),
    "Nova, not streamed": (
        [
            {
                "output": {"message": {"role": "assistant", "content": [{"text": "a"}]}},
                "stopReason": "end_turn",
                "usage": {"inputTokens": 1, "outputTokens": 2},
            }
        ],
        ("a", FinishReason.STOP, (1, 2)),
    ),
    "Titan": (
        [
            {"outputText": "a", "index": 0, "totalOutputTextTokenCount": None, "completionReason": None, "inputTextTokenCount": 4},
            {"outputText": "b", "index": 1, "totalOutputTextTokenCount": 9, "completionReason": "FINISH", "inputTextTokenCount": None, **END},
        ],
        ("ab", FinishReason.STOP, (4, 9)),
    ),
    "Titan, not streamed": (
        [{"inputTextTokenCount": 4, "results": [{"tokenCount": 9, "outputText": "a", "completionReason": "LENGTH"}]}],
        ("a", FinishReason.LENGTH, (4, 9)),
    ),
    "Llama": (
        [
            {"generation": "a", "prompt_token_count": 10, "generation_token_count": 1, "stop_reason": None},
            {"generation": "b", "prompt_token_count": None, "generation_token_count": 2, "stop_reason": None},
            {"generation": "", "prompt_token_count": None, "generation_token_count": 3, "stop_reason": "stop", **END},
        ],
        ("ab", FinishReason.STOP, (10, 3)),
    ),
    "Mistral's text models": (
        [{"outputs": [{"text": "a", "stop_reason": None}]}, {"outputs": [{"text": "b", "stop_reason": "length"}], **END}],
        ("ab", FinishReason.LENGTH, (7, 8)),
    ),
    "Mistral's chat models": (
        [
            {"choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "stop_reason": None}]},
            {"choices": [{"index": 0, "message": {"role": "assistant", "content": "b"}, "stop_reason": "stop"}], **END},
        ],
        ("ab", FinishReason.STOP, (7, 8)),
    ),
    "Mistral's chat models, not streamed": (
        [{"choices": [{"index": 0, "message": {"role": "assistant", "content": "ab"}, "stop_reason": "stop"}], **END}],
        ("ab", FinishReason.STOP, (7, 8)),
    ),
    "Chat Completions": (
        [
            {"id": "x", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]},
            {"id": "x", "choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}],
             "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}, **END},
        ],
        ("ab", FinishReason.STOP, (1, 2)),
    ),
    "Cohere Command": (
        [
            {"is_finished": False, "text": "a", "index": 0},
            {"is_finished": False, "text": "b"},
            {"is_finished": True, "finish_reason": "COMPLETE", **END},
        ],
        ("ab", FinishReason.STOP, (7, 8)),
    ),
    "Cohere Command, not streamed": (
        [{"generations": [{"text": "a", "finish_reason": "MAX_TOKENS"}], **END}],
        ("a", FinishReason.LENGTH, (7, 8)),
    ),
    "Cohere Command R": (
        [
            {"is_finished": False, "event_type": "stream-start", "generation_id": "g"},
            {"is_finished": False, "event_type": "text-generation", "text": "a"},
            {"is_finished": False, "event_type": "text-generation", "text": "b"},
            {"is_finished": True, "event_type": "stream-end", "finish_reason": "COMPLETE", "text": "ab", "response": {"text": "ab"}, **END},
        ],
        ("ab", FinishReason.STOP, (7, 8)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_recognized_by_its_fields(name: str) -> None:
    chunks, expected = FORMATS[name]
    answer = fold(*chunks)
    assert facts(answer) == expected
    assert len(answer.message().content) == 1
    assert answer.error is None


def test_calls_of_cohere_come_in_fragments_and_once() -> None:
    answer = fold(
        {"event_type": "tool-calls-chunk", "tool_call_delta": {"index": 0, "name": "f"}},
        {"event_type": "tool-calls-chunk", "tool_call_delta": {"index": 0, "parameters": '{"a": 1}'}},
        {"event_type": "tool-calls-generation", "tool_calls": [{"name": "f", "parameters": {"a": 1}}]},
    )
    assert answer.message().content == (
        ContentPartToolCall(id="call_0", name="f", arguments={"a": 1}, synthetic_id=True),
    )
    whole = fold(
        {"event_type": "tool-calls-generation", "tool_calls": [{"name": "f", "parameters": {"a": 1}}]}
    )
    assert whole.message().content == answer.message().content


def test_citations_of_cohere_annotate_the_text() -> None:
    cited = {"start": 0, "end": 1, "text": "a", "document_ids": ["d"]}
    answer = fold(
        {"event_type": "text-generation", "text": "a"},
        {"event_type": "citation-generation", "citations": [cited]},
    )
    assert answer.message().content == (
        ContentPartText(text="a", metadata={"bedrock": {"citations": [cited]}}),
    )
    assert answer.first is not None
    assert answer.first.extra == {"annotations": [cited]}


def test_an_end_that_is_an_error_is_one() -> None:
    answer = fold({"is_finished": True, "finish_reason": "ERROR"})
    assert answer.error is not None
    assert answer.error.code == "error"


def test_an_intervention_of_the_guardrail_is_reported() -> None:
    answer = fold({"generation": "no", "stop_reason": "stop", "amazon-bedrock-guardrailAction": "INTERVENED"})
    assert answer.first is not None
    assert answer.first.finish_reason is FinishReason.CONTENT_FILTER
    passed = fold({"generation": "yes", "stop_reason": "stop", "amazon-bedrock-guardrailAction": "NONE"})
    assert passed.first is not None
    assert passed.first.finish_reason is FinishReason.STOP


def test_what_bedrock_counts_never_replaces_what_the_model_counted() -> None:
    answer = fold(
        {"generation": "a", "prompt_token_count": 1, "generation_token_count": 2}, {"generation": "", **END}
    )
    assert facts(answer)[2] == (1, 2)


@pytest.mark.parametrize(
    "chunk",
    [
        {"message": "Malformed input"},
        {"error": {"message": "Malformed input"}},
        {"type": "error", "error": "Malformed input"},
    ],
)
def test_an_error_in_place_of_a_chunk_is_one(chunk: Chunk) -> None:
    answer = fold(chunk)
    assert answer.error is not None
    assert answer.error.message == "Malformed input"


def test_a_chunk_of_text_alone_is_plain() -> None:
    (wrapper,) = InvocationEvents().wrap({"outputs": [{"text": "a", "stop_reason": None}]})
    assert wrapper.plain


def test_an_image_of_novas_is_handed_over_at_the_end_of_the_stream() -> None:
    answer = fold(
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"image": {"source": {"bytes": "UA=="}}}}}
    )
    assert answer.message().content == (ContentPartFile(data=b"P", media_type="image/*"),)

"""The Chat Completions decoder: chunks, streams, and bodies that are not event streams."""

import json
from typing import Any

import pytest

from support.chat import USAGE, decode, decode_choice, error_of, fold, sse
from tailrace.wrappers import ChunkDetails, UpstreamFault, Usage
from tailrace.wrappers.openai import ChatCompletionsDecoder

# --- a complete chunk -------------------------------------------------------------------------------------------


def test_each_choice_of_a_chunk_is_one_delta() -> None:
    chunk = {"choices": [{"index": 1, "delta": {"content": "b"}}, {"index": 0, "delta": {"content": "a"}}]}
    assert [(each.choice, each.get_text()) for each in decode(sse(chunk))] == [(1, "b"), (0, "a")]


def test_a_choice_without_an_index_is_the_first() -> None:
    assert decode_choice({"delta": {"content": "a"}}).choice == 0
    assert decode_choice({"index": None, "delta": {"content": "a"}}).choice == 0
    assert decode_choice({"index": "x", "delta": {"content": "a"}}).choice == 0


def test_the_facts_about_a_response_are_reported_when_they_are_new() -> None:
    chunk = {"id": "x", "model": "m", "created": 1, "choices": [{"delta": {"content": "a"}}]}
    first, second, third = decode(sse(chunk, chunk, {**chunk, "model": "n"}))
    assert first.details == ChunkDetails(metadata={"id": "x", "model": "m", "created": 1})
    assert (second.details, second.plain) == (None, True)
    assert third.details is not None
    assert third.details.metadata == {"id": "x", "model": "n", "created": 1}


def test_facts_without_a_choice_are_reported() -> None:
    (wrapper,) = decode(sse({"id": "x", "choices": []}))
    assert wrapper.details == ChunkDetails(metadata={"id": "x"})


def test_padding_is_dropped_and_unknown_facts_are_kept() -> None:
    (wrapper,) = decode(
        sse({"id": "x", "obfuscation": "aaa", "p": "b", "object": "o", "timings": {"n": 1}, "choices": []})
    )
    assert wrapper.details == ChunkDetails(metadata={"id": "x", "timings": {"n": 1}})


@pytest.mark.parametrize(
    "ping", [{}, {"type": "ping"}, {"choices": None}, {"time": 3}, [], 1, "x", None, [{}]]
)
def test_a_payload_without_content_is_no_delta(ping: object) -> None:
    assert decode(sse(ping) + b"data: [DONE]\n\n") == []


def test_a_whole_message_is_a_snapshot() -> None:
    message = {"role": "assistant", "content": "Hello"}
    wrapper = decode_choice({"index": 0, "message": message, "finish_reason": "stop"})
    assert wrapper.get_text() == "Hello"
    assert wrapper.details is not None
    assert wrapper.details.snapshot


def test_a_message_beside_a_delta_with_content_is_ignored() -> None:
    wrapper = decode_choice({"index": 0, "delta": {"content": "lo"}, "message": {"content": "Hello"}})
    assert (wrapper.get_text(), wrapper.details) == ("lo", None)


def test_text_in_the_place_of_a_delta_is_its_content() -> None:
    assert decode_choice({"index": 0, "text": "Hi"}).get_text() == "Hi"
    assert decode_choice({"index": 0, "text": "Hi", "delta": {"content": "Hi"}}).get_text() == "Hi"


@pytest.mark.parametrize("odd", ["", "completion.chunk", "chat.completion.done", "text_completion", None, 1])
def test_what_a_chunk_calls_itself_does_not_matter(odd: object) -> None:
    (wrapper,) = decode(sse({"object": odd, "choices": [{"delta": {"content": "a"}}]}))
    assert (wrapper.get_text(), wrapper.details) == ("a", None)


@pytest.mark.parametrize("roles", [["assistant"] * 3, [None] * 3, ["assistant", "tool", ""]], ids=str)
def test_a_repeated_missing_or_different_role_does_not_matter(roles: list[str | None]) -> None:
    chunks = [{"choices": [{"index": 0, "delta": {"role": role, "content": "a"}}]} for role in roles]
    (choice,) = fold(decode(sse(*chunks)))["choices"]
    assert choice["message"] == {"role": "assistant", "content": "aaa", "refusal": None}


def test_the_call_that_a_provider_lost_is_kept_in_its_error() -> None:
    report = {"error": {"message": "no", "code": "tool_use_failed", "failed_generation": "<f>{}</f>"}}
    error = error_of(b"event: error\n" + sse(report))
    assert (error.code, error.details) == ("tool_use_failed", report["error"])


# --- the stream -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"data: [DONE]", b"data: [DON", b"data: ["])
def test_a_done_that_was_never_finished_is_one(end: bytes) -> None:
    assert [each.get_text() for each in decode(sse({"choices": [{"delta": {"content": "a"}}]}) + end)] == [
        "a"
    ]


def test_an_event_of_another_vocabulary_that_is_not_json_is_skipped() -> None:
    assert decode(b"event: heartbeat\ndata: tick\n\n") == []


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b'data: {"error":{"message":"no"}}', "no"),
        (b'data: {"error":"no"}', "no"),
        (b'event: error\ndata: {"error":{"message":"no"}}', "no"),
        (b'event: error\ndata: {"message":"no"}', "no"),
        (b"event: error\ndata: no such luck", "no such luck"),
        (b'event: error\ndata: "no"', "no"),
        (b"event: error\ndata: {}", "an error without a description"),
        (b"event: error\ndata:", "an error without a description"),
        (b'error: {"message":"no"}', "no"),
        (b"error: no", "no"),
        (b'data: {"object":"error","message":"no","code":500}', "no"),
        (b'data: {"type":"error","error":{"message":"no"}}', "no"),
    ],
)
def test_an_error_is_understood_in_any_form(event: bytes, message: str) -> None:
    body = sse({"choices": [{"delta": {"content": "a"}}]}) + event + b"\n\n"
    error = error_of(body)
    assert (error.message, error.fault) == (message, UpstreamFault.PROVIDER)


def test_what_an_error_chunk_holds_besides_counts() -> None:
    choice = {"delta": {"content": "a"}, "finish_reason": "stop"}
    (wrapper,) = decode(sse({"id": "x", "choices": [choice], "usage": USAGE, "error": {"message": "no"}}))
    assert wrapper.get_text() == "a"
    assert wrapper.get_usage() == Usage(1, 2, 3, USAGE)
    assert wrapper.details is not None
    assert wrapper.details.error is not None
    assert wrapper.details.metadata == {"id": "x"}


# --- a body that is not an event stream -------------------------------------------------------------------------


def test_an_error_object_instead_of_a_stream_is_understood() -> None:
    assert error_of(b'{"error": {"message": "no key", "code": 401}}\n').status == 401
    assert error_of(b'\xef\xbb\xbf{\n "error": "no key"\n}').message == "no key"


def test_a_whole_completion_instead_of_a_stream_is_understood() -> None:
    message = {"role": "assistant", "content": "Hello"}
    body = {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE}
    (wrapper,) = decode(json.dumps(body, indent=1).encode())
    assert (wrapper.get_text(), wrapper.get_usage()) == ("Hello", Usage(1, 2, 3, USAGE))


@pytest.mark.parametrize(
    "body", [b"", b"\n\n", b": ping\n\n: ping\n", b"retry: 3\nid: 7\n\ndata:\n\n", b"data"]
)
def test_a_body_of_keep_alives_is_empty_and_no_error_of_its_own(body: bytes) -> None:
    assert decode(body) == []


def test_keep_alives_without_end_are_not_held() -> None:
    decoder = ChatCompletionsDecoder()
    for _ in range(10):
        assert decoder.feed(b": waiting for the model\n\n" * 40_000) == []
    assert len(decoder._head) < 10 * 1024 * 1024  # pyright: ignore[reportPrivateUsage] — the bound is the point
    assert [each.get_text() for each in decoder.feed(sse({"choices": [{"delta": {"content": "a"}}]}))] == [
        "a"
    ]
    assert decoder.close() == []


# --- choices that form one response -----------------------------------------------------------------------------


SPREAD: dict[str, list[dict[str, Any]]] = {
    "the call in another choice than the text": [
        {"choices": [{"index": 0, "delta": {"content": "Let me "}}]},
        {"choices": [{"index": 0, "delta": {"content": "see."}, "finish_reason": "tool_calls"}]},
        {"choices": [{"index": 1, "delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}]}}]},
        {"choices": [{"index": 1, "delta": {}, "finish_reason": "tool_calls"}]},
    ],
    "tokens counted in the index": [
        {"choices": [{"index": 0, "delta": {"content": "Let"}}]},
        {"choices": [{"index": 1, "delta": {"content": " me "}}]},
        {"choices": [{"index": 2, "delta": {"content": "see.", "channel": "final"}}]},
        {"choices": [{"index": 3, "odd": 1, "delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}]}}]},
        {"choices": [{"index": 4, "delta": {}, "finish_reason": "tool_calls"}]},
    ],
}  # fmt: skip


@pytest.mark.parametrize("chunks", SPREAD.values(), ids=SPREAD.keys())
def test_an_answer_that_is_spread_over_choices_is_merged_if_enabled(chunks: list[dict[str, Any]]) -> None:
    body = sse(*chunks)
    for reads in ([body], [body[at : at + 1] for at in range(len(body))], [sse(chunk) for chunk in chunks]):
        decoder = ChatCompletionsDecoder(merge_choices=True)
        wrappers = [wrapper for data in reads for wrapper in decoder.feed(data)] + decoder.close()
        found = fold(wrappers)
        (choice,) = found["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Let me see.", "tool_calls")
        assert [call["id"] for call in choice["message"]["tool_calls"]] == ["c"]
        assert "error" not in found
    assert len(fold(decode(body))["choices"]) > 1


# --- the completions API ----------------------------------------------------------------------------------------


def test_a_completion_without_chat_is_text() -> None:
    head = {"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "instruct"}
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": None}]}
        for text in ("One", " two", "")
    ]
    logprobs = {"tokens": ["!"], "token_logprobs": [-0.1], "top_logprobs": None, "text_offset": [7]}
    chunks.append(
        {**head, "choices": [{"text": "!", "index": 0, "logprobs": logprobs, "finish_reason": "length"}]}
    )
    chunks.append({**head, "choices": [], "usage": USAGE})
    found = fold(decode(sse(*chunks) + b"data: [DONE]\n\n"))
    (choice,) = found["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("One two!", "length")
    assert choice["logprobs"] == logprobs
    assert (found["id"], found["model"], found["created"]) == ("cmpl-1", "instruct", 7)
    assert found["usage"] == USAGE
    assert "error" not in found


def test_several_completions_without_chat_are_kept_apart() -> None:
    chunks = [{"choices": [{"text": text, "index": index}]} for index, text in ((0, "a"), (1, "b"), (0, "A"))]
    assert [choice["message"]["content"] for choice in fold(decode(sse(*chunks)))["choices"]] == ["aA", "b"]

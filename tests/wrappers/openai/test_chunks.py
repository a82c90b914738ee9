"""The Chat Completions decoder: chunks, streams, and bodies that are none, however odd."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.chat import USAGE, decode, decode_choice, error_of, fold, sse
from support.scenarios import Scenario, completion, load_scenarios
from support.strategies import json_values
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.chat_completion import to_chat_completion
from tailrace.wrappers import ChunkDetails, UpstreamError, UpstreamFault, Usage
from tailrace.wrappers.openai import ChatCompletionsDecoder

SCENARIOS = load_scenarios()


# --- a whole chunk ----------------------------------------------------------------------------------------------


def test_each_choice_of_a_chunk_is_one_delta() -> None:
    chunk = {"choices": [{"index": 1, "delta": {"content": "b"}}, {"index": 0, "delta": {"content": "a"}}]}
    assert [(each.choice, each.get_text()) for each in decode(sse(chunk))] == [(1, "b"), (0, "a")]


def test_a_choice_without_an_index_is_the_first() -> None:
    assert decode_choice({"delta": {"content": "a"}}).choice == 0
    assert decode_choice({"index": None, "delta": {"content": "a"}}).choice == 0
    assert decode_choice({"index": "x", "delta": {"content": "a"}}).choice == 0


def test_the_facts_about_a_response_are_told_when_they_are_new() -> None:
    chunk = {"id": "x", "model": "m", "created": 1, "choices": [{"delta": {"content": "a"}}]}
    first, second, third = decode(sse(chunk, chunk, {**chunk, "model": "n"}))
    assert first.details == ChunkDetails(metadata={"id": "x", "model": "m", "created": 1})
    assert (second.details, second.plain) == (None, True)
    assert third.details is not None
    assert third.details.metadata == {"id": "x", "model": "n", "created": 1}


def test_facts_without_a_choice_are_told_too() -> None:
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
def test_a_payload_that_says_nothing_is_no_delta(ping: object) -> None:
    assert decode(sse(ping) + b"data: [DONE]\n\n") == []


def test_a_whole_message_is_a_snapshot() -> None:
    message = {"role": "assistant", "content": "Hello"}
    wrapper = decode_choice({"index": 0, "message": message, "finish_reason": "stop"})
    assert wrapper.get_text() == "Hello"
    assert wrapper.details is not None
    assert wrapper.details.snapshot


def test_a_message_beside_a_delta_that_says_something_is_ignored() -> None:
    wrapper = decode_choice({"index": 0, "delta": {"content": "lo"}, "message": {"content": "Hello"}})
    assert (wrapper.get_text(), wrapper.details) == ("lo", None)


def test_text_in_the_place_of_a_delta_is_its_content() -> None:
    assert decode_choice({"index": 0, "text": "Hi"}).get_text() == "Hi"
    assert decode_choice({"index": 0, "text": "Hi", "delta": {"content": "Hi"}}).get_text() == "Hi"


@pytest.mark.parametrize("odd", ["", "completion.chunk", "chat.completion.done", "text_completion", None, 1])
def test_what_a_chunk_calls_itself_does_not_matter(odd: object) -> None:
    (wrapper,) = decode(sse({"object": odd, "choices": [{"delta": {"content": "a"}}]}))
    assert (wrapper.get_text(), wrapper.details) == ("a", None)


def test_the_call_that_a_provider_lost_is_kept_in_its_error() -> None:
    report = {"error": {"message": "no", "code": "tool_use_failed", "failed_generation": "<f>{}</f>"}}
    error = error_of(b"event: error\n" + sse(report))
    assert (error.code, error.details) == ("tool_use_failed", report["error"])


# --- the stream -------------------------------------------------------------------------------------------------


def test_nothing_counts_behind_done() -> None:
    decoder = ChatCompletionsDecoder(max_event_bytes=100)
    chunk = sse({"choices": [{"delta": {"content": "a"}}]})
    assert len(decoder.feed(chunk + b"data: [DONE]\n\n" + chunk)) == 1
    assert decoder.done
    assert decoder.feed(b"x" * 1000) == []
    assert decoder.close() == []


@pytest.mark.parametrize("end", [b"data: [DONE]", b"data: [DON", b"data: ["])
def test_a_done_that_was_never_finished_is_one(end: bytes) -> None:
    assert [each.get_text() for each in decode(sse({"choices": [{"delta": {"content": "a"}}]}) + end)] == [
        "a"
    ]


def test_an_event_without_its_blank_line_counts_when_it_is_whole() -> None:
    body = sse({"choices": [{"delta": {"content": "a"}}]})
    assert [each.get_text() for each in decode(body.rstrip())] == ["a"]


def test_an_event_that_is_cut_is_an_error_that_says_so() -> None:
    body = sse({"choices": [{"delta": {"content": "a"}}]})
    *kept, last = decode(body + body[:-9])
    assert [each.get_text() for each in kept] == ["a"]
    assert last.details is not None
    assert last.details.error is not None
    assert last.details.error.fault is UpstreamFault.TRUNCATED


def test_an_event_that_is_not_json_is_an_error_and_reading_goes_on() -> None:
    body = sse({"choices": [{"delta": {"content": "a"}}]})
    first, odd, last = decode(body + b"data: oops\n\n" + body)
    assert (first.get_text(), last.get_text()) == ("a", "a")
    assert odd.details is not None
    assert odd.details.error is not None
    assert odd.details.error.fault is UpstreamFault.INVALID
    assert "'oops'" in str(odd.details.error)


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


def test_errors_name_the_provider() -> None:
    decoder = ChatCompletionsDecoder(provider="groq")
    (wrapper,) = decoder.feed(b"data: oops\n\n")
    assert wrapper.details is not None
    assert str(wrapper.details.error).startswith("groq: the provider sent an event that is not JSON")


def test_an_event_beyond_the_bound_raises_once_the_ones_before_it_are_out() -> None:
    decoder = ChatCompletionsDecoder(max_event_bytes=200)
    assert len(decoder.feed(sse({"choices": [{"delta": {"content": "a"}}]}) + b"data: " + b"x" * 300)) == 1
    with pytest.raises(UpstreamError) as raised:
        decoder.feed(b"x")
    assert raised.value.fault is UpstreamFault.TOO_LARGE
    with pytest.raises(UpstreamError):
        decoder.close()


def test_a_payload_nested_beyond_all_measure_is_an_error_like_any_other() -> None:
    body = b'data: {"choices":[],"usage":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}\n\n"
    assert error_of(body).fault is UpstreamFault.INVALID


# --- a body that is no event stream -----------------------------------------------------------------------------


def test_an_error_object_instead_of_a_stream_is_understood() -> None:
    assert error_of(b'{"error": {"message": "no key", "code": 401}}\n').status == 401
    assert error_of(b'\xef\xbb\xbf{\n "error": "no key"\n}').message == "no key"


def test_a_whole_completion_instead_of_a_stream_is_understood() -> None:
    message = {"role": "assistant", "content": "Hello"}
    body = {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE}
    (wrapper,) = decode(json.dumps(body, indent=1).encode())
    assert (wrapper.get_text(), wrapper.get_usage()) == ("Hello", Usage(1, 2, 3, USAGE))


@pytest.mark.parametrize("body", [b"<html><body>502</body></html>", b"[1]", b"{}", b"{", b"hello"])
def test_any_other_body_is_invalid(body: bytes) -> None:
    error = error_of(body)
    assert error.fault is UpstreamFault.INVALID
    assert body.decode() in str(error)


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


# --- choices that are one answer --------------------------------------------------------------------------------


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
def test_an_answer_may_be_spread_over_choices_where_that_is_said(chunks: list[dict[str, Any]]) -> None:
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


# --- the API before chat ----------------------------------------------------------------------------------------


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


# --- garbage ----------------------------------------------------------------------------------------------------


def read_to_the_end(reads: Iterable[bytes]) -> None:
    """Decode and fold, allowing the one error that is allowed."""
    decoder = ChatCompletionsDecoder(max_event_bytes=5000)
    accumulator = Accumulator()
    error = None
    try:
        for data in reads:
            for wrapper in decoder.feed(data):
                accumulator.add(wrapper)
        for wrapper in decoder.close():
            accumulator.add(wrapper)
    except UpstreamError as raised:
        error = raised
    accumulator.close(error)
    json.dumps(to_chat_completion(accumulator), ensure_ascii=False, allow_nan=False).encode()
    accumulator.message()


@given(reads=st.lists(st.binary(max_size=60), max_size=6))
@settings(deadline=None)
def test_no_bytes_make_the_decoder_fail(reads: list[bytes]) -> None:
    read_to_the_end(reads)
    read_to_the_end([b"data: ", *reads, b"\n\n"])


@given(scenario=st.sampled_from(SCENARIOS), data=st.data())
@settings(max_examples=300, deadline=None)
def test_no_damage_to_a_body_makes_the_decoder_fail(scenario: Scenario, data: st.DataObject) -> None:
    body = bytearray(scenario.body)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, max(0, len(body) - 1)))
        stop = start + data.draw(st.integers(0, 12))
        body[start:stop] = data.draw(
            st.sampled_from([b"", b"\n", b'"', b"{", b"]", b"null", b"9e999", b"\\ud800", b"\xff"])
        )
    read_to_the_end([bytes(body)])


names = st.sampled_from(
    ["choices", "delta", "index", "content", "message", "usage", "error", "tool_calls", "function", "arguments",
     "finish_reason", "id", "created", "model", "logprobs", "reasoning_details", "prompt_tokens", "x_groq", "type"]
)  # fmt: skip
odd_chunks = st.recursive(
    json_values | st.just(float("nan")) | st.just(float("inf")) | st.just("\ud83d"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@given(chunks=st.lists(st.dictionaries(names, odd_chunks, max_size=4), max_size=4))
@settings(max_examples=300, deadline=None)
def test_no_json_in_the_place_of_chunks_makes_the_decoder_fail(chunks: list[dict[str, Any]]) -> None:
    read_to_the_end([sse(*chunks)])


@given(
    choices=st.lists(
        st.fixed_dictionaries({"delta": st.dictionaries(names, odd_chunks, max_size=4)}), max_size=4
    )
)
@settings(max_examples=300, deadline=None)
def test_no_json_in_the_place_of_deltas_makes_the_decoder_fail(choices: list[dict[str, Any]]) -> None:
    read_to_the_end([sse(*({"choices": [choice]} for choice in choices))])
    assert isinstance(completion([sse({"choices": choices})]), dict)

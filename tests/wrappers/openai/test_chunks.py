"""The Chat Completions decoder and its wrappers: bytes, structs and the openai package's objects say the same."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion_chunk import ChoiceDelta as PackageChoiceDelta

from support.scenarios import Scenario, completion, load_scenarios, payloads
from support.strategies import json_values
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.chat_completion import to_chat_completion
from tailrace.wrappers import (
    ChunkDetails,
    FinishMessage,
    FinishReason,
    ToolCallDelta,
    UpstreamError,
    UpstreamFault,
    Usage,
)
from tailrace.wrappers.openai import ChatCompletionsDecoder, ChoiceDelta, ChoiceDeltaWrapper, wrap_chunk

SCENARIOS = load_scenarios()
FIXTURES = sorted((Path(__file__).parents[2] / "fixtures/openai").glob("*.sse"))

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def decode(body: bytes | Iterable[bytes]) -> list[ChoiceDeltaWrapper]:
    decoder = ChatCompletionsDecoder()
    reads = [body] if isinstance(body, bytes) else body
    return [chunk for data in reads for chunk in decoder.feed(data)] + decoder.close()


def sse(*chunks: object) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)


def decode_choice(choice: Mapping[str, Any]) -> ChoiceDeltaWrapper:
    (wrapper,) = decode(sse({"choices": [choice]}))
    return wrapper


def error_of(body: bytes) -> UpstreamError:
    errors = [
        chunk.details.error for chunk in decode(body) if chunk.details is not None and chunk.details.error
    ]
    assert len(errors) == 1
    return errors[0]


# --- one delta --------------------------------------------------------------------------------------------------


def test_a_delta_of_text_is_plain() -> None:
    wrapper = decode_choice({"index": 2, "delta": {"content": "Hi"}, "finish_reason": None, "logprobs": None})
    assert (wrapper.get_text(), wrapper.get_reasoning(), wrapper.get_tool_calls()) == ("Hi", "", [])
    assert (wrapper.get_finish_message(), wrapper.get_usage()) == (None, None)
    assert (wrapper.choice, wrapper.details, wrapper.plain) == (2, None, True)
    assert wrapper.raw == ChoiceDelta(content="Hi")


@pytest.mark.parametrize("delta", [{}, None, {"content": None}, {"content": ""}, {"role": "assistant"}])
def test_an_empty_delta_gives_empty_values(delta: object) -> None:
    wrapper = decode_choice({"index": 0, "delta": delta})
    assert (wrapper.get_text(), wrapper.get_reasoning(), wrapper.get_tool_calls()) == ("", "", [])
    assert (wrapper.get_finish_message(), wrapper.get_usage()) == (None, None)


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"refusal": "no"}},
        {"delta": {"tool_calls": [{"index": 0}]}},
        {"delta": {"reasoning_details": [{"text": "a"}]}},
        {"delta": {}, "finish_reason": "stop"},
        {"delta": {}, "logprobs": {"content": []}},
        {"delta": {"content": "a", "odd": 1}},
    ],
    ids=["refusal", "tool call", "details", "finish", "logprobs", "unknown"],
)
def test_a_delta_that_holds_anything_else_is_not_plain(choice: dict[str, Any]) -> None:
    assert not decode_choice(choice).plain


def test_reasoning_under_either_name() -> None:
    assert decode_choice({"delta": {"reasoning_content": "a"}}).get_reasoning() == "a"
    assert decode_choice({"delta": {"reasoning": "a"}}).get_reasoning() == "a"
    assert decode_choice({"delta": {"reasoning_content": "a", "reasoning": "a"}}).get_reasoning() == "a"
    assert decode_choice({"delta": {"reasoning_content": "", "reasoning": "a"}}).get_reasoning() == "a"


def test_fragments_of_tool_calls_come_as_they_are() -> None:
    fields = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}
    wrapper = decode_choice({"delta": {"tool_calls": [fields, {"index": 1}]}})
    assert wrapper.get_tool_calls() == [
        ToolCallDelta(0, "a", "f", "{", "function"),
        ToolCallDelta(index=1),
    ]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("stop", FinishReason.STOP),
        ("eos", FinishReason.STOP),
        ("end_turn", FinishReason.STOP),
        ("STOP", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("tool_calls", FinishReason.TOOL_CALLS),
        ("function_call", FinishReason.TOOL_CALLS),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("sensitive", FinishReason.CONTENT_FILTER),
        ("malformed_function_call", FinishReason.UNSPECIFIED),
    ],
)
def test_a_finish_reason_is_a_common_word_beside_the_providers_own(raw: str, reason: FinishReason) -> None:
    assert decode_choice({"delta": {}, "finish_reason": raw}).get_finish_message() == FinishMessage(
        reason, raw
    )
    assert decode_choice({"delta": {}, "finishReason": raw}).get_finish_message() == FinishMessage(
        reason, raw
    )


@pytest.mark.parametrize("raw", [None, "", 0, {}])
def test_an_empty_finish_reason_is_none(raw: object) -> None:
    assert decode_choice({"delta": {}, "finish_reason": raw}).get_finish_message() is None


def test_a_finish_reason_may_be_an_error() -> None:
    wrapper = decode_choice({"delta": {}, "finish_reason": "network_error"})
    assert wrapper.details is not None
    assert wrapper.details.error is not None
    assert wrapper.details.error.code == "network_error"


CHUNKS_WITH_USAGE: dict[str, dict[str, Any]] = {
    "no choice": {"choices": [], "usage": USAGE},
    "no choices": {"usage": USAGE},
    "null choices": {"choices": None, "usage": USAGE},
    "a choice": {"choices": [{"delta": {}}], "usage": USAGE},
    "x_groq": {"choices": [{"delta": {}}], "x_groq": {"usage": USAGE}},
    "in the choice": {"choices": [{"delta": {}, "usage": USAGE}]},
    "two choices": {"choices": [{"delta": {}}, {"index": 1, "delta": {}}], "usage": USAGE},
}


@pytest.mark.parametrize("chunk", CHUNKS_WITH_USAGE.values(), ids=CHUNKS_WITH_USAGE.keys())
def test_usage_is_found_wherever_it_stands_and_said_once(chunk: dict[str, Any]) -> None:
    assert [usage for each in decode(sse(chunk)) if (usage := each.get_usage())] == [Usage(1, 2, 3, USAGE)]


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


# --- the openai package's objects -------------------------------------------------------------------------------


def fold(wrappers: Iterable[ChoiceDeltaWrapper]) -> dict[str, Any]:
    accumulator = Accumulator()
    for wrapper in wrappers:
        accumulator.add(wrapper)
    accumulator.close()
    return json.loads(json.dumps(to_chat_completion(accumulator)))


BODIES = {scenario.name: scenario.body for scenario in SCENARIOS} | {
    path.name: path.read_bytes() for path in FIXTURES
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_the_packages_chunks_give_the_same_as_the_bytes(body: bytes) -> None:
    chunks = payloads(body)
    by_bytes = fold(decode(sse(*chunks) + b"data: [DONE]\n\n"))
    assert fold(wrapper for chunk in chunks for wrapper in wrap_chunk(chunk)) == by_bytes
    packaged = [ChatCompletionChunk.construct(**chunk) for chunk in chunks]
    assert fold(wrapper for chunk in packaged for wrapper in wrap_chunk(chunk)) == by_bytes


def deltas_of(body: bytes) -> list[dict[str, Any]]:
    choices = cast(
        "list[dict[str, Any]]", [each for chunk in payloads(body) for each in chunk.get("choices") or ()]
    )
    return [choice["delta"] for choice in choices if isinstance(choice.get("delta"), dict)]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_the_packages_deltas_give_the_same_as_the_bytes(scenario: Scenario) -> None:
    for delta in deltas_of(scenario.body):
        package = PackageChoiceDelta.construct(**delta)
        ours, theirs = decode_choice({"delta": delta}), ChoiceDeltaWrapper(package)
        assert theirs.raw is package
        assert theirs.get_text() == ours.get_text()
        assert theirs.get_reasoning() == ours.get_reasoning()
        assert theirs.get_tool_calls() == ours.get_tool_calls()
        assert theirs.details == ours.details


def test_a_delta_of_the_package_needs_nothing_but_itself() -> None:
    wrapper = ChoiceDeltaWrapper(PackageChoiceDelta(content="Hi", refusal="no"))
    assert wrapper.get_text() == "Hi"
    assert wrapper.details == ChunkDetails(refusal="no")
    assert not wrapper.plain
    assert (wrapper.get_finish_message(), wrapper.get_usage()) == (None, None)


def test_details_that_are_given_beside_a_delta_of_the_package_stay() -> None:
    details = ChunkDetails(metadata={"id": "x"})
    assert ChoiceDeltaWrapper(PackageChoiceDelta(refusal="no"), 0, details).details is details


def test_a_message_of_the_package_is_read_like_a_delta() -> None:
    message = ChatCompletionMessage.construct(role="assistant", content="Hi", reasoning_content="hm")
    wrapper = ChoiceDeltaWrapper(message)  # pyright: ignore[reportArgumentType] — the same fields, by another name
    assert (wrapper.get_text(), wrapper.get_reasoning()) == ("Hi", "hm")


def test_our_struct_has_the_attributes_of_the_packages_class() -> None:
    common = set(PackageChoiceDelta.model_fields) & set(ChoiceDelta.__struct_fields__)
    assert common == {"content", "refusal", "role", "tool_calls"}
    assert decode_choice({"delta": {"audio": {"id": "x"}}}).raw.model_extra == {"audio": {"id": "x"}}


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

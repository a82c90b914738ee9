"""A delta and its wrapper are the same from bytes, plain JSON and the openai package's objects."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion_chunk import ChoiceDelta as PackageChoiceDelta

from support.chat import USAGE, decode, decode_choice, fold, sse
from support.scenarios import Scenario, load_scenarios, payloads
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.conversion.chat_completion import to_chat_completion
from tailrace.wrappers import (
    ChunkDetails,
    ContentPartFile,
    ContentPartText,
    FinishMessage,
    FinishReason,
    ToolCallDelta,
    Usage,
)
from tailrace.wrappers.openai import ChoiceDelta, ChoiceDeltaWrapper, wrap_chunk

SCENARIOS = load_scenarios()
FIXTURES = sorted((Path(__file__).parents[2] / "fixtures/openai").glob("*.sse"))


# --- one delta --------------------------------------------------------------------------------------------------


def test_a_delta_of_text_is_plain() -> None:
    wrapper = decode_choice({"index": 2, "delta": {"content": "Hi"}, "finish_reason": None, "logprobs": None})
    assert (wrapper.get_text(), wrapper.get_reasoning(), wrapper.get_tool_calls()) == ("Hi", "", [])
    assert (wrapper.get_finish_message(), wrapper.get_usage()) == (None, None)
    assert (wrapper.choice, wrapper.details, wrapper.plain) == (2, None, True)
    assert isinstance(wrapper.raw, ChoiceDelta)
    assert (wrapper.raw.content, wrapper.raw.role, wrapper.raw.model_extra) == ("Hi", None, None)


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
def test_usage_is_found_in_any_place_and_reported_once(chunk: dict[str, Any]) -> None:
    assert [usage for each in decode(sse(chunk)) if (usage := each.get_usage())] == [Usage(1, 2, 3, USAGE)]


# --- fields of vendors ------------------------------------------------------------------------------------------


def test_the_fields_of_a_call_that_have_no_place_are_kept_under_the_formats_name() -> None:
    signature = {"google": {"thought_signature": "s"}}
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    (delta,) = decode_choice(
        {"delta": {"tool_calls": [{**call, "extra_content": signature}]}}
    ).get_tool_calls()
    assert delta.extra == {"openai": {"extra_content": signature}}
    (delta,) = decode_choice({"delta": {"tool_calls": [call]}}).get_tool_calls()
    assert delta.extra is None


@pytest.mark.parametrize("beside", [{}, {"odd": 1}], ids=["at speed", "as plain JSON"])
def test_a_call_in_the_legacy_form_is_a_tool_call_that_is_marked(beside: dict[str, Any]) -> None:
    pieces = [{"name": "f", "arguments": ""}, {"arguments": '{"a":'}, {"arguments": " 1}"}]
    chunks = [
        {"choices": [{"delta": {"content": None, "function_call": piece, **beside}}]} for piece in pieces
    ]
    end: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "function_call"}]}
    accumulator = Accumulator()
    for wrapper in decode(sse(*chunks, end)):
        accumulator.add(wrapper)
    (call,) = accumulator.message().tool_calls
    assert (call.name, call.arguments, call.synthetic_id) == ("f", {"a": 1}, True)
    assert call.metadata == {"openai": {"legacy": "function_call"}}
    (param,) = to_chat_completion(accumulator)["choices"][0]["message"]["tool_calls"]
    assert param == {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}


def test_images_are_files_in_their_place() -> None:
    chunks = [
        {"choices": [{"delta": {"content": "See: ", "images": [{**PNG, "index": 0}]}}]},
        {"choices": [{"delta": {"content": "and"}}]},
        {
            "choices": [
                {"delta": {"images": [{"type": "image_url", "image_url": {"url": "https://e/a.webp"}}]}}
            ]
        },
    ]
    accumulator = Accumulator()
    for wrapper in decode(sse(*chunks)):
        accumulator.add(wrapper)
    assert accumulator.message().content == (
        ContentPartText(text="See: "),
        ContentPartFile(data=b"\x89PNG", media_type="image/png", metadata={"openai": {"index": 0}}),
        ContentPartText(text="and"),
        ContentPartFile(url="https://e/a.webp", media_type="image/webp"),
    )
    assert accumulator.message().metadata == {}


def test_images_begin_an_answer() -> None:
    accumulator = Accumulator()
    (wrapper,) = decode(sse({"choices": [{"delta": {"role": "assistant", "images": [PNG]}}]}))
    assert not wrapper.plain
    (change,) = accumulator.add(wrapper)
    assert change.part == ContentPartFile(data=b"\x89PNG", media_type="image/png")


@pytest.mark.parametrize(
    "odd",
    [
        1,
        "a",
        {},
        {"type": "image_url"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}},
        {"b": 1},
    ],
)
def test_what_stands_among_images_and_is_none_is_kept_as_it_is(odd: object) -> None:
    wrapper = decode_choice({"delta": {"images": [PNG, odd]}})
    assert wrapper.details is not None
    assert len(wrapper.details.parts) == 1
    assert wrapper.details.extra == {"images": [odd]}
    (alone,) = decode(sse({"choices": [{"delta": {"images": odd}}]}))
    assert alone.details is not None
    assert (alone.details.parts, alone.details.extra) == ([], {"images": [odd]})


def test_images_of_a_whole_message_are_files_too() -> None:
    message = {"role": "assistant", "content": "See", "images": [PNG]}
    for body in (
        sse({"choices": [{"message": message}]}),
        json.dumps({"choices": [{"message": message}]}).encode(),
    ):
        (wrapper,) = decode(body)
        assert wrapper.details is not None
        assert (wrapper.details.snapshot, len(wrapper.details.parts)) == (True, 1)


def test_sound_is_put_together_beside_the_message() -> None:
    pieces: list[dict[str, Any]] = [
        {"id": "a", "transcript": "Hel"},
        {"id": "a", "data": "QUJD"},
        {"id": "a", "data": "REVG", "transcript": "lo"},
        {"id": "a", "expires_at": 7},
    ]
    chunks = [{"choices": [{"delta": {"audio": piece}}]} for piece in pieces]
    message = fold(decode(sse(*chunks)))["choices"][0]["message"]
    assert message["audio"] == {"id": "a", "transcript": "Hello", "data": "QUJDREVG", "expires_at": 7}
    assert message["content"] is None


SEALED = {
    "reasoning_encrypted": "gAAAA",
    "reasoning_opaque": "b3BhcXVl",
    "reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "index": 0}],
    "executed_tools": [{"type": "search", "output": "x"}],
    "provider_metadata": {"gateway": {"cost": "0.1"}},
}


@pytest.mark.parametrize("name", SEALED)
def test_what_a_vendor_seals_or_runs_is_kept(name: str) -> None:
    wrapper = decode_choice({"delta": {"content": "a", name: SEALED[name]}})
    assert wrapper.get_text() == "a"
    assert wrapper.details is not None
    assert wrapper.details.extra == {name: SEALED[name]}


# --- the openai package's objects -------------------------------------------------------------------------------


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
    wrapper = ChoiceDeltaWrapper(message)  # pyright: ignore[reportArgumentType] — the same fields under another name
    assert (wrapper.get_text(), wrapper.get_reasoning()) == ("Hi", "hm")


def test_our_struct_has_the_attributes_of_the_packages_class() -> None:
    common = set(PackageChoiceDelta.model_fields) & set(ChoiceDelta.__struct_fields__)
    assert common == {"content", "refusal", "role", "tool_calls"}
    assert decode_choice({"delta": {"audio": {"id": "x"}}}).raw.model_extra == {"audio": {"id": "x"}}

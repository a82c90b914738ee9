"""Deltas, usage objects and JSON in the forms that servers send."""

from typing import Any

import pytest

from support.chat import USAGE, decode, fold, sse
from tailrace.wrappers import Usage
from tailrace.wrappers.openai.delta_shapes import (
    FunctionDelta,
    ToolCallChunk,
    read_delta,
    read_usage,
)


def only_call(fields: dict[str, Any]) -> ToolCallChunk:
    delta, _ = read_delta(fields)
    assert delta.tool_calls is not None
    (call,) = delta.tool_calls
    return call


# --- deltas -----------------------------------------------------------------------------------------------------


def test_the_documented_fields_are_taken_as_they_are() -> None:
    delta, extra = read_delta({"role": "assistant", "content": "a", "refusal": "no", "tool_calls": None})
    assert (delta.role, delta.content, delta.refusal, delta.tool_calls) == ("assistant", "a", "no", None)
    assert (delta.model_extra, extra) == ({}, {})


def test_null_and_padding_have_no_content() -> None:
    assert read_delta({"content": None, "index": 3, "p": "aaaa", "obfuscation": "x"})[1] == {}


def test_unknown_fields_and_known_ones_of_another_type_are_kept() -> None:
    fields: dict[str, Any] = {
        "token_id": 7,
        "role": 1,
        "refusal": [],
        "reasoning": {"a": 1},
        "audio": {"id": "x"},
    }
    delta, extra = read_delta(fields)
    assert extra == fields
    assert delta.model_extra == fields


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "reasoning_text", "thinking"])
def test_reasoning_has_four_names(name: str) -> None:
    delta, extra = read_delta({name: "hm"})
    assert (delta.reasoning_content, extra) == ("hm", {})


def test_reasoning_under_several_names_counts_once() -> None:
    delta, _ = read_delta(
        {"reasoning": "hm", "reasoning_content": "hm", "reasoning_details": [{"text": "hm"}]}
    )
    assert delta.reasoning_content == "hm"
    assert delta.reasoning_details == [{"text": "hm"}]


def test_content_as_a_list_is_parted_by_type() -> None:
    delta, extra = read_delta(
        {
            "content": [
                {
                    "type": "thinking",
                    "thinking": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                },
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "c"}]},
                {"type": "text", "text": "d"},
                "e",
                {"type": "text", "text": "f"},
            ]
        }
    )
    assert (delta.reasoning_content, delta.content, extra) == ("abc", "def", {})


def test_a_refusal_among_the_parts_counts_once() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}]
    for fields in (
        {"content": parts},
        {"content": parts, "refusal": "no"},
        {"refusal": "no", "content": parts},
    ):
        delta, extra = read_delta(fields)
        assert (delta.content, delta.refusal, extra) == ("a", "no", {})


def test_parts_without_text_are_kept() -> None:
    reference = {"type": "reference", "reference_ids": [1, 2]}
    delta, extra = read_delta({"content": [{"type": "text", "text": "a"}, reference, 7]})
    assert (delta.content, extra) == ("a", {"content_parts": [reference]})


def test_a_single_part_counts_as_a_list_of_one() -> None:
    assert read_delta({"content": {"type": "text", "text": "a"}})[0].content == "a"
    assert read_delta({"content": 7})[0].content is None


def test_parts_within_parts_without_end_do_no_harm() -> None:
    part: dict[str, Any] = {"type": "thinking", "text": "end"}
    for _ in range(50_000):
        part = {"type": "thinking", "thinking": part}
    assert read_delta({"content": [part]})[0].reasoning_content is None


# --- tool calls -------------------------------------------------------------------------------------------------


def test_a_tool_call_is_taken_apart() -> None:
    call = only_call(
        {
            "tool_calls": [
                {"index": 1, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}
            ]
        }
    )
    assert call == ToolCallChunk(1, "a", "function", FunctionDelta("f", "{"), {})


def test_a_tool_call_that_is_not_in_a_list_counts_as_a_list_of_one() -> None:
    assert only_call({"tool_calls": {"id": "a", "function": {"name": "f"}}}).id == "a"


def test_entries_that_are_no_calls_are_skipped() -> None:
    delta, _ = read_delta({"tool_calls": [None, "x", 3]})
    assert delta.tool_calls == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"a": "é"}, '{"a": "é"}'), ([1], "[1]"), (None, None), ("{", "{"), (False, "false"), (1.5, "1.5")],
)
def test_arguments_that_are_no_text_become_their_json(arguments: object, text: str | None) -> None:
    call = only_call({"tool_calls": [{"function": {"name": "f", "arguments": arguments}}]})
    assert call.function == FunctionDelta("f", text)


def test_arguments_nested_without_end_do_no_harm() -> None:
    value: Any = {}
    for _ in range(50_000):
        value = {"a": value}
    call = only_call({"tool_calls": [{"function": {"name": "f", "arguments": value}}]})
    assert call.function == FunctionDelta("f", "(nested too deeply)")


def test_a_custom_tool_has_an_input() -> None:
    call = only_call({"tool_calls": [{"index": 0, "id": "a", "custom": {"name": "run", "input": "1+1"}}]})
    assert (call.type, call.function) == ("custom", FunctionDelta("run", "1+1"))


def test_a_legacy_function_call_is_a_tool_call_without_an_id() -> None:
    call = only_call({"function_call": {"name": "f", "arguments": "{}"}})
    assert (call.index, call.id, call.function) == (0, None, FunctionDelta("f", "{}"))


def test_an_id_may_be_a_number_and_an_index_anything() -> None:
    assert only_call({"tool_calls": [{"index": "first", "id": "a"}]}).index is None
    call = only_call({"tool_calls": [{"index": "0", "id": 7, "type": 3, "function": "x"}]})
    assert (call.index, call.id, call.type, call.function) == (0, "7", None, FunctionDelta())


def test_unknown_fields_of_a_call_and_of_its_function_are_kept() -> None:
    call = only_call(
        {
            "tool_calls": [
                {
                    "id": "a",
                    "function": {"name": "f", "strict": True},
                    "extra_content": {"google": {"s": "x"}},
                }
            ]
        }
    )
    assert call.model_extra == {"function": {"strict": True}, "extra_content": {"google": {"s": "x"}}}


# --- usage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 4}, (1, 2, 4)),
        ({"prompt_tokens": 1, "completion_tokens": 2}, (1, 2, 3)),
        ({"input_tokens": 1, "output_tokens": 2}, (1, 2, 3)),
        ({"prompt_tokens": 1.0, "completion_tokens": 2.0}, (1, 2, 3)),
        ({"total_tokens": 0}, (0, 0, 0)),
        ({"prompt_tokens": None, "input_tokens": 5}, (5, 0, 5)),
        ({"prompt_tokens": float("inf"), "completion_tokens": 2}, (0, 2, 2)),
        ({"prompt_tokens": float("nan"), "total_tokens": 2}, (0, 0, 2)),
    ],
)
def test_usage_is_a_triple_beside_the_object_as_sent(
    fields: dict[str, Any], counts: tuple[int, int, int]
) -> None:
    assert read_usage(fields) == Usage(*counts, fields)


@pytest.mark.parametrize("fields", [{}, {"cost": 1}, {"prompt_tokens": "7"}, {"total_tokens": True}])
def test_an_object_that_counts_nothing_is_no_usage(fields: dict[str, Any]) -> None:
    assert read_usage(fields) is None


# --- usage without counts ---------------------------------------------------------------------------------------

ZEROS: list[dict[str, Any]] = [
    {"total_tokens": 0},
    {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    {},
]


@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("more", [{}, {"unheard_of": 1}])
@pytest.mark.parametrize(
    "places", [("chunk", "choice"), ("chunk", "groq"), ("groq", "choice"), ("choice", "chunk")]
)
def test_zeros_hide_no_usage(zeros: dict[str, Any], more: dict[str, Any], places: tuple[str, str]) -> None:
    choice: dict[str, Any] = {"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}
    chunk: dict[str, Any] = {"id": "x", "choices": [choice], **more}
    for place, usage in zip(places, (zeros, USAGE), strict=True):
        where = {"chunk": chunk, "choice": choice}.get(place)
        (chunk.setdefault("x_groq", {}) if where is None else where)["usage"] = usage
    placeholder = {
        "id": "x",
        "choices": [{"index": 0, "delta": {"content": "a"}}],
        "usage": {"total_tokens": 0},
    }
    for chunks in ([chunk], [chunk, placeholder], [placeholder, chunk]):
        usage = fold(decode(sse(*chunks)))["usage"]
        assert {name: usage[name] for name in USAGE} == USAGE


# --- indexes of another type ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [str, float, int])
def test_an_index_counts_whatever_type_it_is_of(kind: type) -> None:
    def call(index: int, **function: str) -> dict[str, Any]:
        return {
            "choices": [
                {"index": kind(1), "delta": {"tool_calls": [{"index": kind(index), "function": function}]}}
            ]
        }

    chunks = [
        call(0, name="f", arguments='{"a"'),
        call(1, name="g", arguments='{"b"'),
        call(0, arguments=": 1}"),
        call(1, arguments=": 2}"),
    ]
    (choice,) = fold(decode(sse(*chunks)))["choices"]
    assert choice["index"] == 1
    called = [
        (each["function"]["name"], each["function"]["arguments"]) for each in choice["message"]["tool_calls"]
    ]
    assert called == [("f", '{"a": 1}'), ("g", '{"b": 2}')]

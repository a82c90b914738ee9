"""The shapes of the usual events: read as fast, and as exactly, as they can be written again."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import Message
from tailrace.wrappers.cohere import CohereDecoder
from tailrace.wrappers.cohere.events import CallDelta, ContentDelta, PlanDelta, usual_event


def event(kind: str, index: int | None = None, **message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": kind, "delta": {"message": message}}
    return fields if index is None else {**fields, "index": index}


def read(fields: object) -> ContentDelta | CallDelta | PlanDelta | None:
    return usual_event(json.dumps(fields).encode())


def content(index: int | None, **fields: str) -> dict[str, Any]:
    return event("content-delta", index, content=fields)


def plan(piece: str) -> dict[str, Any]:
    return event("tool-plan-delta", tool_plan=piece)


def arguments(index: int | None, piece: str) -> dict[str, Any]:
    return event("tool-call-delta", index, tool_calls={"function": {"arguments": piece}})


def test_an_event_can_be_made_again_of_what_was_read() -> None:
    text, thinking = content(3, text="é"), content(0, thinking="hm")
    read_text, read_thinking = read(text), read(thinking)
    read_call, read_plan = read(arguments(1, "{")), read(plan("I"))
    assert isinstance(read_text, ContentDelta)
    assert read_text.raw("text", "é") == text
    assert isinstance(read_thinking, ContentDelta)
    assert read_thinking.raw("thinking", "hm") == thinking
    assert isinstance(read_call, CallDelta)
    assert (read_call.arguments, read_call.raw()) == ("{", arguments(1, "{"))
    assert isinstance(read_plan, PlanDelta)
    assert (read_plan.plan, read_plan.raw()) == ("I", plan("I"))


ODD: list[object] = [
    {},
    [],
    "content-delta",
    event("content-start", 0, content={"text": "a"}),
    event("content-delta", content={"text": "a"}),
    event("content-delta", 0, content={"text": None}),
    event("content-delta", 0, content={"text": "a", "odd": 1}),
    event("content-delta", 0, content={"text": "a"}, odd=1),
    {**event("content-delta", 0, content={"text": "a"}), "logprobs": {}},
    {**event("content-delta", 0, content={"text": "a"}), "error": "x"},
    event("tool-call-delta", 0, tool_calls={"id": "c", "function": {"arguments": "{"}}),
    event("tool-call-delta", 0, tool_calls={"function": {"arguments": {}}}),
    event("tool-plan-delta", tool_plan=None),
]


@pytest.mark.parametrize("fields", ODD)
def test_any_other_event_is_not_one_of_these(fields: object) -> None:
    assert read(fields) is None


@pytest.mark.parametrize("payload", [b"", b"[DONE]", b"\xff", b'{"type": "content-delta"', b"[" * 100_000])
def test_what_is_no_json_is_not_one_of_these(payload: bytes) -> None:
    assert usual_event(payload) is None


pieces = st.text(max_size=3)
indexes = st.sampled_from([0, 1, None])
events: st.SearchStrategy[dict[str, Any]] = (
    st.builds(content, indexes, text=pieces)
    | st.builds(content, indexes, thinking=pieces)
    | st.builds(content, indexes, text=pieces, thinking=pieces)
    | st.builds(plan, pieces)
    | st.builds(arguments, indexes, pieces)
    | st.sampled_from(
        [
            event("content-start", 0, content={"type": "text", "text": ""}),
            event("content-start", 1, content={"type": "thinking", "thinking": ""}),
            event("tool-call-start", 0, tool_calls={"id": "a", "function": {"name": "f", "arguments": ""}}),
            event("tool-call-start", 1, tool_calls={"id": "b", "function": {"name": "f", "arguments": ""}}),
            {"type": "message-end", "delta": {"finish_reason": "COMPLETE"}},
        ]
    )
)


@settings(deadline=None)
@given(st.lists(events, max_size=12))
def test_events_mean_the_same_read_at_speed_and_field_by_field(sent: list[dict[str, Any]]) -> None:
    at_speed, field_by_field = CohereDecoder(), CohereDecoder()
    body = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in sent)
    fast = [*at_speed.feed(body), *at_speed.close()]
    slow = [wrapper for each in sent for wrapper in field_by_field.wrap(each)]
    assert [wrapper.raw for wrapper in fast] == [wrapper.raw for wrapper in slow]
    assert fold(fast) == fold(slow)


def fold(wrappers: list[Any]) -> Message:
    accumulator = Accumulator()
    for wrapper in wrappers:
        accumulator.add(wrapper)
    accumulator.close()
    return accumulator.message()

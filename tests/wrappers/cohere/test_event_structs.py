"""The structs of the usual events lose nothing, and decode every event of a usual stream."""

import json
from typing import Any

import pytest

from tailrace.wrappers.cohere.event_structs import CallDelta, ContentDelta, PlanDelta, read_common_event


def event(kind: str, index: int | None = None, **message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": kind, "delta": {"message": message}}
    return fields if index is None else {**fields, "index": index}


def read(fields: object) -> ContentDelta | CallDelta | PlanDelta | None:
    return read_common_event(json.dumps(fields).encode())


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
    assert read_common_event(payload) is None

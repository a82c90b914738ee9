"""Alternating roles: neighbours of one role become one message of a request and stay separate in the history."""

import json
from typing import Any

import pytest

from support.messages import text_entries
from support.upstream import ScriptedUpstream, openai_stream
from tailrace.wrappers import ContentPartText, History, Message, Role
from tailrace.wrappers.conversion.adjacent_messages import with_merged_neighbours
from tailrace.wrappers.providers import FORMATS

NEIGHBOURS = History(
    system_message="Be brief.",
    context="It is Monday.",
    conversation=(
        Message(role=Role.USER, content=(ContentPartText(text="Hello."),)),
        Message(role=Role.USER, content=(ContentPartText(text="Who are you?"),)),
        Message(role=Role.MODEL, content=(ContentPartText(text="Wait."),)),
        Message(role=Role.MODEL, content=(ContentPartText(text="A model."),)),
        Message(role=Role.USER, content=(ContentPartText(text="Thanks."),)),
    ),
)


@pytest.mark.parametrize("name", FORMATS)
async def test_sides_take_turns_in_every_providers_request(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "token")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    before = NEIGHBOURS.model_dump_json()
    async with ScriptedUpstream(openai_stream(["ok"])) as upstream:
        model = FORMATS[name].create_model(
            "m", base_url=upstream.base_url, api_key="none", max_retries=0, read_timeout=5.0
        )
        async with model.stream(NEIGHBOURS):
            pass
        await model.aclose()
    body = upstream.requests[0].json
    messages = body.get("messages") or body.get("contents") or body["input"]
    roles = [message["role"] for message in messages if message["role"] != "system"]
    answers = "model" if name == "gemini" else "assistant"
    assert roles == ["user", answers, "user"]
    text = json.dumps(messages)
    positions = [text.index(phrase) for phrase in ("Monday", "Hello", "Who are", "Wait", "A model", "Thanks")]
    assert positions == sorted(positions)
    assert NEIGHBOURS.model_dump_json() == before


def message(role: str, content: object, **others: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **others}


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("messages", "merged"),
    [
        (
            [message("user", text_entries("a")), message("user", text_entries("b"))],
            [message("user", text_entries("a", "b"))],
        ),
        ([message("user", "a"), message("user", "b")], [message("user", "a\n\nb")]),
        ([message("user", ""), message("user", text_entries("b"))], [message("user", text_entries("b"))]),
        (
            [message("user", "a", images=["x"]), message("user", "b", images=["y"])],
            [message("user", "a\n\nb", images=["x", "y"])],
        ),
        (
            [message("assistant", "a"), message("assistant", None, tool_calls=[CALL])],
            [message("assistant", text_entries("a"), tool_calls=[CALL])],
        ),
    ],
)
def test_neighbours_are_added_up(messages: list[dict[str, Any]], merged: list[dict[str, Any]]) -> None:
    before = json.dumps(messages)
    assert with_merged_neighbours(messages) == merged
    assert json.dumps(messages) == before


def test_text_that_is_merged_with_a_list_is_a_part_of_the_formats_own_kind() -> None:
    types = {"user": "input_text", "assistant": "output_text"}
    parts = [{"type": "input_image", "image_url": "data:,"}]
    (merged,) = with_merged_neighbours([message("user", "a"), message("user", parts)], text_types=types)
    assert merged["content"] == [{"type": "input_text", "text": "a"}, *parts]


@pytest.mark.parametrize(
    "messages",
    [
        [message("user", "a", name="ada"), message("user", "b", name="ben")],
        [message("assistant", "a", tool_calls=[CALL]), message("assistant", "b")],
        [message("tool", "a", tool_call_id="1"), message("tool", "b", tool_call_id="2")],
        [message("system", "a"), message("system", "b")],
        [{"type": "function_call", "call_id": "1"}, {"type": "function_call", "call_id": "2"}],
    ],
)
def test_some_neighbours_stay_apart(messages: list[dict[str, Any]]) -> None:
    assert with_merged_neighbours(messages) == messages

"""A2A messages as Chat Completions messages: each row of the document about the mapping."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from a2a import types as sdk

from support.live_server import serving
from support.origin_rows import row
from support.rounds import answer, model_at
from support.rpc import Rpc, message
from support.upstream import ScriptedUpstream
from tailrace.server import AgentHandler, Settings, create_app
from tailrace.streaming import Agent, convert_a2a_message_to_openai
from tailrace.streaming.a2a import Message, Part, Role

CONVERT = "tailrace.streaming.convert_a2a_message_to_openai"

CALL = {"call_id": "call_abc123", "name": "get_weather", "arguments": {"location": "Oakland"}}
RESULT = {"call_id": "call_abc123", "name": "get_weather", "output": "Sunny, 72°F"}


def of(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def text(value: str) -> dict[str, Any]:
    return {"kind": "text", "text": value}


def data(**value: Any) -> dict[str, Any]:
    return {"kind": "data", "data": value}


@row("A message of role user with text only becomes one of role `user`", name=CONVERT)
@row("Example 1: user text message", name=CONVERT)
def test_a_users_text() -> None:
    a2a = {"role": "user", "parts": [{"kind": "text", "text": "What's the weather?"}]}
    assert convert_a2a_message_to_openai(a2a) == ({"role": "user", "content": "What's the weather?"}, [])


@row("A message of role agent with text only becomes one of role `assistant`", name=CONVERT)
def test_an_agents_text() -> None:
    assert convert_a2a_message_to_openai(of("agent", text("Sunny."))) == (
        {"role": "assistant", "content": "Sunny."},
        [],
    )


@row('A message of role agent with `tool_calls` has content `""` and `tool_calls`', name=CONVERT)
@row("Example 2: assistant message with tool calls", name=CONVERT)
def test_an_agents_tool_calls() -> None:
    a2a = {
        "role": "agent",
        "parts": [
            {
                "kind": "data",
                "data": {
                    "tool_calls": [
                        {
                            "call_id": "call_abc123",
                            "name": "get_weather",
                            "arguments": {"location": "Oakland"},
                        }
                    ]
                },
            }
        ],
    }
    openai_message, tool_messages = convert_a2a_message_to_openai(a2a)
    assert openai_message == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_abc123",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"location": "Oakland"}'},
            }
        ],
    }
    assert tool_messages == []


@row("A message of role user with `tool_results` becomes messages of role `tool`", name=CONVERT)
@row("Example 3: tool results", name=CONVERT)
@row("`openai_message` is None where there are only tool results", name=CONVERT)
def test_a_users_tool_results() -> None:
    a2a = {
        "role": "user",
        "parts": [
            {
                "kind": "data",
                "data": {
                    "tool_results": [
                        {"call_id": "call_abc123", "name": "get_weather", "output": "Sunny, 72°F"}
                    ]
                },
            }
        ],
    }
    assert convert_a2a_message_to_openai(a2a) == (
        None,
        [{"role": "tool", "tool_call_id": "call_abc123", "content": "Sunny, 72°F"}],
    )


@row("Tool results become separate tool messages, one for each result", name=CONVERT)
def test_each_tool_result_is_a_message() -> None:
    results = [RESULT, {**RESULT, "call_id": "call_2", "output": "Fog"}]
    openai_message, tool_messages = convert_a2a_message_to_openai(of("user", data(tool_results=results)))
    assert openai_message is None
    assert [(each["tool_call_id"], each["content"]) for each in tool_messages] == [
        ("call_abc123", "Sunny, 72°F"),
        ("call_2", "Fog"),
    ]


@row("A2A messages are converted directly, without intermediate steps", name=CONVERT)
@row("The conversion extracts text content from `parts[].text`", name=CONVERT)
@row("The conversion extracts tool calls from `parts[].data.tool_calls`", name=CONVERT)
@row("The conversion extracts tool results from `parts[].data.tool_results`", name=CONVERT)
def test_one_call_extracts_all_parts() -> None:
    a2a_message = of("agent", text("I look."), data(tool_calls=[CALL]))
    openai_message, _ = convert_a2a_message_to_openai(a2a_message)
    assert openai_message is not None
    assert openai_message["content"] == "I look."
    assert json.loads(openai_message["tool_calls"][0]["function"]["arguments"]) == {"location": "Oakland"}
    openai_message, [tool_message] = convert_a2a_message_to_openai(
        of("user", data(tool_results=[RESULT]), text("And now?"))
    )
    assert openai_message == {"role": "user", "content": "And now?"}
    assert tool_message["tool_call_id"] == "call_abc123"


OBJECTS: dict[str, Any] = {
    "dict": of("user", text("hi")),
    "model of tailrace": Message(message_id="m", role=Role.USER, parts=(Part(text="hi"),)),
    "a2a-sdk 1.x": sdk.Message(message_id="m", role=sdk.Role.ROLE_USER, parts=[sdk.Part(text="hi")]),
    "object": SimpleNamespace(role="user", parts=[SimpleNamespace(kind="text", text="hi")]),
}


@row("The function takes a message as a dict or an object", name=CONVERT)
@pytest.mark.parametrize("kind", OBJECTS)
def test_a_message_is_a_dict_or_an_object(kind: str) -> None:
    assert convert_a2a_message_to_openai(OBJECTS[kind]) == ({"role": "user", "content": "hi"}, [])


@row("The function returns `(openai_message, tool_messages)`; `tool_messages` is empty if none", name=CONVERT)
@pytest.mark.parametrize("role", ["user", "agent"])
def test_the_function_returns_a_pair(role: str) -> None:
    openai_message, tool_messages = convert_a2a_message_to_openai(of(role, text("hi")))
    assert openai_message is not None
    assert tool_messages == []


@row(
    "The store of messages has complete messages only, no streaming deltas",
    name="tailrace.server.create_app",
)
async def test_the_history_of_a_task_converts_message_by_message() -> None:
    def get_weather(location: str) -> str:
        """The weather."""
        return f"Sunny, 72°F in {location}"

    script = answer(calls=[("call_1", "get_weather", {"location": "Oakland"})])
    async with ScriptedUpstream(script, answer("It is ", "sunny.", reasoning="Easy.")) as upstream:
        agent = Agent[str](model_at(upstream), tools=[get_weather])
        app = create_app(Settings(store="sqlite://"), handler=AgentHandler(agent))
        async with serving(app) as url, Rpc(url) as rpc:
            sent = await rpc.result("SendMessage", message("What's the weather?"))
            task = await rpc.result("GetTask", {"id": sent["task"]["id"], "historyLength": 100})
    converted = [convert_a2a_message_to_openai(each) for each in task["history"]]
    flat = [each for one, several in converted for each in ([one] if one else several)]
    assert [(each["role"], each["content"]) for each in flat] == [
        ("user", "What's the weather?"),
        ("assistant", ""),
        ("tool", "Sunny, 72°F in Oakland"),
        ("assistant", "It is sunny."),
    ]
    assert flat[1]["tool_calls"][0]["function"]["arguments"] == '{"location": "Oakland"}'

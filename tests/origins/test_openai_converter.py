"""The OpenAI converter and its chunk wrapper: each row of the document, checked with the openai package's types."""

import json
from typing import Any, cast

import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from pydantic import TypeAdapter

from support.messages import text_part
from support.origin_rows import row
from support.rounds import answer
from support.upstream import ScriptedUpstream
from tailrace.wrappers import (
    ChunkWrapper,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    HistoryConverter,
    Message,
    Role,
    ToolCallDelta,
)
from tailrace.wrappers.openai import ChoiceDeltaWrapper, OpenAIConverter, wrap_chunk
from tailrace.wrappers.providers import FORMATS

WRAPPER = "tailrace.wrappers.openai.ChoiceDeltaWrapper"
CONVERTER = "tailrace.wrappers.openai.OpenAIConverter"
FROM = f"{CONVERTER}.from_history"
TO = f"{CONVERTER}.to_history"

converter = OpenAIConverter()
package_messages: TypeAdapter[Any] = TypeAdapter(list[ChatCompletionMessageParam])

CALL = ContentPartToolCall(id="call_1", name="get_weather", arguments={"city": "Paris"})
RESULT = ContentPartToolResult(id="call_1", name="get_weather", output={"sky": "sunny"})


def sent(history: History) -> list[dict[str, Any]]:
    """The messages for a history, validated by the openai package's types."""
    messages = cast("list[dict[str, Any]]", converter.from_history(history))
    package_messages.validate_python(messages)
    return messages


# --- core components --------------------------------------------------------------------------------------------


@row(
    "The application uses a consistent interface for every provider",
    name="tailrace.wrappers.HistoryConverter",
)
@pytest.mark.parametrize("name", FORMATS)
def test_every_provider_has_a_converter_of_one_interface(name: str) -> None:
    provider = FORMATS[name].create_converter()
    assert isinstance(provider, HistoryConverter)
    history = History(conversation=(Message(role=Role.USER, content=(text_part("Hello."),)),))
    assert provider.to_history(provider.from_history(history)) == history


@row("`ChoiceDeltaWrapper` wraps OpenAI's `ChoiceDelta` and implements `ChunkWrapper`", name=WRAPPER)
@row("Text content via `get_text()`", name=f"{WRAPPER}.get_text")
@row("Tool calls and function calls via `get_tool_calls()`", name=f"{WRAPPER}.get_tool_calls")
def test_a_wrapper_gives_access_to_a_delta() -> None:
    sent = {"index": 0, "id": "call_1", "function": {"name": "get_weather", "arguments": "{"}}
    delta = ChoiceDelta.model_validate({"content": "I look.", "tool_calls": [sent]})
    wrapper = ChoiceDeltaWrapper(delta)
    assert isinstance(wrapper, ChunkWrapper)
    assert wrapper.raw is delta
    assert wrapper.get_text() == "I look."
    assert wrapper.get_tool_calls() == [
        ToolCallDelta(index=0, id="call_1", name="get_weather", arguments="{")
    ]
    legacy = ChoiceDelta.model_validate({"function_call": {"name": "get_weather", "arguments": "{"}})
    [call] = ChoiceDeltaWrapper(legacy).get_tool_calls()
    assert (call.name, call.arguments) == ("get_weather", "{")


@row("`OpenAIConverter` implements the `HistoryConverter` interface", name=CONVERTER)
@row("It converts from the common History to `ChatCompletionMessageParam` objects", name=FROM)
@row("It converts from `ChatCompletionMessageParam` objects to common Message objects", name=TO)
def test_the_converter_goes_both_ways() -> None:
    assert isinstance(converter, HistoryConverter)
    history = History(
        system_message="Be brief.",
        conversation=(
            Message(role=Role.USER, content=(text_part("Weather?"),)),
            Message(role=Role.MODEL, content=(text_part("I look."), CALL)),
            Message(role=Role.TOOL, content=(RESULT.model_copy(update={"output": "sunny"}),)),
        ),
    )
    assert converter.to_history(cast("Any", sent(history))) == history


@row("It creates provider-specific messages from chunks", name=f"{CONVERTER}.to_provider_messages")
@row("It creates provider-specific messages from tool results", name=f"{CONVERTER}.tool_result_messages")
@row("It creates wrappers for streaming content chunks", name=f"{CONVERTER}.create_chunk_wrapper")
def test_the_converter_makes_messages_of_chunks_and_results() -> None:
    call = {"index": 0, "id": "call_1", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
    deltas: list[dict[str, Any]] = [{"content": "I "}, {"content": "look."}, {"tool_calls": [call]}]
    chunks = [converter.create_chunk_wrapper(ChoiceDelta.model_validate(each)) for each in deltas]
    assert all(isinstance(each, ChoiceDeltaWrapper) for each in chunks)
    [message] = cast("list[dict[str, Any]]", converter.to_provider_messages(chunks))
    assert message["content"] == [{"type": "text", "text": "I look."}]
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city":"Paris"}'
    [result] = converter.tool_result_messages([RESULT])
    assert result == {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "sunny"}'}


# --- message mapping --------------------------------------------------------------------------------------------


@row("`History.system_message` becomes a system message with a list of text parts", name=FROM)
def test_the_system_message() -> None:
    assert sent(History(system_message="Be brief.")) == [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    ]


@row(
    "`History.context` becomes a user message with a list of text parts",
    name=FROM,
    differs="Only in one direction: OpenAI's API has no role for the context, so `to_history` returns it as the first message of the user.",
)
def test_the_context() -> None:
    messages = sent(History(context="It is Monday."))
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "It is Monday."}]}]
    back = converter.to_history(cast("Any", messages))
    assert (back.context, back.conversation[0].text) == (None, "It is Monday.")


@row("A message of role USER becomes a user message with a list of text parts", name=FROM)
def test_a_users_message() -> None:
    history = History(conversation=(Message(role=Role.USER, content=(text_part("a"), text_part("b"))),))
    assert sent(history) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]


@row("A message of role MODEL becomes an assistant message with text parts and `tool_calls`", name=FROM)
@row("Tool calls are part of an assistant message as `tool_calls`", name=FROM)
@row("`id` is the unique identifier of the tool call", name=FROM)
@row("`function.name` is the name of the function", name=FROM)
@row("`function.arguments` is the JSON string of the arguments", name=FROM)
def test_a_models_message() -> None:
    [message] = sent(History(conversation=(Message(role=Role.MODEL, content=(text_part("I look."), CALL)),)))
    assert message["role"] == "assistant"
    assert message["content"] == [{"type": "text", "text": "I look."}]
    [call] = message["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("call_1", "get_weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


@row("A message of role TOOL becomes a tool message with JSON content", name=FROM)
@row("Tool results are separate messages of role `tool`", name=FROM)
@row("`tool_call_id` is the reference to the tool call", name=FROM)
def test_a_tools_message() -> None:
    other = ContentPartToolResult(id="call_2", name="get_time", output=[3, 45])
    messages = sent(History(conversation=(Message(role=Role.TOOL, content=(RESULT, other)),)))
    assert [(each["role"], each["tool_call_id"], json.loads(each["content"])) for each in messages] == [
        ("tool", "call_1", {"sky": "sunny"}),
        ("tool", "call_2", [3, 45]),
    ]


@row(
    "`content` is the JSON string of the tool's result",
    name=FROM,
    differs="Text is sent unchanged, without quotes: models process it better, and it needs fewer tokens.",
)
def test_a_tools_text_is_sent_as_it_stands() -> None:
    result = RESULT.model_copy(update={"output": "sunny"})
    [message] = sent(History(conversation=(Message(role=Role.TOOL, content=(result,)),)))
    assert message["content"] == "sunny"


# --- roles ------------------------------------------------------------------------------------------------------

ROLES = {Role.SYSTEM: "system", Role.USER: "user", Role.MODEL: "assistant", Role.TOOL: "tool"}


@row("`Role.SYSTEM` is `system`", name="tailrace.wrappers.Role")
@row("`Role.USER` is `user`", name="tailrace.wrappers.Role")
@row("`Role.MODEL` is `assistant`", name="tailrace.wrappers.Role")
@row("`Role.TOOL` is `tool`", name="tailrace.wrappers.Role")
def test_roles_are_mapped_both_ways() -> None:
    assert set(ROLES) == set(Role)
    history = History(
        system_message="Be brief.",
        conversation=(
            Message(role=Role.USER, content=(text_part("a"),)),
            Message(role=Role.MODEL, content=(CALL,)),
            Message(role=Role.TOOL, content=(RESULT,)),
        ),
    )
    messages = sent(history)
    assert [each["role"] for each in messages] == [
        ROLES[Role.SYSTEM],
        *(ROLES[each.role] for each in history.conversation),
    ]
    back = converter.to_history(cast("Any", messages))
    assert back.system_message == "Be brief."
    assert [each.role for each in back.conversation] == [each.role for each in history.conversation]


# --- the flow ---------------------------------------------------------------------------------------------------


@row("Flow 1: the application creates a History", name="tailrace.wrappers.History")
@row("Flow 2: `from_history()` makes OpenAI's messages of it", name=FROM)
@row("Flow 3: the OpenAI client receives and processes them", name=FROM)
@row("Flow 4: responses are wrapped in `ChoiceDeltaWrapper`", name="tailrace.wrappers.openai.wrap_chunk")
@row("Flow 5: tool calls and results go through the converter", name=f"{CONVERTER}.tool_result_messages")
@row("Flow 6: the history is updated with `to_history()`", name=TO)
async def test_the_flow_of_a_conversation_through_the_openai_client() -> None:
    scripts = (
        answer(calls=[("call_1", "get_weather", '{"city":"Paris"}')], reasoning="I have a tool."),
        answer("It is ", "sunny."),
    )
    async with ScriptedUpstream(*scripts) as upstream, _client(upstream) as client:
        history = History(
            system_message="Be brief.",
            conversation=(Message(role=Role.USER, content=(text_part("Weather?"),)),),
        )
        messages = converter.from_history(history)
        while True:
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
            wrappers = [wrapper async for chunk in stream for wrapper in wrap_chunk(chunk)]
            assert {type(each) for each in wrappers} == {ChoiceDeltaWrapper}
            messages += converter.to_provider_messages(wrappers)
            history = converter.to_history(messages)
            calls = history.conversation[-1].tool_calls
            if not calls:
                break
            results = [ContentPartToolResult(id=each.id, name=each.name, output="sunny") for each in calls]
            messages += converter.tool_result_messages(results)
        second = upstream.requests[1].json["messages"]
    assert [each["role"] for each in second] == ["system", "user", "assistant", "tool"]
    assert second[2]["tool_calls"][0]["function"]["arguments"] == '{"city":"Paris"}'
    assert [(each.role, each.text) for each in history.conversation] == [
        (Role.USER, "Weather?"),
        (Role.MODEL, ""),
        (Role.TOOL, ""),
        (Role.MODEL, "It is sunny."),
    ]


def _client(upstream: ScriptedUpstream) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=upstream.base_url, api_key="none", max_retries=0)

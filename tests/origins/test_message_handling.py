"""Messages of agents and mappers: each rule of the document about both, and its Python examples."""

import json
from contextlib import aclosing, suppress
from typing import Any

import pytest
from pydantic import BaseModel

from support.origin_rows import row
from support.provider_rounds import CALL_ID, provider_environment, provider_model
from support.provider_rounds import CALLS as PROVIDER_CALLS
from support.rounds import answer, model_at, sent
from support.upstream import ScriptedUpstream
from tailrace.streaming import Agent
from tailrace.wrappers import (
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
    TailraceError,
)
from tailrace.wrappers.providers import FORMATS

__all__ = ["provider_environment"]

RUN = "tailrace.streaming.Agent.run"
STREAM = "tailrace.streaming.Agent.run_stream"
MESSAGE = "tailrace.wrappers.Message"
RESULTS = "Tool results have their own role, `Role.TOOL`, as in OpenAI's API; in the document, they are a message of the user."
OPENAI = "tailrace.wrappers.openai.OpenAIConverter"
ANTHROPIC = "tailrace.wrappers.anthropic.AnthropicConverter"

CALLS = [("w", "get_weather", {"city": "NYC"}), ("t", "get_time", {"city": "NYC"})]

ROUND = History(
    conversation=(
        Message(role=Role.USER, content=(ContentPartText(text="Weather and time?"),)),
        Message(
            role=Role.MODEL,
            content=(
                ContentPartToolCall(id="1", name="tool1", arguments={}),
                ContentPartToolCall(id="2", name="tool2", arguments={}),
            ),
        ),
        Message(
            role=Role.TOOL,
            content=(
                ContentPartToolResult(id="1", name="tool1", output="result1"),
                ContentPartToolResult(id="2", name="tool2", output="result2"),
            ),
        ),
    )
)


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"72°F in {city}"


def get_time(city: str) -> str:
    """The time of a city."""
    return "3:45 PM"


def shape(messages: Any) -> list[tuple[str, str]]:
    """Role, and text or the ids of calls or results, of each message."""
    return [
        (each.role.value, each.text or " ".join(part.id for part in (*each.tool_calls, *each.tool_results)))
        for each in messages
    ]


def agent_at(upstream: ScriptedUpstream, *tools: Any, **options: Any) -> Agent[Any]:
    return Agent(model_at(upstream), tools=tools, **options)


# --- principles and rules ---------------------------------------------------------------------------------------


@row("User and model messages alternate in pairs", name=RUN, differs=RESULTS)
@row("A model message with several tool calls is followed by one message with all results", name=RUN)
@row("All tool results of one round are consolidated into one message", name=RUN, differs=RESULTS)
@row("The conversation is: prompt, response with calls, results, final response", name=RUN)
@row("Pairs of request and response make the flow of a conversation obvious", name=RUN)
async def test_a_round_of_tools_is_one_message_of_calls_and_one_of_results() -> None:
    async with ScriptedUpstream(answer(calls=CALLS), answer("72°F and 3:45 PM.")) as upstream:
        async with agent_at(upstream, get_weather, get_time) as agent:
            result = await agent.run("What is the weather and time in NYC?")
    assert shape(result.messages) == [
        ("user", "What is the weather and time in NYC?"),
        ("model", "w t"),
        ("tool", "w t"),
        ("model", "72°F and 3:45 PM."),
    ]


@row("Messages always alternate between user and model", name="tailrace.wrappers.model.Model")
@row(
    "Each provider's mapper adapts to what that provider's API expects", name="tailrace.wrappers.model.Model"
)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.usefixtures("provider_environment")
async def test_every_providers_request_has_turns_that_alternate(name: str) -> None:
    roles = (Role.USER, Role.USER, Role.MODEL, Role.MODEL, Role.USER)
    texts = ("One.", "Two.", "Three.", "Four.", "Five.")
    turns = [
        Message(role=role, content=(ContentPartText(text=text),))
        for role, text in zip(roles, texts, strict=True)
    ]
    history = History(context="It is Monday.", conversation=tuple(turns))
    async with ScriptedUpstream(answer("ok")) as upstream:
        model = provider_model(name, upstream)
        async with model.stream(history):
            pass
        await model.aclose()
    body = upstream.requests[0].json
    messages = body.get("messages") or body.get("contents") or body["input"]
    model_role = "model" if name == "gemini" else "assistant"
    assert [each["role"] for each in messages] == ["user", model_role, "user"]
    contents = [json.dumps(each) for each in messages]
    assert all(text in contents[0] for text in ("Monday", "One.", "Two."))
    assert all(text in contents[1] for text in ("Three.", "Four."))
    assert "Five." in contents[2]
    assert [each.text for each in history.conversation] == list(texts)


@row("A single message can contain several parts: text, tool calls, tool results", name=MESSAGE)
def test_a_message_holds_parts_of_every_kind() -> None:
    parts = (ContentPartText(text="I look."), *ROUND.conversation[1].content)
    message = Message(role=Role.MODEL, content=parts)
    assert Message.model_validate_json(message.model_dump_json()) == message
    assert (message.text, [each.id for each in message.tool_calls]) == ("I look.", ["1", "2"])
    assert [each.output for each in ROUND.conversation[2].tool_results] == ["result1", "result2"]


@row("The agent does not know about provider-specific requirements", name="tailrace.streaming.Agent")
@row("Agent behaviour is predictable and provider-agnostic", name="tailrace.streaming.Agent")
@row("The agent maintains a simple, consistent message structure", name="tailrace.streaming.Agent")
@row("New providers can be added without changing the agent", name="tailrace.streaming.Agent")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.usefixtures("provider_environment")
async def test_an_agent_has_the_same_messages_with_every_provider(name: str) -> None:
    messages: list[Message] = []
    async with ScriptedUpstream(PROVIDER_CALLS[name](CALL_ID, "get_time", '{"city": "NYC"}')) as upstream:
        model = provider_model(name, upstream)
        agent = Agent[str](model, tools=[get_time], max_rounds=2)
        # Every response is a call: the run ends with an error.
        with suppress(TailraceError):
            async with agent, aclosing(agent.run_stream("Time?")) as chunks:
                async for chunk in chunks:
                    messages.extend(chunk.messages)
        await model.aclose()
    assert shape(messages)[:3] == [("user", "Time?"), ("model", CALL_ID), ("tool", CALL_ID)]
    [call], [result] = messages[1].tool_calls, messages[2].tool_results
    assert (call.name, call.arguments) == ("get_time", {"city": "NYC"})
    assert (result.name, result.output) == ("get_time", "3:45 PM")


@row("Each mapper handles its provider's specific requirements", name="tailrace.wrappers.HistoryConverter")
@pytest.mark.parametrize("name", FORMATS)
def test_one_history_is_converted_for_every_provider(name: str) -> None:
    provider = FORMATS[name].create_converter()
    back = provider.to_history(provider.from_history(ROUND))
    assert [each.role for each in back.conversation] == [Role.USER, Role.MODEL, Role.TOOL]
    assert [each.output for each in back.conversation[2].tool_results] == ["result1", "result2"]


class Weather(BaseModel):
    """The output type of an agent."""

    degrees: int


@row("`run()` returns all messages, tool interactions included, with or without a schema", name=RUN)
@row("`runFor` with `outputSchema` returns an object", name=RUN, differs="`Agent(output_type=…).run(…)`.")
@pytest.mark.parametrize("output_type", [None, Weather])
async def test_a_run_returns_all_messages_whatever_its_output_is(output_type: type[Weather] | None) -> None:
    scripts = answer(calls=CALLS[:1]), answer('{"degrees": 72}')
    async with ScriptedUpstream(*scripts) as upstream:
        async with agent_at(upstream, get_weather, output_type=output_type) as agent:
            result = await agent.run("Weather?")
    assert result.output == ('{"degrees": 72}' if output_type is None else Weather(degrees=72))
    assert shape(result.messages) == [
        ("user", "Weather?"),
        ("model", "w"),
        ("tool", "w"),
        ("model", '{"degrees": 72}'),
    ]


# --- collecting the history -------------------------------------------------------------------------------------


@row("A run returns only the new text", name="tailrace.streaming.ChatResult")
@row("A run returns only the new messages", name="tailrace.streaming.ChatResult")
@row("Non-streaming pattern: pass the previous messages as history", name=RUN)
@row("Full history: `[...result1.messages, ...result2.messages]`", name=RUN)
@row("Incremental results: each holds only what is new in that run", name="tailrace.streaming.ChatResult")
async def test_the_example_of_two_runs() -> None:
    async with ScriptedUpstream(
        answer("Hi! ", "How can I help?", reasoning="A greeting."), answer("2+2 equals 4")
    ) as upstream:
        async with agent_at(upstream) as agent:
            # Initial conversation
            result1 = await agent.run("Hello")
            assert result1.output == "Hi! How can I help?"
            assert shape(result1.messages) == [("user", "Hello"), ("model", "Hi! How can I help?")]

            # Continue conversation - pass previous messages as history
            result2 = await agent.run(
                "What is 2+2?",
                history=result1.messages,
            )
            assert result2.output == "2+2 equals 4"
            assert shape(result2.messages) == [("user", "What is 2+2?"), ("model", "2+2 equals 4")]

            # Full conversation history
            full_history = [*result1.messages, *result2.messages]
        assert [each["content"] for each in sent(upstream.requests[1])] == [
            each.text for each in full_history[:3]
        ]


@row("Streaming pattern: accumulate text and messages of `runStream`", name=STREAM)
@row("After streaming, the buffer has the complete text and `messages` all messages of the run", name=STREAM)
@row("Tool messages are included", name=STREAM)
@row("Streaming and non-streaming follow the same incremental pattern", name=STREAM)
async def test_the_example_of_a_stream() -> None:
    scripts = (
        answer("I look. ", calls=CALLS, reasoning="Two tools."),
        answer("72°F ", "and 3:45 PM.", reasoning="Now both."),
    )
    async with ScriptedUpstream(*scripts, *scripts) as upstream:
        async with agent_at(upstream, get_weather, get_time) as agent:
            # Collect messages during streaming
            messages: list[Message] = []
            text_buffer: list[str] = []

            async with aclosing(agent.run_stream("Call my tools please")) as chunks:
                async for chunk in chunks:
                    text_buffer.append(chunk.output)  # Accumulate text chunks
                    messages.extend(chunk.messages)  # Accumulate message chunks

            result = await agent.run("Call my tools please")
    assert len(text_buffer) > 2
    assert "".join(text_buffer) == result.output == "I look. \n72°F and 3:45 PM."
    assert tuple(messages) == result.messages
    assert [each.role for each in messages] == [Role.USER, Role.MODEL, Role.TOOL, Role.MODEL]


@row("Applications maintain the history by accumulating messages", name=RUN)
@row("Example: multi-turn conversation with tools", name=RUN)
async def test_the_example_of_three_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = (
        answer("Hi! How can I help?"),
        answer(calls=CALLS, reasoning="Two tools."),
        answer("It's 72°F and 3:45 PM in NYC"),
        answer("Yes."),
    )
    async with ScriptedUpstream(*scripts) as upstream:
        monkeypatch.setenv("OPENAI_BASE_URL", upstream.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        async with Agent("openai:gpt-4o-mini", tools=[get_weather, get_time]) as agent:
            conversation_history: list[Message] = []

            # Turn 1: Simple question
            result1 = await agent.run("Hello!")
            conversation_history.extend(result1.messages)

            # Turn 2: Tool calling
            result2 = await agent.run(
                "What is the weather and time in NYC?",
                history=conversation_history,
            )
            conversation_history.extend(result2.messages)
            assert len(result2.messages) == 4

            # Turn 3: Follow-up
            result3 = await agent.run(
                "Is that good weather for a walk?",
                history=conversation_history,
            )
            conversation_history.extend(result3.messages)
        assert {each.json["model"] for each in upstream.requests} == {"gpt-4o-mini"}
        roles = [each["role"] for each in sent(upstream.requests[3])]
    assert len(conversation_history) == 8
    assert roles == ["user", "assistant", "user", "assistant", "tool", "tool", "assistant", "user"]


# --- providers and mappers --------------------------------------------------------------------------------------


@row("OpenAI: each tool result is a separate message of role `tool`", name=OPENAI)
@row("OpenAI mapper: one message with several results becomes several tool messages", name=OPENAI)
@row("`_mapUserMessage`: the caller expands a message into several", name=f"{OPENAI}.from_history")
@row("Consolidation of tool results is done by mappers, not by the agent", name=OPENAI)
def test_openai_has_a_message_for_each_result() -> None:
    messages = FORMATS["openai"].create_converter().from_history(ROUND)
    assert [each["id"] for each in messages[1]["tool_calls"]] == ["1", "2"]
    assert messages[2:] == [
        {"role": "tool", "tool_call_id": "1", "content": "result1"},
        {"role": "tool", "tool_call_id": "2", "content": "result2"},
    ]


@row("Anthropic: one user message with several `tool_result` blocks", name=ANTHROPIC)
@row("Anthropic mapper: one message with several results becomes one user message", name=ANTHROPIC)
def test_anthropic_has_one_message_with_all_results() -> None:
    messages = FORMATS["anthropic"].create_converter().from_history(ROUND)
    assert [(each["type"], each["id"]) for each in messages[1]["content"]] == [
        ("tool_use", "1"),
        ("tool_use", "2"),
    ]
    [results] = messages[2:]
    assert results["role"] == "user"
    assert [(each["type"], each["tool_use_id"]) for each in results["content"]] == [
        ("tool_result", "1"),
        ("tool_result", "2"),
    ]


@row("Gemini: one message with several function responses", name="tailrace.wrappers.gemini.GeminiConverter")
def test_gemini_has_one_message_with_all_responses() -> None:
    contents = FORMATS["gemini"].create_converter().from_history(ROUND)
    [responses] = contents[2:]
    assert [each["functionResponse"]["name"] for each in responses["parts"]] == ["tool1", "tool2"]


@row(
    "Ollama: the format adapts to the type of endpoint, native or OpenAI-compatible",
    name="tailrace.wrappers.ollama.OllamaConverter",
    differs="There are two formats: `ollama:` uses the native API, and `openai:` with a base URL uses the compatible API.",
)
def test_ollama_has_a_format_for_each_endpoint() -> None:
    native = FORMATS["ollama"].create_converter().from_history(ROUND)
    assert [(each["role"], each["content"]) for each in native[2:]] == [
        ("tool", "result1"),
        ("tool", "result2"),
    ]
    assert isinstance(native[1]["tool_calls"][0]["function"]["arguments"], dict)
    compatible = FORMATS["openai"].create_converter().from_history(ROUND)
    assert isinstance(compatible[1]["tool_calls"][0]["function"]["arguments"], str)


@row("Execute all tools and collect the results in one message, then yield it", name=STREAM)
async def test_results_are_yielded_as_one_message_in_the_order_of_the_calls() -> None:
    async with ScriptedUpstream(answer(calls=CALLS), answer("Done.")) as upstream:
        async with agent_at(upstream, get_weather, get_time) as agent:
            async with aclosing(agent.run_stream("Go.")) as chunks:
                messages = [message async for chunk in chunks for message in chunk.messages]
    [results] = [each for each in messages if each.role is Role.TOOL]
    assert [(each.id, each.name, each.output) for each in results.tool_results] == [
        ("w", "get_weather", "72°F in NYC"),
        ("t", "get_time", "3:45 PM"),
    ]

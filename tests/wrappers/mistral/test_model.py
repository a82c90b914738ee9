"""The Mistral model against a scripted server: what is asked, what comes, what goes wrong."""

from typing import Any

import pytest

from support.upstream import Cut, ScriptedUpstream, json_answer, openai_stream, sse
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    ConfigurationError,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers.mistral import MistralModel

THINKING = {"mistral": {"type": "thinking"}}
HISTORY = History(
    system_message="Be brief.",
    conversation=(
        Message(role=Role.USER, content=(ContentPartText(text="Weather?"),)),
        Message(
            role=Role.MODEL,
            content=(
                ContentPartReasoning(text="hm", metadata=THINKING),
                ContentPartToolCall(id="aB3dE6gH9", name="weather", arguments={"city": "Bern"}),
            ),
        ),
        Message(role=Role.TOOL, content=(ContentPartToolResult(id="aB3dE6gH9", name="weather", output="Sunny"),)),
    ),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MISTRAL_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


async def ask(model: MistralModel, history: History = HISTORY) -> Accumulator:
    answer = Accumulator()
    try:
        async with model.stream(history) as batches:
            async for batch in batches:
                for chunk in batch:
                    answer.add(chunk)
    finally:
        await model.aclose()
    answer.close()
    return answer


def chunk(content: object, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return sse(
        {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    )


async def test_the_request_is_as_mistral_wants_it_and_the_answer_streams() -> None:
    thought = [{"type": "thinking", "thinking": [{"type": "text", "text": "easy"}]}]
    async with ScriptedUpstream(
        [chunk(thought), chunk("Sunny."), chunk("", "stop"), sse("[DONE]")]
    ) as upstream:
        model = MistralModel(
            "magistral-medium-latest",
            base_url=upstream.base_url,
            api_key="secret",
            parameters={"temperature": 0.5, "safe_prompt": True},
        )
        answer = await ask(model)
        request = await upstream.received()
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == "Bearer secret"
    assert request.json == {
        "model": "magistral-medium-latest",
        "stream": True,
        "temperature": 0.5,
        "safe_prompt": True,
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}],
                "tool_calls": [
                    {
                        "id": "aB3dE6gH9",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "aB3dE6gH9", "name": "weather", "content": "Sunny"},
        ],
    }
    assert answer.message().content == (
        ContentPartReasoning(text="easy", metadata=THINKING),
        ContentPartText(text="Sunny."),
    )
    assert answer.finished


async def test_the_key_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MISTRAL_API_KEY", "from the environment")
    async with ScriptedUpstream(openai_stream(["Hi"])) as upstream:
        answer = await ask(MistralModel("m", base_url=upstream.base_url))
        request = await upstream.received()
    assert answer.message().text == "Hi"
    assert request.headers["authorization"] == "Bearer from the environment"


def test_without_a_key_the_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of somebody else")
    with pytest.raises(ConfigurationError, match="MISTRAL_API_KEY"):
        MistralModel("m")


async def test_a_request_that_is_refused_for_the_moment_is_sent_again() -> None:
    busy = json_answer({"message": "slow down"}, 429, {"retry-after-ms": "1"})
    async with ScriptedUpstream(busy, openai_stream(["Hi"])) as upstream:
        answer = await ask(MistralModel("m", base_url=upstream.base_url, api_key="k"))
    assert answer.message().text == "Hi"
    assert len(upstream.requests) == 2


async def test_a_refusal_says_what_mistral_says() -> None:
    body: dict[str, Any] = {
        "object": "error",
        "message": "Unexpected role 'user' after role 'tool'",
        "type": "invalid_request_message_order",
        "param": None,
        "code": "3230",
    }
    async with ScriptedUpstream(json_answer(body, 400)) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await ask(MistralModel("m", base_url=upstream.base_url, api_key="k"))
    error = caught.value
    assert (error.fault, error.provider, error.status) == (UpstreamFault.STATUS, "mistral", 400)
    assert (error.message, error.code) == ("Unexpected role 'user' after role 'tool'", "3230")


async def test_an_error_in_the_stream_keeps_what_came_before() -> None:
    failure = sse({"object": "error", "message": "Service unavailable", "code": "3505"})
    async with ScriptedUpstream([chunk("Hel"), failure, sse("[DONE]")]) as upstream:
        answer = await ask(MistralModel("m", base_url=upstream.base_url, api_key="k"))
    assert answer.message().text == "Hel"
    assert answer.error is not None
    assert (answer.error.message, answer.error.provider) == ("Service unavailable", "mistral")


async def test_a_connection_that_breaks_is_an_error() -> None:
    async with ScriptedUpstream([chunk("Hel"), Cut()]) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await ask(MistralModel("m", base_url=upstream.base_url, api_key="k"))
    assert caught.value.fault is UpstreamFault.TRUNCATED


async def test_a_conversation_that_another_provider_began_goes_on() -> None:
    begun = History(
        conversation=(
            Message(role=Role.USER, content=(ContentPartText(text="Weather?"),)),
            Message(
                role=Role.MODEL,
                content=(
                    ContentPartReasoning(
                        text="hm", signature="s", metadata={"anthropic": {"type": "thinking"}}
                    ),
                    ContentPartToolCall(id="toolu_01-x", name="weather"),
                ),
            ),
            Message(
                role=Role.TOOL,
                content=(ContentPartToolResult(id="toolu_01-x", name="weather", output="Sunny"),),
            ),
            Message(role=Role.USER, content=(ContentPartText(text="And tomorrow?"),)),
        )
    )
    async with ScriptedUpstream(openai_stream(["Rain."])) as upstream:
        await ask(MistralModel("m", base_url=upstream.base_url, api_key="k"), begun)
        request = await upstream.received()
    _, call, result, bridge, _ = request.json["messages"]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "call00000"
    assert call["content"] == ""
    assert [message["role"] for message in request.json["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert bridge["content"]

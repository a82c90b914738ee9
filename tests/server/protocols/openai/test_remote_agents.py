"""OpenAI's client, our OpenAI-compatible API, and a remote A2A agent behind it."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from support.agents import Scripted
from support.live_server import serving
from support.openai_api import WEATHER, Facade, assistant, content_of, facade_over, tool, user
from support.remote_agents import Saying, agent_says, says, sdk_agent, sdk_card
from support.rounds import answer, sent
from support.upstream import ScriptedUpstream
from tailrace.server import Settings, Turn, create_app
from tailrace.server.sdk import AgentExecutor, RemoteAgent, RemoteAgentHandler
from tailrace.streaming import ArtifactUpdate
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.updates import Update

KEY = {"extra_body": {"metadata": {"conversation_id": "chat-1"}}}


@asynccontextmanager
async def facade_before(url: str) -> AsyncGenerator[Facade]:
    """Return our OpenAI-compatible API in front of the agent at a URL."""
    handler = RemoteAgentHandler(RemoteAgent(url, retry_delays=(0.0,) * 5))
    async with facade_over(handler=handler) as facade:
        yield facade


@asynccontextmanager
async def facade_before_a_model(upstream: ScriptedUpstream) -> AsyncGenerator[Facade]:
    """Return our OpenAI-compatible API in front of another server of ours and a scripted provider."""
    settings = Settings.model_validate(
        {
            "model": "openai:scripted",
            "base_url": upstream.base_url,
            "api_key": "none",
            "upstream_retries": 0,
            "store": "sqlite://",
            "coalesce": "none",
        }
    )
    async with serving(create_app(settings)) as url, facade_before(url) as facade:
        yield facade


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_an_agent_of_the_sdk(version: str, streaming: bool) -> None:
    card = sdk_card("JSONRPC", version, streaming=streaming)
    async with sdk_agent(AgentExecutor(Scripted()), card) as url, facade_before(url) as facade:
        first, _, _ = await facade.chat_named(user("river"), **KEY)
        messages: list[Any] = [user("river"), assistant(first), user("ask")]
        question, context, task = await facade.chat_named(*messages, **KEY)
        messages += [assistant(question), user("pond")]
        last, again, same = await facade.chat_named(*messages, **KEY)
        pieces = content_of(await facade.chunks(user("brook")))
    texts = [each.choices[0].message.content for each in (first, question, last)]
    assert texts == ["river", "which one?", "pond"]
    assert (context, again) == ("chat-1", "chat-1")
    assert task == same
    assert "".join(pieces) == "brook"


async def test_texts_of_one_artifact_stand_apart() -> None:
    async def handle(turn: Turn) -> AsyncIterator[Update]:
        yield ArtifactUpdate(Artifact(artifact_id="a", parts=(Part(text="one"), Part(text="two"))))

    async with (
        serving(create_app(Settings(store="sqlite://"), handler=handle)) as url,
        facade_before(url) as facade,
    ):
        whole = await facade.chat(user("hi"))
        pieces = content_of(await facade.chunks(user("hi")))
    assert whole.choices[0].message.content == "".join(pieces) == "one\n\ntwo"


async def test_an_agent_that_answers_with_its_last_status() -> None:
    agent = Saying(says("working", "hm"), says("completed", "42"))
    async with sdk_agent(agent) as url, facade_before(url) as facade:
        first, context, _ = await facade.chat_named(user("?"), **KEY)
        _, again, _ = await facade.chat_named(user("?"), assistant(first), user("??"), **KEY)
    assert first.choices[0].message.content == "42"
    assert (context, again) == ("chat-1", "chat-1")


async def test_an_agent_that_answers_with_a_message() -> None:
    async with sdk_agent(Saying(agent_says("Good day."))) as url, facade_before(url) as facade:
        whole = await facade.chat(user("?"))
    assert whole.choices[0].message.content == "Good day."


@pytest.mark.parametrize("state", ["failed", "rejected"])
async def test_an_agent_that_fails_is_an_error_and_never_an_answer(state: str) -> None:
    async with sdk_agent(Saying(says(state, "not today"))) as url, facade_before(url) as facade:
        with pytest.raises(openai.APIStatusError, match="not today"):
            await facade.chat(user("?"))
        with pytest.raises(openai.APIError, match="not today"):
            await facade.chunks(user("?"))


async def test_an_agent_that_is_away_is_an_error() -> None:
    async with facade_before("http://127.0.0.1:9") as facade:
        with pytest.raises(openai.InternalServerError) as raised:
            await facade.chat(user("?"))
    assert raised.value.status_code == 502


async def test_tools_of_the_client_through_two_servers() -> None:
    calls = [("c1", "get_weather", {"city": "Paris"}), ("c2", "get_weather", {"city": "Rome"})]
    script = answer("Let me see.", calls=calls, reasoning="Hm."), answer("Sun", "ny.")
    async with ScriptedUpstream(*script) as upstream, facade_before_a_model(upstream) as facade:
        first, _, task = await facade.chat_named(user("Weather?"), tools=[WEATHER], temperature=0.5)
        message = first.choices[0].message
        assert [call.id for call in message.tool_calls or ()] == ["c1", "c2"]
        assert first.choices[0].finish_reason == "tool_calls"
        messages = [user("Weather?"), assistant(first), tool("c1", "sunny"), tool("c2", "rainy")]
        last, _, same = await facade.chat_named(*messages, tools=[WEATHER], temperature=0.5)
    assert last.choices[0].message.content == "Sunny."
    assert last.usage is not None
    assert last.usage.total_tokens == 15
    assert task == same
    assert upstream.requests[0].json["temperature"] == 0.5
    assert [each["role"] for each in sent(upstream.requests[1])] == ["user", "assistant", "tool", "tool"]

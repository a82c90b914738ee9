"""A remote agent as a tool: called directly, and by an agent with a model."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from support.agents import Scripted
from support.live_server import serving
from support.remote_agents import Saying, says, sdk_agent
from support.rounds import answer
from support.upstream import ScriptedUpstream
from tailrace.server import CardSettings, Settings, Turn, create_app, create_model
from tailrace.server.runtime.handlers import Item
from tailrace.server.sdk import AgentTool, RemoteAgent, agent_tools
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState
from tailrace.streaming.a2a.models import AgentSkill, Artifact, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.agent.agent import Agent
from tailrace.streaming.task.task_record import agent_message
from tailrace.streaming.tools.tools import ToolContext, ToolError
from tailrace.wrappers import ConfigurationError, ContentPartToolCall, UpstreamError

STORE = Settings(store="sqlite://", agent_name="Their agent", card=CardSettings(description="Says it back."))


async def call(tool: AgentTool, message: object, context_id: str = "") -> Any:
    given = ContentPartToolCall(id="c", name=tool.definition.name, arguments={"message": message})
    return await tool.call(dict(given.arguments), ToolContext(given, external_context_id=context_id))


async def test_the_tool_definition_comes_from_the_card():
    skills = [AgentSkill(id="s", name="Echo", description="Says it back", tags=("t",))]
    async with serving(create_app(STORE, handler=Scripted(), skills=skills)) as url:
        async with agent_tools(url, url + "/.well-known/agent.json").connected() as tools:
            for tool in tools:
                assert tool.definition.name == "Their_agent"
                assert tool.definition.description == "Says it back.\n\nWhat it can do:\n- Echo: Says it back"
                assert tool.definition.parameters["required"] == ["message"]
        async with RemoteAgent(url) as agent:
            named = AgentTool(agent, await agent.card(), name="echo", description="x", timeout=5)
            assert (named.definition.name, named.definition.description, named.timeout) == ("echo", "x", 5)


async def test_a_conversation_of_ours_is_one_of_theirs_and_others_are_others():
    scripted = Scripted()
    async with serving(create_app(STORE, handler=scripted)) as url, RemoteAgent(url) as agent:
        tool = AgentTool(agent, await agent.card())
        assert await call(tool, "river", "a") == "river"
        assert await call(tool, "brook", "b") == "brook"
        assert await call(tool, "pond", "a") == "pond"
        assert await call(tool, "alone") == "alone"
        assert await call(tool, "alone") == "alone"
    contexts = [turn.context_id for turn in scripted.turns]
    assert contexts[0] == contexts[2]
    assert len(set(contexts)) == 4


async def test_a_question_comes_back_and_the_next_message_answers_it():
    scripted = Scripted()
    async with serving(create_app(STORE, handler=scripted)) as url, RemoteAgent(url) as agent:
        tool = AgentTool(agent, await agent.card())
        assert "which one?" in await call(tool, "ask", "a")
        assert await call(tool, "the red one", "a") == "the red one"
        assert await call(tool, "another", "a") == "another"
    question, answered, another = (turn.task_id for turn in scripted.turns)
    assert question == answered != another


async def test_an_agent_that_never_completes_a_task_has_its_response_as_the_result():
    text = says("working", "Paris")
    text.metadata.update({"coderAgent": {"kind": "text-content"}})
    async with sdk_agent(Saying(text, says("input_required"))) as url, RemoteAgent(url) as agent:
        assert await call(AgentTool(agent, await agent.card()), "France?") == "Paris"


async def test_calls_at_once_are_one_conversation():
    scripted = Scripted()
    async with serving(create_app(STORE, handler=scripted)) as url, RemoteAgent(url) as agent:
        tool = AgentTool(agent, await agent.card())
        await call(tool, "ask", "a")
        async with anyio.create_task_group() as group:
            for text in ("river", "brook"):
                group.start_soon(call, tool, text, "a")
    assert len({turn.context_id for turn in scripted.turns}) == 1
    assert sorted(turn.number for turn in scripted.turns) == [1, 1, 2]


async def test_files_and_data_are_json_and_thoughts_are_left_out():
    async def handle(turn: Turn) -> AsyncIterator[Item]:
        thought = {EXTENSION_URI: {"channel": "reasoning"}}
        yield ArtifactUpdate(Artifact(artifact_id="r", parts=(Part(text="hm"),), metadata=thought))
        yield ArtifactUpdate(Artifact(artifact_id="t", parts=(Part(text="see: "),)))
        file = Part(raw=b"the bytes", media_type="image/png", filename="p.png")
        linked_file = Part(url="https://x.example/p.png", media_type="image/png")
        yield ArtifactUpdate(Artifact(artifact_id="f", parts=(file, linked_file, Part(data={"n": 1}))))

    async with serving(create_app(STORE, handler=handle)) as url, RemoteAgent(url) as agent:
        output = await call(AgentTool(agent, await agent.card()), "draw")
    assert output == [
        {"text": "see: "},
        {"mediaType": "image/png", "filename": "p.png", "omitted": "9 bytes"},
        {"url": "https://x.example/p.png", "mediaType": "image/png"},
        {"data": {"n": 1}},
    ]


async def test_the_bytes_of_a_file_are_left_out_of_words_too():
    async def handle(turn: Turn) -> AsyncIterator[Item]:
        page = Part(raw=b"the bytes", media_type="text/plain")
        message = agent_message("out of paper").model_copy(update={"parts": (Part(text="see"), page)})
        yield StatusUpdate(TaskState.FAILED, message)

    async with serving(create_app(STORE, handler=handle)) as url, RemoteAgent(url) as agent:
        with pytest.raises(ToolError) as raised:
            await call(AgentTool(agent, await agent.card()), "print")
    assert str(raised.value) == 'see {"mediaType": "text/plain", "omitted": "9 bytes"}'


@pytest.mark.parametrize("how", ["failed", "rejected", "canceled", "auth_required"])
async def test_what_is_no_answer_is_an_error_for_the_model(how: str):
    async with sdk_agent(Saying(says(how, "no paper"))) as url, RemoteAgent(url) as agent:
        tool = AgentTool(agent, await agent.card())
        with pytest.raises(ToolError, match="no paper"):
            await call(tool, "print")
        for wrong in ("", 1, None):
            with pytest.raises(ToolError, match="message"):
                await call(tool, wrong)


async def test_words_that_came_with_a_status_are_the_answer_where_there_is_no_other():
    for events in ((says("working", "hi"), says("completed")), (says("completed", "hi"),)):
        async with sdk_agent(Saying(*events)) as url, RemoteAgent(url) as agent:
            assert await call(AgentTool(agent, await agent.card()), "hello") == "hi"


async def test_an_agent_that_is_away():
    with pytest.raises(UpstreamError, match="cannot be reached"):
        async with agent_tools("http://127.0.0.1:1").connected():
            pass
    with pytest.raises(ConfigurationError):
        async with agent_tools("ftp://x").connected():
            pass
    async with serving(create_app(STORE, handler=Scripted())) as url:
        agent = RemoteAgent(url, retry_delays=())
        tool = AgentTool(agent, await agent.card())
    with pytest.raises(ToolError, match="cannot be reached"):
        await call(tool, "hello")
    await agent.aclose()


async def test_a_call_that_is_cancelled_cancels_the_remotes_task():
    scripted = Scripted()
    held = anyio.Event()

    async def handle(turn: Turn) -> AsyncIterator[Item]:
        async for item in scripted(turn):
            yield item
            if isinstance(item, ArtifactUpdate):
                held.set()

    async with serving(create_app(STORE, handler=handle)) as url, RemoteAgent(url) as agent:
        tool = AgentTool(agent, await agent.card())
        async with anyio.create_task_group() as group:
            group.start_soon(call, tool, "hold")
            await held.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(10):
            await scripted.stopped.wait()


async def test_an_agent_with_a_model_calls_a_remote_agent():
    async def handle(turn: Turn) -> AsyncIterator[Item]:
        text = turn.history.conversation[-1].text
        yield StatusUpdate(TaskState.COMPLETED, agent_message(f"{text} is sunny"))

    asks = answer(calls=[("c1", "Their_agent", {"message": "Rome"})], finish="tool_calls")
    async with serving(create_app(STORE, handler=handle)) as url:
        async with ScriptedUpstream(asks, answer("Sunny.")) as upstream:
            settings = Settings.model_validate(
                {"model": "openai:scripted", "base_url": upstream.base_url, "api_key": "none"}
            )
            async with Agent(create_model(settings), tools=[agent_tools(url)]) as agent:
                result = await agent.run("How is Rome?")
        tool_message = (await upstream.received(1)).json["messages"][-1]
    assert result.output == "Sunny."
    assert (tool_message["role"], tool_message["content"]) == ("tool", "Rome is sunny")

"""Answers with two text parts, as each caller protocol delivers them where it has a single text."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import openai
import pytest

from support.live_server import serving
from support.ui_streams import payloads, read_run, read_ui_messages
from tailrace.server import Settings, Turn, create_app
from tailrace.server.cli.transcript import Text, Transcript
from tailrace.server.remote.client import AgentClient
from tailrace.server.sdk import AgentTool, RemoteAgent, RemoteAgentHandler
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, TextDelta, ToolContext, Update
from tailrace.streaming.a2a import Artifact, Message, Part, Role
from tailrace.wrappers import ContentPartToolCall

Handler = Callable[[Turn], AsyncIterator[Update]]

STORE = Settings(store="sqlite://")
PARTS = (Part(text="Revenue grew."), Part(text="Costs fell."))
BOTH = "Revenue grew.\n\nCosts fell."


def made(*parts: Part, append: bool = False, last: bool = True) -> ArtifactUpdate:
    return ArtifactUpdate(Artifact(artifact_id="a", parts=parts), append=append, last=last)


async def artifact(turn: Turn) -> AsyncIterator[Update]:
    yield made(*PARTS)


async def growing_artifact(turn: Turn) -> AsyncIterator[Update]:
    yield made(PARTS[0], Part(text="Costs"), last=False)
    yield TextDelta("a", " fe")
    yield made(Part(text="l"), Part(text="l."), append=True)


async def status(turn: Turn) -> AsyncIterator[Update]:
    yield StatusUpdate(TaskState.COMPLETED, Message(message_id="m", role=Role.AGENT, parts=PARTS))


async def pieces_with_metadata(turn: Turn) -> AsyncIterator[Update]:
    # Some frameworks send the tokens of one text as separate parts of an artifact.
    pieces = ("Revenue grew.\n", "\nCosts ", "fell.")
    for at, text in enumerate(pieces):
        yield made(Part(text=text, metadata={"thought": False}), append=at > 0, last=at == len(pieces) - 1)


HANDLERS: list[Handler] = [artifact, growing_artifact, status, pieces_with_metadata]


async def chat_completion(url: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "How was it?"}]
        completion = await client.chat.completions.create(model="tailrace", messages=messages)
        return completion.choices[0].message.content or ""


async def chat_completion_chunks(url: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "How was it?"}]
        stream = await client.chat.completions.create(model="tailrace", messages=messages, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def responses(url: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        return (await client.responses.create(model="tailrace", input="How was it?")).output_text


async def post(address: str, body: dict[str, Any]) -> list[bytes]:
    async with aiohttp.ClientSession() as http, http.post(address, json=body) as response:
        return payloads(await response.read())


async def ai_sdk(url: str) -> str:
    message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "How was it?"}]}
    return read_ui_messages(await post(f"{url}/ai-sdk", {"id": "chat", "messages": [message]})).text


async def ag_ui(url: str) -> str:
    message = {"id": "m", "role": "user", "content": "How was it?"}
    return read_run(await post(f"{url}/ag-ui", {"threadId": "t", "runId": "r", "messages": [message]})).text


async def agent_tool(url: str) -> object:
    async with RemoteAgent(url) as agent:
        tool = AgentTool(agent, await agent.card())
        call = ContentPartToolCall(id="c", name=tool.definition.name, arguments={"message": "How was it?"})
        return await tool.call(call.arguments, ToolContext(call))


CLIENTS: list[Any] = [chat_completion, chat_completion_chunks, responses, ai_sdk, ag_ui, agent_tool]
ALL_BOTH = {client.__name__: BOTH for client in CLIENTS}


@pytest.mark.parametrize("handler", HANDLERS)
async def test_clients_of_one_text_are_given_both_parts_apart(handler: Handler) -> None:
    async with serving(create_app(STORE, handler=handler)) as url:
        assert {client.__name__: await client(url) for client in CLIENTS} == ALL_BOTH


@pytest.mark.parametrize("handler", HANDLERS)
async def test_so_are_clients_of_a_server_in_front_of_the_agent(handler: Handler) -> None:
    async with serving(create_app(STORE, handler=handler)) as behind, RemoteAgent(behind) as agent:
        async with serving(create_app(STORE, handler=RemoteAgentHandler(agent))) as url:
            assert {client.__name__: await client(url) for client in CLIENTS} == ALL_BOTH


@pytest.mark.parametrize("handler", [artifact, growing_artifact, pieces_with_metadata])
async def test_the_command_line_shows_both_parts_apart(handler: Handler) -> None:
    async with serving(create_app(STORE, handler=handler)) as url:
        transcript = Transcript()
        async with AgentClient(url) as client:
            items = [
                item
                async for event in client.stream("How was it?")
                for item in transcript.read(event.response)
            ]
    assert "".join(item.text for item in items if isinstance(item, Text)) == BOTH

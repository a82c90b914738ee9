"""Requests with two text parts, as each provider receives them from every caller protocol."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import aiohttp
import grpc.aio
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc
from a2a.types import Message as SdkMessage
from a2a.types import Part as SdkPart
from a2a.types import Role as SdkRole
from a2a.types import SendMessageRequest, a2a_pb2_grpc

from support.live_server import serving
from support.provider_rounds import provider_environment
from support.upstream import ScriptedUpstream, json_answer
from tailrace.server import Settings, create_app
from tailrace.streaming import A2ATaskBridge
from tailrace.wrappers.providers import FORMATS

__all__ = ["provider_environment"]

GOAL, CONTEXT = "Summarize the Q4 report", "Focus on revenue metrics"


def parts(kind: str) -> list[dict[str, str]]:
    return [{"type": kind, "text": text} for text in (GOAL, CONTEXT)]


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


# The content of the last message of the request.
SENT: Mapping[str, tuple[str, dict[str, Any]]] = {
    "openai": ("messages", user(parts("text"))),
    "openai-responses": ("input", {"type": "message", **user(parts("input_text"))}),
    "anthropic": ("messages", user(parts("text"))),
    "gemini": ("contents", {"role": "user", "parts": [{"text": GOAL}, {"text": CONTEXT}]}),
    "ollama": ("messages", user(f"{GOAL}\n\n{CONTEXT}")),
    "cohere": ("messages", user(parts("text"))),
    "mistral": ("messages", user(parts("text"))),
    "bedrock": ("messages", user([{"text": GOAL}, {"text": CONTEXT}])),
}
assert SENT.keys() == FORMATS.keys()


@dataclass
class Agent:
    """A server in front of a provider.

    Attributes:
        url: The URL of its HTTP endpoint.
        http: A client for it.
    """

    url: str
    http: aiohttp.ClientSession

    async def post(self, path: str, body: object) -> None:
        async with self.http.post(self.url + path, json=body) as response:
            await response.read()

    async def grpc_address(self) -> str:
        async with self.http.get(f"{self.url}/.well-known/agent-card.json") as response:
            card = await response.json()
        return next(each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC")


@asynccontextmanager
async def agent_before(upstream: ScriptedUpstream, name: str) -> AsyncGenerator[Agent]:
    settings = Settings.model_validate(
        {
            "store": "sqlite://",
            "model": f"{name}:m",
            "base_url": upstream.base_url,
            "api_key": "none",
            "upstream_retries": 0,
            "grpc_port": 0,
            "shutdown_grace": 0,
        }
    )
    async with serving(create_app(settings)) as url, aiohttp.ClientSession() as http:
        yield Agent(url, http)


def a2a_message(form: str) -> dict[str, Any]:
    texts = [{"text": GOAL}, {"text": CONTEXT}]
    if form == "1.0":
        return {"messageId": "m", "role": "ROLE_USER", "parts": texts}
    return {"messageId": "m", "role": "user", "parts": [{"kind": "text", **text} for text in texts]}


async def json_rpc(agent: Agent) -> None:
    params = {"message": a2a_message("1.0")}
    await agent.post("/", {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params})


async def json_rpc_0_3(agent: Agent) -> None:
    params = {"message": a2a_message("0.3")}
    await agent.post("/", {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params})


async def bridge(agent: Agent) -> None:
    await agent.post("/", A2ATaskBridge().build_send_request(goal=GOAL, context=CONTEXT))


async def http_json(agent: Agent) -> None:
    await agent.post("/message:send", {"message": a2a_message("1.0")})


async def http_json_0_3(agent: Agent) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": GOAL}, {"text": CONTEXT}]}
    await agent.post("/v1/message:send", {"message": message, "configuration": {"blocking": True}})


async def grpc_binding(agent: Agent) -> None:
    message = SdkMessage(
        message_id="m", role=SdkRole.ROLE_USER, parts=[SdkPart(text=GOAL), SdkPart(text=CONTEXT)]
    )
    async with grpc.aio.insecure_channel(await agent.grpc_address()) as channel:
        stub: Any = cast("Any", a2a_pb2_grpc).A2AServiceStub(channel)
        await stub.SendMessage(SendMessageRequest(message=message), metadata=(("a2a-version", "1.0"),))


async def grpc_0_3(agent: Agent) -> None:
    sdk: Any = a2a_v0_3_pb2
    message = sdk.Message(
        message_id="m", role=sdk.ROLE_USER, content=[sdk.Part(text=GOAL), sdk.Part(text=CONTEXT)]
    )
    async with grpc.aio.insecure_channel(await agent.grpc_address()) as channel:
        stub = cast("Any", a2a_v0_3_pb2_grpc).A2AServiceStub(channel)
        await stub.SendMessage(
            sdk.SendMessageRequest(request=message, configuration=sdk.SendMessageConfiguration(blocking=True))
        )


async def chat_completions(agent: Agent) -> None:
    await agent.post("/v1/chat/completions", {"model": "m", "messages": [user(parts("text"))]})


async def responses(agent: Agent) -> None:
    await agent.post("/v1/responses", {"model": "m", "input": [user(parts("input_text"))]})


async def ai_sdk(agent: Agent) -> None:
    message = {"id": "m", "role": "user", "parts": parts("text")}
    await agent.post("/ai-sdk", {"id": "chat", "messages": [message]})


async def ag_ui(agent: Agent) -> None:
    message = {"id": "m", **user(parts("text"))}
    await agent.post("/ag-ui", {"threadId": "t", "runId": "r", "messages": [message]})


WIRES = (
    json_rpc,
    json_rpc_0_3,
    bridge,
    http_json,
    http_json_0_3,
    grpc_binding,
    grpc_0_3,
    chat_completions,
    responses,
    ai_sdk,
    ag_ui,
)


@pytest.mark.parametrize("name", SENT)
async def test_a_provider_is_sent_both_parts_apart_over_every_wire(name: str) -> None:
    member, expected = SENT[name]
    # The response of the provider is irrelevant here.
    async with (
        ScriptedUpstream(json_answer({"error": {"message": "no"}}, 400)) as upstream,
        agent_before(upstream, name) as agent,
    ):
        for number, ask in enumerate(WIRES):
            await ask(agent)
            request = await upstream.received(number)
            assert request.json[member][-1] == expected, ask.__name__
            assert json.dumps(GOAL + CONTEXT).encode() not in request.body
    assert len(upstream.requests) == len(WIRES)


async def test_a_conversation_in_parts_goes_on_as_the_same_conversation() -> None:
    answer = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Up."}, "finish_reason": "stop"}]
    }
    async with ScriptedUpstream(json_answer(answer)) as upstream, agent_before(upstream, "openai") as agent:
        messages = [user(parts("text")), {"role": "assistant", "content": parts("text")}, user("Thanks.")]
        await agent.post("/v1/chat/completions", {"model": "m", "messages": messages})
        (request,) = upstream.requests
    # Most servers accept only a string as the content of an assistant message.
    assert request.json["messages"] == [
        user(parts("text")),
        {"role": "assistant", "content": f"{GOAL}\n\n{CONTEXT}"},
        user("Thanks."),
    ]

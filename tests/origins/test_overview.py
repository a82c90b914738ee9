"""The project's description: each of its features, and the use of each of its packages."""

import asyncio
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import fastapi
import pytest
from openai import AsyncOpenAI
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from pydantic import BaseModel
from sse_starlette.sse import EventSourceResponse
from starlette.types import Receive, Scope, Send

from support.live_server import serving
from support.origin_rows import row
from support.provider_rounds import CALLS, provider_environment, provider_model
from support.rounds import answer, model_at, sent
from support.rpc import Rpc, message, streamed_text, text_of
from support.ui_streams import payloads, read_ui_messages
from support.upstream import Hang, ScriptedUpstream
from tailrace.server import AgentHandler, Settings, create_app, create_router
from tailrace.streaming import Accumulator, Agent, StreamConversion, to_a2a_message
from tailrace.streaming import a2a as a2a_models
from tailrace.wrappers import ChunkWrapper, ContentPartText, History, Message, Role, SSEDecoder
from tailrace.wrappers.openai import ChatCompletionsDecoder, ChoiceDeltaWrapper, OpenAIModel

__all__ = ["provider_environment"]

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SERVER = "tailrace.server.create_app"

ANSWER = answer("It is ", "sunny.", reasoning="I look outside.")


def application(upstream: ScriptedUpstream) -> fastapi.FastAPI:
    return create_app(Settings(store="sqlite://"), handler=AgentHandler(Agent[str](model_at(upstream))))


# --- features ---------------------------------------------------------------------------------------------------


@row("OpenAI's `ChoiceDelta` first: it is wrapped", name="tailrace.wrappers.openai.ChoiceDeltaWrapper")
def test_a_choice_delta_is_wrapped() -> None:
    wrapper = ChoiceDeltaWrapper(ChoiceDelta(content="It is "))
    assert isinstance(wrapper, ChunkWrapper)
    assert wrapper.get_text() == "It is "


@row(
    "Streaming chunks of every provider have one `ChunkWrapper` interface",
    name="tailrace.wrappers.ChunkWrapper",
)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.usefixtures("provider_environment")
async def test_every_providers_chunks_have_one_interface(name: str) -> None:
    folded = Accumulator()
    question = Message(role=Role.USER, content=(ContentPartText(text="Weather?"),))
    async with ScriptedUpstream(CALLS[name]("call00001", "get_weather", '{"city": "Paris"}')) as upstream:
        model = provider_model(name, upstream)
        async with model.stream(History(conversation=(question,))) as batches:
            async for chunks in batches:
                for chunk in chunks:
                    assert isinstance(chunk, ChunkWrapper)
                    folded.add(chunk)
        await model.aclose()
    folded.close()
    [call] = folded.message().tool_calls
    assert (call.name, call.arguments) == ("get_weather", {"city": "Paris"})


@row("An accumulator assembles complete A2A messages from the deltas", name="tailrace.streaming.Accumulator")
@row(
    "An accumulator assembles complete A2A artifacts from the deltas",
    name="tailrace.streaming.ResponseTranslator",
    differs="`Accumulator` assembles messages; `ResponseTranslator` converts the deltas to artifacts.",
)
def test_deltas_become_messages_and_artifacts() -> None:
    folded = Accumulator()
    for chunk in ChatCompletionsDecoder().feed(b"".join(ANSWER)):
        folded.add(chunk)
    folded.close()
    reply = to_a2a_message(folded.message(), message_id="m")
    assert reply.role is a2a_models.Role.AGENT
    assert [part.text for part in reply.parts] == ["I look outside.", "It is sunny."]
    conversion = StreamConversion(ChatCompletionsDecoder())
    conversion.feed(b"".join(ANSWER))
    conversion.close()
    assert text_of(conversion.record.snapshot().to_dict()) == "It is sunny."


@row("An SSE endpoint streams A2A task updates", name=SERVER)
@row("It is consumed as an SSE stream", name=SERVER)
async def test_task_updates_stream_as_server_sent_events() -> None:
    async with ScriptedUpstream(ANSWER) as upstream, serving(application(upstream)) as url, Rpc(url) as rpc:
        events = await rpc.stream("SendStreamingMessage", message("Weather?"))
        task_id = events[0][1]["task"]["id"]
        last = {"Last-Event-ID": str(events[-2][0])}
        async with rpc.http.get(f"{url}/tasks/{task_id}:subscribe", headers=last) as response:
            assert response.content_type == "text/event-stream"
            [again] = SSEDecoder().feed(await response.read())
    assert [number for number, _ in events] == list(range(1, len(events) + 1))
    assert streamed_text(events).endswith("It is sunny.")
    assert events[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert (int(again.id or 0), json.loads(again.data)) == events[-1]


@row("A `HistoryConverter` keeps the whole conversation in sync", name="tailrace.wrappers.HistoryConverter")
async def test_the_second_turn_sends_the_conversation() -> None:
    async with ScriptedUpstream(ANSWER, answer("Rain.")) as upstream:
        async with serving(application(upstream)) as url, Rpc(url) as rpc:
            first = await rpc.result("SendMessage", message("Weather?"))
            context = first["task"]["contextId"]
            await rpc.result("SendMessage", message("And tomorrow?", contextId=context))
        assert [(each["role"], each["content"]) for each in sent(upstream.requests[1])] == [
            ("user", "Weather?"),
            ("assistant", "It is sunny."),
            ("user", "And tomorrow?"),
        ]


@row("It is embedded in chat UIs", name=SERVER)
async def test_chat_uis_read_the_stream() -> None:
    async with ScriptedUpstream(ANSWER) as upstream, serving(application(upstream)) as url:
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{url}/tailrace-chat.js") as response:
                assert "tailrace-chat" in await response.text()
            parts = [{"type": "text", "text": "Weather?"}]
            chat = {"id": "c", "trigger": "submit-message"}
            chat |= {"messages": [{"id": "m", "role": "user", "parts": parts}]}
            async with http.post(f"{url}/ai-sdk", json=chat) as response:
                turn = read_ui_messages(payloads(await response.read()))
    assert (turn.text, turn.reasoning) == ("It is sunny.", ["I look outside."])


@row("It is benchmarked for throughput", name="benchmarks")
def test_a_benchmark_measures_the_cost_of_a_chunk() -> None:
    command = [sys.executable, "-m", "benchmarks.contestants.tailrace", "--json", "--repeats", "1"]
    command += ["--behaviour", "openai", "--behaviour", "text-1000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout)
    assert measured["failures"] == {}
    assert measured["figures"].keys() == {"openai", "text-1000"}
    assert all(figure > 0 for [figure] in measured["figures"].values())  # µs of CPU time a chunk


# --- dependencies -----------------------------------------------------------------------------------------------


@row("Language: Python", name="pyproject.toml")
def test_the_language_is_python() -> None:
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    assert (ROOT / "wrappers/tailrace/wrappers/py.typed").exists()


@row("Package `openai`: a client of yours asks the model", name="tailrace.wrappers.openai.OpenAIModel")
async def test_openai_sends_a_request_to_the_model() -> None:
    async with ScriptedUpstream(ANSWER) as upstream:
        async with AsyncOpenAI(base_url=upstream.base_url, api_key="mine", max_retries=0) as client:
            async with Agent[str](OpenAIModel("m", client=client)) as agent:
                result = await agent.run("Weather?")
        assert upstream.requests[0].headers["authorization"] == "Bearer mine"
    assert (result.output, result.reasoning) == ("It is sunny.", "I look outside.")


@row("Package `pydantic`: messages and A2A types are its models", name="tailrace.wrappers.Message")
def test_messages_are_models_of_pydantic() -> None:
    assert issubclass(Message, BaseModel)
    assert issubclass(a2a_models.Message, BaseModel)


@row(
    "Package `anyio`: cancelling a scope ends the request to the provider",
    name="tailrace.streaming.Agent.run",
)
async def test_a_scope_of_anyio_ends_a_run() -> None:
    async with ScriptedUpstream([*answer("It", finish=None), Hang()]) as upstream:
        async with Agent[str](model_at(upstream)) as agent:
            with anyio.CancelScope() as scope:
                async for each in agent.run_stream("Weather?"):
                    if each.output:
                        scope.cancel()
            assert scope.cancelled_caught
            with anyio.fail_after(10):
                await upstream.requests[0].client_left.wait()


@row(
    "Package `sse-starlette`: it sends the streams of an application",
    name=SERVER,
    differs="`tailrace serve` sends the same frames with its own response class, which needs less CPU time; see [decision 18](decisions/0018-two-responses-for-streams.md).",
)
async def test_sse_starlette_sends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    sent_by: list[str] = []
    send_response = EventSourceResponse.__call__

    async def record(self: EventSourceResponse, scope: Scope, receive: Receive, send: Send) -> None:
        sent_by.append(scope["path"])
        await send_response(self, scope, receive, send)

    monkeypatch.setattr(EventSourceResponse, "__call__", record)
    async with ScriptedUpstream(ANSWER) as upstream, serving(application(upstream)) as url, Rpc(url) as rpc:
        events = await rpc.stream("SendStreamingMessage", message("Weather?"))
    assert streamed_text(events).endswith("It is sunny.")
    assert sent_by == ["/"]


@row("Package `fastapi`: application and router", name="tailrace.server.create_router")
async def test_fastapi_has_application_and_router() -> None:
    async with ScriptedUpstream(ANSWER) as upstream:
        handler = AgentHandler(Agent[str](model_at(upstream)))
        app = fastapi.FastAPI()
        router = create_router(Settings(store="sqlite://"), handler=handler)
        assert isinstance(router, fastapi.APIRouter)
        app.include_router(router, prefix="/agent")
        async with serving(app) as url, Rpc(f"{url}/agent") as rpc:
            sent = await rpc.result("SendMessage", message("Weather?"))
    assert text_of(sent["task"]) == "It is sunny."
    assert isinstance(application(upstream), fastapi.FastAPI)


@row("Package `pytest-asyncio`: it runs the tests", name="pyproject.toml")
async def test_pytest_asyncio_runs_the_tests(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("asyncio") is not None
    assert asyncio.get_running_loop().is_running()


@row("Layout: one `pyproject.toml` at the top", name="pyproject.toml")
@row("Layout: folder `streaming`", name="streaming")
@row("Layout: folder `wrappers`", name="wrappers")
@row("Layout: folder `server`", name="server")
@row("Layout: folder `tests`", name="tests")
@row("Layout: folder `benchmarks`", name="benchmarks")
def test_the_layout_is_one_distribution_over_folders() -> None:
    assert not list(ROOT.glob("*/pyproject.toml"))
    assert PROJECT["project"]["name"] == "tailrace"
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [
        "streaming/tailrace",
        "wrappers/tailrace",
        "server/tailrace",
    ]
    for folder in ("streaming", "wrappers", "server", "tests", "benchmarks"):
        assert any((ROOT / folder).rglob("*.py"))

"""The event loop never encodes, decodes or converts large values, in any member of a request."""

import inspect
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import anyio
import msgspec
import pytest
from pydantic import SecretStr
from pydantic_core import from_json

from support.engines import engine_with, read, start
from support.live_server import serving
from support.rounds import model_at
from support.threaded_client import post
from support.upstream import Received, ScriptedUpstream, Step, openai_chunk, openai_stream, sse
from tailrace.server import AgentHandler, Settings, Turn, create_app
from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.server.protocols.openai.request import read_responses_request
from tailrace.server.protocols.openai.responses_encoder import ResponsesEncoder
from tailrace.server.protocols.openai.stored_request import StoredRequest
from tailrace.server.runtime.active_task import Subscription
from tailrace.streaming import Agent, ArtifactUpdate, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a import json_encoding, models
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.tools import tools
from tailrace.wrappers.concurrency.worker_thread import MAX_INLINE_COST, in_event_loop
from tailrace.wrappers.conversion.tool_names import ToolNames

SIZE = 2_000_000
LARGE = "x" * SIZE
MOST_BYTES = 700_000
"""Limit for a single encoding or decoding step in the event loop."""

Steps = list[tuple[str, int]]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Record encoding and decoding in the event loop, with the size in bytes."""
    found: Steps = []

    def watch(owner: Any, name: str, size: Callable[[Any, Any], int]) -> None:
        original = inspect.getattr_static(owner, name)
        call: Callable[..., Any] = getattr(original, "__func__", original)

        def watched(*arguments: Any, **options: Any) -> Any:
            result = call(*arguments, **options)
            if in_event_loop():
                found.append((name, size(arguments, result)))
            return result

        monkeypatch.setattr(owner, name, classmethod(watched) if call is not original else watched)

    watch(models.A2AModel, "to_json", lambda _, encoded: len(encoded))
    watch(models.A2AModel, "from_json", lambda arguments, _: len(arguments[1]))
    watch(json_encoding, "_encode", lambda _, encoded: len(encoded))
    watch(msgspec.json, "encode", lambda _, encoded: len(encoded))
    watch(msgspec.json, "decode", lambda arguments, _: len(arguments[0]))
    watch(json, "loads", lambda arguments, _: len(arguments[0]))
    watch(EventTranslator, "feed", lambda arguments, _: len(arguments[1].body))
    watch(ToolNames, "replace_in_parameters", lambda arguments, _: len(repr(arguments[1])))
    watch(ToolNames, "replace_in_history", lambda arguments, _: len(repr(arguments[1])))
    return found


def model(request: Received) -> Sequence[Step]:
    """Call the tool ``f`` if the request contains only the question; else answer."""
    body = from_json(request.body)
    if [tool["function"]["name"] for tool in body.get("tools", ())] != ["f"] or len(body["messages"]) > 1:
        return openai_stream(["Hello"])
    call = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}"}}
    chunks = [openai_chunk({"tool_calls": [call]}), openai_chunk({}, finish="tool_calls")]
    return [*map(sse, chunks), sse("[DONE]")]


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    async with ScriptedUpstream(model) as upstream:
        settings = Settings(
            model="openai:m",
            base_url=upstream.base_url,
            api_key=SecretStr("none"),
            store="sqlite://",
            push_notifications="private",
        )
        async with serving(create_app(settings)) as url:
            yield url


def text_in_a2a(**members: Any) -> bytes:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}], **members}
    return json.dumps({"message": message, "configuration": {"historyLength": 5}}).encode()


def rpc(method: str, message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}).encode()


def chat(*messages: Any, **members: Any) -> bytes:
    return json.dumps({"messages": [*messages, {"role": "user", "content": "hi"}], **members}).encode()


def responses(**members: Any) -> bytes:
    return json.dumps({"input": "hi", **members}).encode()


OLD = {"messageId": "m", "role": "user", "kind": "message", "parts": [{"kind": "text", "text": LARGE}]}
TOOL = {
    "name": LARGE,
    "description": LARGE,
    "parameters": {"type": "object", "description": LARGE[: SIZE // 2 - 100]},
}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": LARGE})}}
ANSWERED = (
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": LARGE},
)
UI = {"id": "1", "role": "user", "parts": [{"type": "text", "text": LARGE}]}

REQUESTS: dict[str, tuple[str, bytes]] = {
    "text": ("/message:stream", text_in_a2a(parts=[{"text": LARGE}])),
    "file": ("/message:stream", text_in_a2a(parts=[{"raw": "AAAA" * (SIZE // 4)}])),
    "URL": ("/message:stream", text_in_a2a(parts=[{"url": f"https://example.com/{LARGE}"}])),
    "data": ("/message:stream", text_in_a2a(parts=[{"data": {"rows": [LARGE]}}])),
    "metadata": ("/message:send", text_in_a2a(metadata={"a": {"b": LARGE}})),
    "metadata of a part": ("/message:send", text_in_a2a(parts=[{"text": "x", "metadata": {"a": LARGE}}])),
    "0.3": ("/", rpc("message/stream", OLD)),
    "0.3, at once": ("/", rpc("message/send", OLD)),
    "chat": ("/v1/chat/completions", chat({"role": "user", "content": LARGE})),
    "chat, streamed": ("/v1/chat/completions", chat({"role": "user", "content": LARGE}, stream=True)),
    "chat, tool": ("/v1/chat/completions", chat(tools=[{"type": "function", "function": TOOL}])),
    "chat, results": ("/v1/chat/completions", chat(*ANSWERED)),
    "responses": ("/v1/responses", json.dumps({"input": LARGE}).encode()),
    "responses, instructions": ("/v1/responses", responses(instructions=LARGE)),
    "responses, instructions, streamed": ("/v1/responses", responses(instructions=LARGE, stream=True)),
    "responses, background": ("/v1/responses", responses(instructions=LARGE, stream=True, background=True)),
    "responses, tool": (
        "/v1/responses",
        responses(tools=[{"type": "function", **TOOL, "name": "f"}], stream=True),
    ),
    "AI SDK": ("/ai-sdk", json.dumps({"id": "c", "messages": [UI], "tools": [TOOL]}).encode()),
    "AG-UI": (
        "/ag-ui",
        json.dumps(
            {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": LARGE}]}
        ).encode(),
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_no_step_of_a_large_request_is_done_in_the_event_loop(
    url: str, steps: Steps, name: str
) -> None:
    path, body = REQUESTS[name]
    found = await post(url + path, body)
    assert found.status == 200, found.body[:500]
    task = await post(f"{url}/tasks", b"", method="GET")
    assert task.status == 200
    assert [step for step in steps if step[1] > MOST_BYTES] == []
    assert steps  # small values are encoded


async def test_a_stored_response_is_encoded_outside_of_the_event_loop(url: str, steps: Steps) -> None:
    created = await post(f"{url}/v1/responses", responses(instructions=LARGE))
    stored = f"{url}/v1/responses/{json.loads(created.body)['id']}"
    steps.clear()
    for path in (stored, f"{stored}?stream=true", f"{stored}/input_items"):
        found = await post(path, b"", method="GET")
        assert found.status == 200, found.body[:500]
    assert [step for step in steps if step[1] > MOST_BYTES] == []
    assert steps


async def test_the_messages_of_a_chat_are_encoded_outside_of_the_event_loop_and_in_slices(
    url: str, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = await post(f"{url}/ai-sdk", json.dumps({"id": "c", "messages": [UI]}).encode())
    assert sent.status == 200
    sizes: list[int] = []  # of values that one call encodes, in any thread
    encode = msgspec.json.encode

    def watched(value: object) -> bytes:
        sizes.append(len(encoded := encode(value)))
        return encoded

    monkeypatch.setattr(msgspec.json, "encode", watched)
    steps.clear()
    found = await post(f"{url}/ai-sdk/c/messages", b"", method="GET")
    assert found.status == 200
    assert [step for step in steps if step[1] > MOST_BYTES] == []
    assert [size for size in sizes if size > MOST_BYTES] == []
    assert json.loads(found.body)[0]["parts"] == UI["parts"]


async def test_no_step_of_a_large_follow_up_is_done_in_the_event_loop(url: str, steps: Steps) -> None:
    tool = {"name": "f", "parameters": {"type": "object"}}
    facts = {"urn:tailrace:ext:stream:v1": {"tools": [tool]}}
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    sent = await post(f"{url}/message:send", json.dumps({"message": message, "metadata": facts}).encode())
    task_id = json.loads(sent.body)["task"]["id"]
    results = [{"call_id": "c1", "output": LARGE}]
    message |= {"taskId": task_id, "parts": [{"data": {"tool_results": results}}]}
    steps.clear()
    found = await post(f"{url}/message:stream", json.dumps({"message": message}).encode())
    assert found.status == 200, found.body[:500]
    assert [step for step in steps if step[1] > MOST_BYTES] == []


async def test_the_cost_of_a_turn_counts_the_message_and_the_history() -> None:
    costs: list[int] = []

    async def work(turn: Turn) -> AsyncGenerator[Update]:
        costs.append(turn.cost)
        yield StatusUpdate(TaskState.WORKING)

    async with serving(create_app(handler=work)) as url:
        for text in (LARGE, "hi"):
            found = await post(f"{url}/message:send", text_in_a2a(contextId="c", parts=[{"text": text}]))
            assert found.status == 200, found.body[:500]
    assert len(costs) == 2
    assert min(costs) > MAX_INLINE_COST


async def test_the_cost_of_a_turn_counts_a_message_of_the_program_itself() -> None:
    costs: list[int] = []

    async def work(turn: Turn) -> AsyncGenerator[Update]:
        costs.append(turn.cost)
        yield StatusUpdate(TaskState.COMPLETED)

    async with engine_with(work) as engine:
        message = models.Message(message_id="m", role=models.Role.USER, parts=(models.Part(text=LARGE),))
        started = await engine.start(SendMessageRequest(message=message), "owner")
        assert isinstance(started, Subscription)
        await read(started)
    assert costs[0] > MAX_INLINE_COST


async def test_a_large_task_is_encoded_for_a_webhook_outside_of_the_event_loop(
    url: str, steps: Steps
) -> None:
    async with ScriptedUpstream(lambda _: openai_stream([""])) as hook:
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": LARGE}]}
        config = {"taskPushNotificationConfig": {"url": f"{hook.base_url}/hook"}}
        body = {"message": message, "configuration": config}
        assert (await post(f"{url}/message:send", json.dumps(body).encode())).status == 200
        with anyio.fail_after(20):
            while not any(LARGE[:1000].encode() in request.body for request in hook.requests):  # noqa: ASYNC110
                await anyio.sleep(0.01)  # the webhook is delivered by another task
    assert [step for step in steps if step[1] > MOST_BYTES] == []


async def test_events_that_repeat_a_large_output_have_its_cost() -> None:
    """The events that close a text, an item and a response contain the complete text."""

    async def work(_: Turn) -> AsyncGenerator[Update]:
        for name, metadata in (("thoughts", {EXTENSION_URI: {"channel": "reasoning"}}), ("text", {})):
            empty = models.Artifact(artifact_id=name, parts=(models.Part(text=""),), metadata=metadata)
            yield ArtifactUpdate(empty, last=False)
            for _piece in range(200):
                yield TextDelta(name, "x" * 10_000)

    request = StoredRequest.from_chat_request(read_responses_request({"input": "hi"}), "response")
    encoder = ResponsesEncoder(request)
    repeated = 0
    async with engine_with(work) as engine:
        async for batch in (await start(engine, "go")).batches(until_interrupted=True):
            for event in batch:
                cost = encoder.cost([event])
                frames = encoder.feed(event)
                assert cost > MAX_INLINE_COST or len(frames) < MOST_BYTES
                repeated += len(frames) > SIZE
    assert repeated == 2
    assert encoder.response["status"] == "completed"


async def test_the_result_of_a_tool_is_encoded_outside_of_the_event_loop(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def f() -> Any:
        return {"rows": [LARGE, *range(2000)]}

    converted: list[bool] = []  # whether in the event loop
    convert = tools._as_json  # pyright: ignore[reportPrivateUsage]

    def watched(value: object) -> Any:
        converted.append(in_event_loop())
        return convert(value)

    monkeypatch.setattr(tools, "_as_json", watched)
    call = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}"}}
    calls = [*map(sse, [openai_chunk({"tool_calls": [call]}), openai_chunk({}, finish="tool_calls")])]
    rounds = iter([[*calls, sse("[DONE]")], openai_stream(["done"])])
    async with ScriptedUpstream(lambda _: next(rounds)) as upstream:
        model = model_at(upstream)
        settings = Settings(store="sqlite://")
        async with serving(create_app(settings, handler=AgentHandler(Agent(model, tools=[f])))) as url:
            steps.clear()
            found = await post(f"{url}/message:stream", text_in_a2a())
    assert LARGE.encode() in found.body
    assert b"TASK_STATE_COMPLETED" in found.body
    assert converted == [False]
    assert [step for step in steps if step[1] > MOST_BYTES] == []

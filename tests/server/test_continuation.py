"""Continued responses on every wire, and after the end of the server's process by SIGKILL."""

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import anyio
import grpc.aio
import pytest
from a2a.types import a2a_pb2_grpc
from google.protobuf.json_format import MessageToDict

from support.continued_events import Events, folded
from support.continuing import FORMAT_OF, ContinuingServer
from support.grpc_agents import grpc_address
from support.http_json import HttpJson
from support.live_server import serving
from support.metrics import scrape
from support.proxy import CuttingProxy
from support.rpc import Rpc, message
from support.sdk import send
from support.ui_streams import RUN
from support.upstream import (
    Cut,
    Hang,
    Head,
    Received,
    ScriptedUpstream,
    Step,
    Wait,
    openai_chunk,
    openai_stream,
    sse,
)
from tailrace.server import Settings, create_app
from tailrace.wrappers import SSEDecoder

KILLS = 2

PIECES = ["# Rivers\n\n", "Water ", "flows ", "to the 🌊", ".\n\n", "- Rhine\n", "- Aare", " and more."]
TEXT = "".join(PIECES)


@asynccontextmanager
async def continued(kind: str, **settings: Any) -> AsyncGenerator[tuple[str, ContinuingServer]]:
    """A server whose model breaks off in the middle of its first response."""
    server = ContinuingServer(kind, PIECES)
    server.cut = server.first_body.index(b"- Aare")
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        model = {"model": f"{FORMAT_OF[kind]}:m", "base_url": upstream.base_url, "api_key": "none"}
        settings.setdefault("upstream_background", kind == "openai-background")
        async with serving(create_app(Settings(store="sqlite://", **model, **settings))) as url:
            yield url, server


@pytest.mark.parametrize(("kind", "route"), [("llamacpp", "prefill"), ("other", "replace")])
async def test_a_client_of_a2a_has_the_text_of_the_last_attempt(kind: str, route: str) -> None:
    async with continued(kind) as (url, server), Rpc(url) as rpc:
        events = await rpc.stream("SendStreamingMessage", message("Rivers?"))
        text, steps, last = folded(events)
        assert text == (TEXT if route == "prefill" else ContinuingServer.SECOND + TEXT)
        assert [step["route"] for step in steps] == [route]
        assert steps[0]["after"] == {"model": "openai:m", "error": {"type": "stream_truncated"}}
        assert [each.get("route") for each in last["attempts"]] == [None, route]
        assert last["usage"]["totalTokens"] == sum(map(sum, server.usages))
        assert [number for number, _ in events] == list(range(1, len(events) + 1))
        task = events[0][1]["task"]
        stored = await rpc.result("GetTask", {"id": task["id"]})
        assert [part["text"] for each in stored["artifacts"] for part in each["parts"]] == [text]
        name = "tailrace_continuations_total"
        labels = {"gen_ai_request_model": "m", "route": route, "error_type": "stream_truncated"}
        found = await scrape(url)
        assert found.value(name, gen_ai_provider_name="openai", **labels) == 1


@pytest.mark.parametrize("end", ["budget", "cancellation"])
async def test_a_continued_response_that_the_server_ends_has_its_attempts(end: str) -> None:
    """Also if the last status is not written by the agent."""
    budgets = ({"tokens": 9, "period": "day"},) if end == "budget" else ()
    server = ContinuingServer("llamacpp", PIECES)
    server.cut = server.first_body.index(b"- Aare")

    def respond(request: Received) -> Sequence[Step]:
        steps = server.respond(request)
        return [*openai_stream([" Aare"], finish=None), Hang()] if server.prefills and not budgets else steps

    events: Events = []
    async with ScriptedUpstream(respond, lists_models=True) as upstream:
        model = {"model": "openai:m", "base_url": upstream.base_url, "api_key": "none"}
        settings = Settings.model_validate({"store": "sqlite://", "budgets": budgets, **model})
        async with serving(create_app(settings)) as url, Rpc(url) as rpc, anyio.create_task_group() as group:
            canceled: list[str] = []

            async def cancel(task_id: str) -> None:
                await rpc.result("CancelTask", {"id": task_id})

            def seen(events: Events) -> None:
                if end == "cancellation" and folded(events)[0].endswith("Aare") and not canceled:
                    canceled.append(end)
                    group.start_soon(cancel, events[0][1]["task"]["id"])

            events = await rpc.stream("SendStreamingMessage", message("Rivers?"), seen=seen)
    state = events[-1][1]["statusUpdate"]["status"]["state"]
    assert state == ("TASK_STATE_FAILED" if end == "budget" else "TASK_STATE_CANCELED")
    attempts = folded(events)[2]["attempts"]
    assert [(each["model"], each.get("route")) for each in attempts] == [
        ("openai:m", None),
        ("openai:m", "prefill"),
    ]


async def sse_of(
    url: str,
    path: str,
    body: dict[str, Any],
    *,
    seen: Callable[[list[dict[str, Any]]], None] = lambda _: None,
    **headers: str,
) -> list[dict[str, Any]]:
    """The JSON events of a stream. ``seen`` is called with all events so far after each read."""
    events: list[dict[str, Any]] = []
    decoder = SSEDecoder()
    async with aiohttp.ClientSession() as http, http.post(url + path, json=body, headers=headers) as response:
        async for data in response.content.iter_any():
            events += [json.loads(each.data) for each in decoder.feed(data) if each.data != b"[DONE]"]
            seen(events)
    return events


CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Rivers?"}]}
MESSAGE = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Rivers?"}]}


async def received(url: str, wire: str) -> Events:
    """The events of a stream of A2A, in the JSON of 1.0, whatever the binding."""
    if wire == "grpc":
        events: Events = []
        async with grpc.aio.insecure_channel(await grpc_address(url)) as channel:
            stub: Any = a2a_pb2_grpc.A2AServiceStub(channel)
            async for event in stub.SendStreamingMessage(send("Rivers?"), metadata=(("a2a-version", "1.0"),)):
                events.append((len(events) + 1, MessageToDict(event)))
        return events
    async with Rpc(url) as rpc:
        if wire == "jsonrpc":
            return await rpc.stream("SendStreamingMessage", message("Rivers?"))
        body, headers = message("Rivers?"), {"A2A-Version": "1.0"}
        stream = await HttpJson(rpc).stream("POST", "/message:stream", body, headers)
        return [(int(number), result) for number, _, result in stream]


@pytest.mark.parametrize("wire", ["jsonrpc", "http+json", "grpc"])
@pytest.mark.parametrize(
    ("kind", "route"), [("openai-background", "attach"), ("llamacpp", "prefill"), ("other", "replace")]
)
async def test_every_binding_of_a2a_has_the_text_of_the_last_attempt(
    kind: str, route: str, wire: str
) -> None:
    async with continued(kind, grpc_port=0) as (url, _):
        events = await received(url, wire)
    text, steps, last = folded(events)
    assert text == (ContinuingServer.SECOND + TEXT if route == "replace" else TEXT)
    assert [step["route"] for step in steps] == [route]
    assert [each.get("route") for each in last["attempts"]] == [None, route]
    assert [number for number, _ in events] == list(range(1, len(events) + 1))


async def streamed(url: str, wire: str) -> tuple[str, str]:
    """The text of a stream of a protocol that only grows, and the code or text of its error."""
    if wire == "chat":
        events = await sse_of(url, "/v1/chat/completions", {**CHAT, "stream": True})
        texts = [each["delta"].get("content") or "" for event in events for each in event.get("choices", ())]
        errors = [event["error"]["code"] for event in events if "error" in event]
    elif wire == "responses":
        events = await sse_of(url, "/v1/responses", {"model": "m", "input": "Rivers?", "stream": True})
        texts = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        errors = [
            event["response"]["error"]["message"] for event in events if event["type"] == "response.failed"
        ]
    elif wire == "ai-sdk":
        body = {"id": "c1", "messages": [MESSAGE], "trigger": "submit-message"}
        events = await sse_of(url, "/ai-sdk", body)
        texts = [event["delta"] for event in events if event["type"] == "text-delta"]
        errors = [event["errorText"] for event in events if event["type"] == "error"]
    else:
        events = await sse_of(
            url,
            "/ag-ui",
            {**RUN, "messages": [{"id": "u1", "role": "user", "content": "Rivers?"}]},
            accept="text/event-stream",
        )
        texts = [event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"]
        errors = [event["message"] for event in events if event["type"] == "RUN_ERROR"]
    return "".join(texts), "".join(errors)


@pytest.mark.parametrize("wire", ["chat", "responses", "ai-sdk", "ag-ui"])
async def test_a_stream_that_only_grows_has_a_continued_text_and_ends_at_a_replaced_one(wire: str) -> None:
    for kind in ("openai-background", "llamacpp"):
        async with continued(kind) as (url, _):
            assert await streamed(url, wire) == (TEXT, "")
    async with continued("other") as (url, _):
        text, error = await streamed(url, wire)
        assert TEXT.startswith(text)
        assert "answer_replaced" in error or "differs from the text already sent" in error


def locating(call_id: str, *fragments: str) -> bytes:
    """Chunks with a call of the client's tool."""
    function = {"name": "locate", "arguments": ""}
    first = {"tool_calls": [{"index": 0, "id": call_id, "type": "function", "function": function}]}
    rest = [{"tool_calls": [{"index": 0, "function": {"arguments": each}}]} for each in fragments]
    return sse(openai_chunk({"content": "Let me "}), *map(openai_chunk, [first, *rest]))


@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize(("arguments", "is_complete"), [('{"a": 1, "b": 2}', True), ('{"b": 2}', False)])
async def test_a_replaced_call_of_the_client_has_the_id_that_was_sent(
    wire: str, arguments: str, is_complete: bool
) -> None:
    """The new response has another id. The stream continues if the new arguments begin with those that were sent."""
    go_on = anyio.Event()
    done = sse(openai_chunk({}, finish="tool_calls"), "[DONE]")
    scripts: list[Sequence[Step]] = [
        [Head(), locating("c1", '{"a": ', "1"), Wait(go_on), Cut()],
        [Head(), locating("c9", arguments), done],
        openai_stream(["There."]),
    ]
    tool = {"name": "locate", "parameters": {"type": "object"}}
    if wire == "chat":
        path, body = (
            "/v1/chat/completions",
            {**CHAT, "stream": True, "tools": [{"type": "function", "function": tool}]},
        )
    else:
        path, body = (
            "/v1/responses",
            {"model": "m", "input": "Where?", "stream": True, "tools": [{"type": "function", **tool}]},
        )
    requests: list[Received] = []

    def respond(request: Received) -> Sequence[Step]:
        requests.append(request)
        return scripts[len(requests) - 1]

    def seen(events: list[dict[str, Any]]) -> None:
        if any("arguments" in json.dumps(each) and "1" in json.dumps(each) for each in events):
            go_on.set()

    async with ScriptedUpstream(respond) as upstream:
        model = {"model": "openai:m", "base_url": upstream.base_url, "api_key": "none"}
        async with serving(create_app(Settings.model_validate({"store": "sqlite://", **model}))) as url:
            events = await sse_of(url, path, body, seen=seen)
            if not is_complete:
                assert "differs from the text already sent" in json.dumps(events[-2:])
                return
            if wire == "chat":
                deltas = [each["delta"] for event in events for each in event["choices"]]
                calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
                assert [call["id"] for call in calls if "id" in call] == ["c1"]
                assert "".join(call["function"]["arguments"] for call in calls) == arguments
                call = {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "locate", "arguments": arguments},
                }
                messages = [
                    *CHAT["messages"],
                    {"role": "assistant", "content": "Let me ", "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c1", "content": "here"},
                ]
                await sse_of(url, path, {**body, "messages": messages})
            else:
                response = events[-1]["response"]
                [item] = [each for each in response["output"] if each["type"] == "function_call"]
                assert (item["call_id"], item["arguments"]) == ("c1", arguments)
                output = {"type": "function_call_output", "call_id": "c1", "output": "here"}
                await sse_of(url, path, {**body, "input": [output], "previous_response_id": response["id"]})
    assert requests[-1].json["messages"][-1]["tool_call_id"] == "c1"
    assert len(requests) == 3


@pytest.mark.parametrize("kind", ["llamacpp", "other"])
async def test_a_request_without_streaming_has_the_text_of_the_last_attempt(kind: str) -> None:
    whole = TEXT if kind == "llamacpp" else ContinuingServer.SECOND + TEXT
    async with continued(kind) as (url, _), aiohttp.ClientSession() as http:
        async with http.post(f"{url}/v1/chat/completions", json=CHAT) as response:
            completion = await response.json()
        assert completion["choices"][0]["message"]["content"] == whole
    async with continued(kind) as (url, _), aiohttp.ClientSession() as http:
        body = {"message": message("Rivers?")["message"]}
        async with http.post(f"{url}/message:send", json=body, headers={"A2A-Version": "1.0"}) as response:
            task = (await response.json())["task"]
        assert "".join(part["text"] for each in task["artifacts"] for part in each["parts"]) == whole


async def test_a_fallback_is_set_by_its_name_and_address() -> None:
    second = ContinuingServer("other", ["From the other model."])
    async with ScriptedUpstream(second.respond, lists_models=True) as upstream:
        fallback = (f"openai:other@{upstream.base_url}",)
        async with continued("other", fallback=fallback, bounds={"continue_attempts": 0}) as (url, first):
            async with Rpc(url) as rpc:
                text, steps, _ = folded(await rpc.stream("SendStreamingMessage", message("Rivers?")))
        requests = [each for each in upstream.requests if each.method == "POST"]
    assert text == "From the other model."
    assert [(step["model"], step["route"]) for step in steps] == [("openai:other", "replace")]
    assert first.generations == 1
    assert [each.json["model"] for each in requests] == ["other"]


async def test_another_tailrace_is_attached_again() -> None:
    """Its model is called once, although the connection between the two servers was lost."""
    cut = anyio.Event()
    first, *rest = openai_stream(PIECES)
    half = len("".join(PIECES[:4]))
    script = [first, *rest[:4], Wait(cut), *rest[4:]]
    common: dict[str, Any] = {"store": "sqlite://", "api_key": "none"}
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(ScriptedUpstream(script))
        behind = Settings(model="openai:m", base_url=provider.base_url, **common)
        proxy = await stack.enter_async_context(
            CuttingProxy(await stack.enter_async_context(serving(create_app(behind))))
        )
        front = Settings(
            model="openai-responses:m", base_url=f"{proxy.url}/v1", upstream_background=True, **common
        )
        url = await stack.enter_async_context(serving(create_app(front)))
        rpc = await stack.enter_async_context(Rpc(url))

        def seen(events: Events) -> None:
            if len(folded(events)[0]) == half and not proxy.cuts:
                proxy.cut_now()
                cut.set()

        with anyio.fail_after(30):
            events = await rpc.stream("SendStreamingMessage", message("Rivers?"), seen=seen)
    text, steps, _ = folded(events)
    assert text == TEXT
    assert [step["route"] for step in steps] == ["attach"]
    assert len(provider.requests) == 1
    assert events[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"

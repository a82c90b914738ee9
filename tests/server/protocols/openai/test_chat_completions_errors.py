"""Finish reasons and errors of Chat Completions, and what happens if a client disconnects."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import openai
import pytest

from support.agents import Scripted
from support.openai_api import MODEL, Facade, content_of, facade_over, user
from support.processes import served
from support.rounds import answer
from support.rpc import Rpc
from support.upstream import Hang, ScriptedUpstream, json_answer, openai_chunk, openai_stream, sse
from tailrace.server.settings import Bounds

HELLO = user("Hello?")


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_a_truncated_response_is_marked(reason: Any) -> None:
    async with ScriptedUpstream(answer("Hal", finish=reason)) as upstream, facade_over(upstream) as facade:
        completion = await facade.chat(HELLO)
        chunks = await facade.chunks(HELLO)
    [choice] = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("Hal", reason)
    assert "".join(content_of(chunks)) == "Hal"
    assert chunks[-1].choices[0].finish_reason == reason


async def test_a_refusal() -> None:
    script = [
        sse(openai_chunk({"refusal": "I will "})),
        sse(openai_chunk({"refusal": "not."}, finish="stop")),
        sse("[DONE]"),
    ]
    async with ScriptedUpstream(script) as upstream, facade_over(upstream) as facade:
        completion = await facade.chat(HELLO)
        chunks = await facade.chunks(HELLO)
    assert (completion.choices[0].message.refusal, completion.choices[0].message.content) == (
        "I will not.",
        None,
    )
    assert [chunk.choices[0].delta.refusal for chunk in chunks if chunk.choices[0].delta.refusal] == [
        "I will ",
        "not.",
    ]


FAULTS = [
    (400, openai.BadRequestError, 400),
    (401, openai.InternalServerError, 502),
    (404, openai.InternalServerError, 502),
    (429, openai.RateLimitError, 429),
    (500, openai.InternalServerError, 502),
    (503, openai.InternalServerError, 502),
]


@pytest.mark.parametrize(("status", "kind", "ours"), FAULTS)
async def test_a_refusal_of_the_provider_is_reported_by_its_fault(
    status: int, kind: type[openai.APIStatusError], ours: int
) -> None:
    refused = json_answer(
        {"error": {"message": "no such luck", "code": "bad_luck"}}, status, {"retry-after": "7"}
    )
    async with ScriptedUpstream(refused) as upstream, facade_over(upstream) as facade:
        with pytest.raises(kind) as raised:
            await facade.chat(HELLO)
        with pytest.raises(openai.APIError) as streamed:
            await facade.chunks(HELLO)
    error = raised.value
    body: Any = error.body
    assert (error.status_code, error.code) == (ours, "bad_luck")
    assert body["upstream"]["status"] == status
    # The message of a provider that refuses the server's own credentials is for the operator only.
    assert ("no such luck" in error.message) == (status not in (401, 403))
    assert ("no such luck" in streamed.value.message) == (status not in (401, 403))
    assert streamed.value.code == "bad_luck"
    assert (error.response.headers.get("retry-after") == "7") == (ours == 429)


async def test_a_stream_that_breaks_off_is_an_error_behind_what_came() -> None:
    async with (
        ScriptedUpstream(openai_stream(["Hel", "lo"], finish=None)) as upstream,
        facade_over(upstream) as facade,
    ):
        seen: list[str] = []

        def take(chunks: Any) -> None:
            seen[:] = content_of(chunks)

        with pytest.raises(openai.APIError) as streamed:
            await facade.chunks(HELLO, seen=take)
        with pytest.raises(openai.InternalServerError) as raised:
            await facade.chat(HELLO)
        raw = await _raw(facade, {"model": MODEL, "messages": [HELLO], "stream": True})
    assert "".join(seen) == "Hello"
    assert streamed.value.code == raised.value.code == "stream_truncated"
    assert raised.value.status_code == 502
    assert b"[DONE]" not in raw
    assert b'"finish_reason":"stop"' not in raw


async def _raw(facade: Facade, body: Any) -> bytes:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{facade.url}/v1/chat/completions", json=body) as response,
    ):
        return await response.read()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "nobody", "content": "hi"}]}, "messages"),
    ({"messages": [user([{"type": "video", "video": "x"}])]}, "messages"),
    ({"messages": [HELLO, {"role": "assistant", "content": "Hi"}]}, "messages"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"temperature": "hot"}, "temperature"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
    ({"tool_choice": "perhaps"}, "tool_choice"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"metadata": {"conversation_id": "ä"}}, "metadata.conversation_id"),
]


@pytest.mark.parametrize(("change", "param"), BAD)
async def test_an_invalid_request_names_the_member(change: dict[str, Any], param: str) -> None:
    async with facade_over(handler=Scripted()) as facade:
        with pytest.raises(openai.BadRequestError) as raised:
            await facade.client.post(
                "/chat/completions", body={"model": "tailrace", "messages": [HELLO], **change}, cast_to=object
            )
    assert raised.value.param == param
    assert raised.value.type == "invalid_request_error"


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff"])
async def test_a_body_that_is_no_request(body: bytes) -> None:
    async with facade_over(handler=Scripted()) as facade, aiohttp.ClientSession() as http:
        async with http.post(f"{facade.url}/v1/chat/completions", data=body, headers=JSON) as response:
            assert response.status == 400
            assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_the_key_is_read_from_where_the_client_puts_it() -> None:
    async with facade_over(handler=Scripted(), caller_keys="alice:k1", key="wrong") as facade:
        with pytest.raises(openai.AuthenticationError):
            await facade.chat(HELLO)
        with pytest.raises(openai.AuthenticationError):
            await facade.client.models.list()
        completion = await facade.as_caller("k1").chat(HELLO)
    assert completion.choices[0].message.content == "Hello?"


async def test_limits_are_errors_with_a_pause() -> None:
    hold = Scripted()
    async with facade_over(
        handler=hold, caller_keys="alice:k1", key="k1", bounds=Bounds(max_caller_streams=1)
    ) as facade:
        stream, _ = await facade.stream(user("hold"))
        with pytest.raises(openai.RateLimitError) as raised:
            await facade.chat(HELLO)
        hold.go_on.set()
        async for _ in stream:
            pass
    assert raised.value.response.headers["retry-after"] == "2"
    assert raised.value.code == "rate_limit_exceeded"


async def test_a_request_that_is_too_large() -> None:
    async with facade_over(handler=Scripted(), max_request_bytes=1000) as facade:
        with pytest.raises(openai.APIStatusError) as raised:
            await facade.chat({"role": "user", "content": "x" * 2000})
    assert raised.value.status_code == 413


# --- disconnecting, canceling, stopping -------------------------------------------------------------------------


async def test_who_leaves_leaves_the_task_running() -> None:
    handler = Scripted()
    async with facade_over(handler=handler) as facade, Rpc(facade.url) as rpc:
        stream, task_id = await facade.stream(user("hold"))
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        assert (await rpc.result("GetTask", {"id": task_id}))["status"]["state"] == "TASK_STATE_WORKING"
        handler.go_on.set()
        events = await rpc.stream("SubscribeToTask", {"id": task_id}, headers={"Last-Event-ID": "1"})
    assert events[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_task_that_is_canceled_is_an_error() -> None:
    async with facade_over(handler=Scripted()) as facade, Rpc(facade.url) as rpc:
        stream, task_id = await facade.stream(user("hold"))
        await rpc.result("CancelTask", {"id": task_id})
        with pytest.raises(openai.APIError) as raised:
            _ = [chunk async for chunk in stream]
    assert raised.value.code == "task_canceled"


async def test_a_server_that_stops_ends_its_streams_in_order(tmp_path: Path) -> None:
    async with ScriptedUpstream([*openai_stream(["Hel"], finish=None), Hang()]) as upstream:
        model = ("--model", f"openai:{MODEL}", "--base-url", upstream.base_url, "--store", "sqlite://")
        with served(tmp_path / "log", *model, TAILRACE_SHUTDOWN_GRACE="0") as server:
            await server.ready()
            body = {"model": MODEL, "messages": [HELLO], "stream": True}
            received = b""
            async with (
                aiohttp.ClientSession() as http,
                http.post(f"{server.url}/v1/chat/completions", json=body) as response,
            ):
                async for data in response.content.iter_any():
                    # One signal: a second one would interrupt the shutdown.
                    is_terminated = b"Hel" in received
                    received += data
                    if b"Hel" in received and not is_terminated:
                        server.process.terminate()
            await anyio.to_thread.run_sync(server.process.wait)
    *_, last, rest = received.split(b"\n\n")
    assert rest == b""
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "task_failed"

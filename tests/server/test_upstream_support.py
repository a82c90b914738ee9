"""The scripted upstream that other tests rely on: what it sends, what it records, what it notices."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import anyio
import openai
import pytest

from support.upstream import (
    Cut,
    Hang,
    Head,
    Raw,
    Received,
    Reset,
    ScriptedUpstream,
    Step,
    Tell,
    Wait,
    json_answer,
    openai_chunk,
    openai_stream,
    sse,
)

REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\n{}"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def raw_request(
    upstream: ScriptedUpstream, request: bytes = REQUEST
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client that shows every byte."""
    port = int(upstream.base_url.split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        yield reader, writer
    finally:
        writer.transport.abort()


async def test_each_step_is_one_chunk_and_the_body_is_ended_properly():
    async with ScriptedUpstream([b"one", b"two"]) as upstream, raw_request(upstream) as (reader, _):
        expected = HEAD + b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
        assert await reader.readexactly(len(expected)) == expected


async def test_cuts_inside_a_character_arrive_as_they_were_made_when_the_test_forces_them_apart():
    go_on = anyio.Event()
    script: list[Step] = [Head(chunked=False, headers={}), b"\xe2\x82", Wait(go_on), b"\xac"]
    async with ScriptedUpstream(script) as upstream, raw_request(upstream) as (reader, _):
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.read(100) == b"\xe2\x82"
        go_on.set()
        assert await reader.read(100) == b"\xac"
        assert await reader.read(100) == b"", "a body without a length ends with the connection"


async def test_the_request_is_recorded_whole_before_it_is_answered():
    async with ScriptedUpstream(json_answer({"ok": True})) as upstream, aiohttp.ClientSession() as session:
        async with session.post(
            f"{upstream.base_url}/x?y=1", json={"a": [1]}, headers={"X-Test": "t"}
        ) as response:
            assert await response.json() == {"ok": True}
        request = await upstream.received()
        assert (request.method, request.path, request.headers["x-test"]) == ("POST", "/v1/x?y=1", "t")
        assert request.json == {"a": [1]}


async def test_a_request_with_chunked_encoding_is_read_to_its_end():
    async def body() -> AsyncIterator[bytes]:
        yield b'{"a":'
        yield b" 1}"

    async with ScriptedUpstream([]) as upstream, aiohttp.ClientSession() as session:
        async with session.post(upstream.base_url, data=body()) as response:
            assert await response.read() == b""
        assert upstream.requests[0].json == {"a": 1}


async def test_scripts_answer_requests_in_order_on_a_kept_connection_and_the_last_one_goes_on():
    scripts = [json_answer({}, status=529, headers={"retry-after": "1"}), [b"fine"]]
    async with ScriptedUpstream(*scripts) as upstream:
        connector = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(connector=connector) as session:
            seen: list[tuple[int, bytes, str | None]] = []
            for _ in range(3):
                async with session.post(upstream.base_url) as response:
                    seen.append((response.status, await response.read(), response.headers.get("retry-after")))
    assert seen == [(529, b"{}", "1"), (200, b"fine", None), (200, b"fine", None)]


async def test_a_function_answers_according_to_the_request():
    def echo(request: Received) -> list[Step]:
        return [sse(request.json["n"])]

    async with ScriptedUpstream(echo) as upstream, aiohttp.ClientSession() as session:
        for n in (1, 2):
            async with session.post(upstream.base_url, json={"n": n}) as response:
                assert await response.read() == b"data: %d\n\n" % n


async def test_two_requests_sent_at_once_are_answered_one_after_the_other():
    async with (
        ScriptedUpstream([b"a"], [b"b"]) as upstream,
        raw_request(upstream, REQUEST * 2) as (reader, _),
    ):
        expected = HEAD + b"1\r\na\r\n0\r\n\r\n" + HEAD + b"1\r\nb\r\n0\r\n\r\n"
        assert await reader.readexactly(len(expected)) == expected
        assert [request.body for request in upstream.requests] == [b"{}", b"{}"]


async def test_a_cut_sends_everything_and_ends_the_connection_inside_the_body():
    large = b"x" * 1_000_000
    async with ScriptedUpstream([large, Cut()]) as upstream, raw_request(upstream) as (reader, _):
        assert await reader.read() == HEAD + b"%x\r\n" % len(large) + large + b"\r\n"
        assert not upstream.requests[0].client_left.is_set(), "it was the upstream that left"


async def test_a_reset_reaches_the_client_as_a_reset():
    go_on = anyio.Event()
    async with (
        ScriptedUpstream([b"x", Wait(go_on), Reset()]) as upstream,
        raw_request(upstream) as (reader, _),
    ):
        await reader.readuntil(b"x\r\n")
        go_on.set()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert not upstream.requests[0].client_left.is_set()


async def test_raw_bytes_need_not_be_http():
    script: list[Step] = [Raw(b"SSH-2.0\r\n"), Cut()]
    async with ScriptedUpstream(script) as upstream, raw_request(upstream) as (reader, _):
        assert await reader.read() == b"SSH-2.0\r\n"


@pytest.mark.parametrize("where", ["before the head", "in the body", "waiting", "afterwards"])
@pytest.mark.parametrize("reset", [True, False])
async def test_a_client_that_leaves_in_the_middle_is_noticed_at_once(where: str, reset: bool):
    scripts: dict[str, list[Step]] = {
        "before the head": [Hang()],
        "in the body": [b"x", Hang()],
        "waiting": [b"x", Wait(anyio.Event())],
        "afterwards": [b"x"],
    }
    begun = anyio.Event()
    async with ScriptedUpstream([Tell(begun), *scripts[where]]) as upstream:
        async with raw_request(upstream) as (_, writer):
            request = await upstream.received()
            await begun.wait()
            assert not request.client_left.is_set()
            assert request.left_at is None
            before = anyio.current_time()
            if not reset:
                writer.close()
                await writer.wait_closed()
        await request.client_left.wait()
        assert request.left_at is not None
        assert before <= request.left_at <= anyio.current_time()


async def test_a_client_that_leaves_while_a_large_body_is_written_is_noticed():
    endless: list[Step] = [b"x" * 65536] * 1000
    async with ScriptedUpstream(endless) as upstream:
        async with raw_request(upstream) as (reader, _):
            await reader.readuntil(b"x")
        await upstream.requests[0].client_left.wait()


async def test_leaving_the_context_ends_connections_that_hang():
    async with aiohttp.ClientSession() as session:
        async with ScriptedUpstream([b"x", Hang()]) as upstream:
            response = await session.post(upstream.base_url)
            assert await response.content.readany() == b"x"
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_an_event_of_asyncio_serves_as_well():
    events = asyncio.Event(), asyncio.Event()  # noqa: TID251 - the point of the test
    script: list[Step] = [b"x", Tell(events[0]), Wait(events[1])]
    async with ScriptedUpstream(script) as upstream, raw_request(upstream) as (reader, _):
        await events[0].wait()
        events[1].set()
        await reader.readuntil(b"0\r\n\r\n")


async def test_a_script_that_fails_fails_the_test():
    def wrong(request: Received) -> list[Step]:
        raise LookupError(request.path)

    for scripts in ([wrong], []):
        with pytest.raises(ExceptionGroup) as caught:
            async with ScriptedUpstream(*scripts) as upstream, raw_request(upstream) as (reader, _):
                assert await reader.read() == b""
        assert caught.group_contains(LookupError, match="/v1/chat/completions")


async def test_an_error_of_the_test_itself_is_not_hidden_by_one_of_the_script():
    async def failing_test() -> None:
        async with ScriptedUpstream() as upstream, raw_request(upstream) as (reader, _):
            assert await reader.read() == b""
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing_test()


async def test_a_scripted_stream_is_read_by_the_openai_client():
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    async with ScriptedUpstream(openai_stream(["Grüße", " 🌊"], usage=usage)) as upstream:
        async with openai.AsyncOpenAI(base_url=upstream.base_url, api_key="key-1") as client:
            stream = await client.chat.completions.create(model="m", messages=[], stream=True)
            chunks = [chunk async for chunk in stream]
        request = upstream.requests[0]
    assert (request.path, request.headers["authorization"]) == ("/v1/chat/completions", "Bearer key-1")
    assert request.json["model"] == "m"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Grüße 🌊"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 5


def test_payloads_become_events():
    assert sse({"a": 1}, "[DONE]", b"\xff") == b'data: {"a": 1}\n\ndata: [DONE]\n\ndata: \xff\n\n'


def test_a_stream_without_a_finish_reason_breaks_off_behind_the_text():
    whole, broken = openai_stream(["a"]), openai_stream(["a"], finish=None)
    assert broken == whole[:2]
    assert whole[-1] == b"data: [DONE]\n\n"
    assert json.loads(whole[-2][6:])["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert openai_chunk(usage={"total_tokens": 1})["choices"] == []

"""The scripted upstream of the tests: sent responses, recorded requests, detected disconnects."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from support.upstream import Cut, Hang, Received, Reset, ScriptedUpstream, SetEvent, Step, Wait

REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\n{}"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def raw_request(
    upstream: ScriptedUpstream, request: bytes = REQUEST
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Send a request and return every byte of the response."""
    port = int(upstream.base_url.split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        yield reader, writer
    finally:
        writer.transport.abort()


async def test_a_cut_sends_everything_and_ends_the_connection_inside_the_body():
    large = b"x" * 1_000_000
    async with ScriptedUpstream([large, Cut()]) as upstream, raw_request(upstream) as (reader, _):
        assert await reader.read() == HEAD + b"%x\r\n" % len(large) + large + b"\r\n"
        assert not upstream.requests[0].client_left.is_set(), "the upstream disconnected, not the client"


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
    async with ScriptedUpstream([SetEvent(begun), *scripts[where]]) as upstream:
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

"""Clients that never complete a request neither block others nor delay shutdown."""

import asyncio
import json
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import pytest
import uvicorn.server
from anyio.abc import SocketStream

from support.agents import Scripted
from support.live_server import serving
from support.postgres import PostgresServer
from support.processes import Served, served
from support.rpc import message
from support.upstream import Hang, ScriptedUpstream, openai_stream
from support.valkey import ValkeyServer
from tailrace.server import Settings, create_app
from tailrace.server.http.connection_limits import MAX_HEADER_BYTES, MAX_QUEUED_REQUESTS, ConnectionLimits
from tailrace.server.http.sliced_data import SLICE_BYTES, SlicedData
from tailrace.server.settings import Bounds

HALF_HEADER = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
HALF_BODY = (
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
)
KEPT_ALIVE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SILENT = b""

BURSTS = {"half a header": HALF_HEADER, "half a body": HALF_BODY, "idle": KEPT_ALIVE, "silent": SILENT}

BODIES = [
    "/",
    "/message:send",
    "/v1/message:send",
    "/v1/chat/completions",
    "/v1/responses",
    "/ai-sdk",
    "/ag-ui",
]


async def connect(url: str) -> SocketStream:
    host, port = url.removeprefix("http://").split(":")
    return await anyio.connect_tcp(host, int(port))


async def healthy(url: str, within: float = 1) -> None:
    """Assert that a new connection gets a response within a second, as for a health probe."""
    with anyio.fail_after(within):
        async with await connect(url) as stream:
            await stream.send(b"GET /healthz HTTP/1.1\r\nHost: 10.0.0.1\r\nConnection: close\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")


@asynccontextmanager
async def running(log: Path, *options: str, **environment: str) -> AsyncGenerator[Served]:
    given = ("--model", "ollama:none", "--store", "sqlite://", *options)
    with served(log, *given, open_files="256", **environment) as server:
        await server.ready()
        yield server


async def burst(stack: AsyncExitStack, url: str, data: bytes, count: int = 300) -> list[SocketStream]:
    """Open connections that send only this, and check the server's health in between."""
    streams: list[SocketStream] = []
    for number in range(count):
        stream = await stack.enter_async_context(await connect(url))
        streams.append(stream)
        try:
            await stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            continue  # closed in favour of a newer one
        if number % 25 == 0:
            await healthy(url)
    return streams


@pytest.mark.parametrize("data", BURSTS.values(), ids=BURSTS)
async def test_a_burst_of_connections_leaves_room_for_probes(data: bytes, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with running(log) as server, AsyncExitStack() as stack:
        await burst(stack, server.url, data)
        for _ in range(3):
            await healthy(server.url)
    assert "Traceback" not in log.read_text()


async def test_a_burst_at_one_moment_leaves_room_for_probes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with running(log) as server, AsyncExitStack() as stack:

        async def connect_one() -> None:
            stream = await stack.enter_async_context(await connect(server.url))
            with suppress(anyio.BrokenResourceError):  # it may have been closed in favour of a newer one
                await stream.send(HALF_HEADER)

        async with anyio.create_task_group() as group:
            for _ in range(300):
                group.start_soon(connect_one)
        await healthy(server.url)
    assert "Traceback" not in log.read_text()


async def responses(stream: SocketStream, data: bytes) -> int:
    """Return the number of responses until the server closes the connection."""
    received = b""
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        await stream.send(data)
        while True:
            received += await stream.receive()
    return received.count(b"HTTP/1.1 ")


async def test_a_few_pipelined_requests_are_served(tmp_path: Path) -> None:
    last = KEPT_ALIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with running(tmp_path / "log") as server, await connect(server.url) as stream:
        with anyio.fail_after(20):
            data = KEPT_ALIVE * (MAX_QUEUED_REQUESTS - 1) + last
            assert await responses(stream, data) == MAX_QUEUED_REQUESTS
        assert "closed a connection" not in server.log.read_text()


async def test_a_connection_with_many_pipelined_requests_is_closed(tmp_path: Path) -> None:
    """All of them used to be parsed at once, which blocked the server: 5 s for 300 connections with 2,000 each."""
    async with running(tmp_path / "log") as server, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(await connect(server.url)) for _ in range(50)]
        counts: list[int] = []

        async def send(stream: SocketStream) -> None:
            counts.append(await responses(stream, KEPT_ALIVE * 2000))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for stream in streams:
                    group.start_soon(send, stream)
        assert len(counts) == len(streams)
        assert max(counts) <= MAX_QUEUED_REQUESTS + 1
        await healthy(server.url)
    text = server.log.read_text()
    assert "without waiting for responses" in text
    assert "Traceback" not in text


async def test_requests_beyond_the_bound_are_refused_and_served_again_later(tmp_path: Path) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": message()})
    async with ScriptedUpstream([*openai_stream("begun")[:2], Hang()]) as upstream:
        options = ("--model", "openai:m", "--base-url", upstream.base_url, "--store", "sqlite://")
        limits: Any = {"TAILRACE_BOUNDS": '{"max_connections": 1}', "TAILRACE_SHUTDOWN_GRACE": "0"}
        with served(tmp_path / "log", *options, **limits) as server:
            await server.ready()
            async with aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as http:
                async with http.post(server.url, data=body) as stream:
                    assert stream.status == 200
                    async with http.get(f"{server.url}/tasks") as refused:
                        assert refused.status == 503
                        assert refused.headers["Retry-After"]
                        assert (await refused.json())["error"]["details"][0]["metadata"]["limit"] == (
                            "max_connections"
                        )
                    await healthy(server.url)
                with anyio.fail_after(10):
                    while True:
                        async with http.get(f"{server.url}/tasks") as response:
                            if response.status == 200:
                                break


async def test_a_header_has_a_deadline(tmp_path: Path) -> None:
    async with running(tmp_path / "log", TAILRACE_BOUNDS='{"header_timeout": 2}') as server:
        async with await connect(server.url) as stream, await connect(server.url) as silent:
            await stream.send(HALF_HEADER)
            with anyio.fail_after(10):
                assert (await stream.receive()).startswith(b"HTTP/1.1 408 ")
                with pytest.raises(anyio.EndOfStream):
                    await stream.receive()
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await silent.receive()
        async with await connect(server.url) as again, anyio.create_task_group() as group:
            # The next request of a connection has a deadline, too, and single bytes do not extend it.
            with anyio.fail_after(20):
                await again.send(KEPT_ALIVE)
                received = b""
                while b'"ok"}' not in received:
                    received += await again.receive()
                group.start_soon(trickle, again)
                assert (await again.receive()).startswith(b"HTTP/1.1 408 ")


async def trickle(stream: SocketStream) -> None:
    """Send a header that never ends."""
    await stream.send(HALF_HEADER)
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            await stream.send(b"x")
            await anyio.sleep(0.1)  # a slow client


async def test_a_header_has_a_size(tmp_path: Path) -> None:
    async with running(tmp_path / "log", TAILRACE_BOUNDS='{"header_timeout": 60}') as server:
        async with await connect(server.url) as stream:
            with anyio.fail_after(10), suppress(anyio.BrokenResourceError):
                await stream.send(HALF_HEADER + b"x" * 1_000_000)
                with pytest.raises(anyio.EndOfStream):
                    await stream.receive()


CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"

ENDLESS = {
    "trailers": (CHUNKED + b"0\r\n", b"a:b\r\n"),
    "a trailer": (CHUNKED + b"0\r\na:", b"b"),
    "an extension of a chunk": (CHUNKED + b"1;", b"x"),
    "the headers of a second request": (KEPT_ALIVE + KEPT_ALIVE[:-2], b"a:b\r\n"),
}


async def send_until_closed(stream: SocketStream, piece: bytes) -> None:
    """Send a piece again and again until the server has closed the connection.

    64 MB are more than the buffers of both systems hold, so a server that closes nothing has read most of them.
    """
    pieces = piece * (64_000 // len(piece))
    with anyio.fail_after(60), suppress(anyio.BrokenResourceError):
        for _ in range(1000):
            await stream.send(pieces)
        pytest.fail("the server read 64 MB")


@pytest.mark.parametrize(("begin", "piece"), ENDLESS.values(), ids=ENDLESS)
async def test_what_is_no_body_has_a_size(begin: bytes, piece: bytes, tmp_path: Path) -> None:
    async with running(tmp_path / "log", TAILRACE_BOUNDS='{"header_timeout": 600}') as server:
        async with await connect(server.url) as stream:
            await stream.send(begin)
            await send_until_closed(stream, piece)
        await healthy(server.url)
    assert "Traceback" not in server.log.read_text()


async def test_the_header_of_a_pipelined_request_has_a_size_while_the_first_one_runs(tmp_path: Path) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": message()})
    header = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    async with ScriptedUpstream([*openai_stream("begun")[:2], Hang()]) as upstream:
        options = ("--model", "openai:m", "--base-url", upstream.base_url, "--store", "sqlite://")
        with served(tmp_path / "log", *options, TAILRACE_SHUTDOWN_GRACE="0") as server:
            await server.ready()
            async with await connect(server.url) as stream:
                await stream.send(f"{header}Content-Length: {len(body)}\r\n\r\n{body}".encode())
                assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")
                await stream.send(HALF_HEADER)
                await send_until_closed(stream, b"x")
            await healthy(server.url)


async def statuses(url: str, data: bytes) -> list[bytes]:
    """Return the statuses of the responses to requests that are sent at once; the last one closes the connection."""
    received = b""
    async with await connect(url) as stream:
        with anyio.fail_after(20), suppress(anyio.EndOfStream):
            await stream.send(data)
            while True:
                received += await stream.receive()
    return [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]]


async def test_a_trailer_is_no_header(tmp_path: Path) -> None:
    """Of the request, or of the next one: a proxy that removes headers does not remove trailers."""
    request = b"GET /tasks HTTP/1.1\r\nHost: localhost\r\n"
    chunked = request + b"Transfer-Encoding: chunked\r\n"
    key = b"X-API-Key: KEY-A\r\n"
    last = request + b"Connection: close\r\n"
    async with running(tmp_path / "log", TAILRACE_CALLER_KEYS="alice:KEY-A") as server:
        for trailer in (key, b"Authorization: Bearer KEY-A\r\n"):
            in_trailer = chunked + b"\r\n0\r\n" + trailer + b"\r\n"
            assert await statuses(server.url, in_trailer + last + b"\r\n") == [b"401", b"401"]
            assert await statuses(server.url, in_trailer + last + key + b"\r\n") == [b"401", b"200"]
        untyped = CHUNKED[:-2] + key + b"\r\n2\r\n{}\r\n0\r\nContent-Type: application/json\r\n\r\n"
        assert await statuses(server.url, untyped + last + key + b"\r\n") == [b"415", b"200"]


async def test_a_host_in_a_trailer_is_no_host(tmp_path: Path) -> None:
    nameless = b"GET /tasks HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nHost: localhost\r\n\r\n"
    last = b"GET /tasks HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    async with running(tmp_path / "log") as server:
        assert await statuses(server.url, nameless + last) == [b"403", b"200"]


class Connection(asyncio.Transport):
    """A connection that records whether it was closed, and whether it is read."""

    is_aborted = False
    is_paused = False

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_aborted

    def close(self) -> None:
        self.is_aborted = True

    def abort(self) -> None:
        self.is_aborted = True


async def test_the_connection_of_a_large_header_is_closed_before_more_of_it_is_parsed() -> None:
    create_protocol: Any = ConnectionLimits(0, 60).protocol()
    config = uvicorn.Config(create_app(Settings(store="sqlite://"), handler=Scripted()), http="httptools")
    protocol = create_protocol(config=config, server_state=uvicorn.server.ServerState(), app_state={})
    connection = Connection()
    protocol.connection_made(connection)
    protocol.data_received(b"GET / HTTP/1.1\r\nHost: ")
    pieces = 0
    while not connection.is_aborted:
        protocol.data_received(b"x" * 16_384)
        pieces += 1
    assert pieces == MAX_HEADER_BYTES // 16_384
    protocol.connection_lost(None)


async def test_a_client_that_is_refused_early_can_send_the_rest_of_its_body(tmp_path: Path) -> None:
    body = b"[" + b"[]," * 1_000_000 + b"[]]"
    header = (
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    async with running(tmp_path / "log", TAILRACE_BOUNDS='{"header_timeout": 60}') as server:
        async with await connect(server.url) as stream:
            with anyio.fail_after(20):
                await stream.send(header.encode() + body[:1_000_000])
                response = b""
                while b"TAILRACE_BOUNDS: max_request_values" not in response:
                    response += await stream.receive()
                assert response.startswith(b"HTTP/1.1 413 ")
                await stream.send(body[1_000_000:2_000_000])
                await until_large_headers_are_closed(server.url)
                await stream.send(body[2_000_000:] + KEPT_ALIVE)
                while b'"ok"}' not in response:
                    response += await stream.receive()


async def until_large_headers_are_closed(url: str) -> None:
    """Wait until the server closes connections with too large headers, which include one opened now."""
    async with await connect(url) as stream:
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            await stream.send(HALF_HEADER + b"x" * 1_000_000)
            while True:
                await stream.receive()


async def test_a_body_in_tiny_chunks_is_parsed_in_slices_after_a_refusal() -> None:
    """256 KB in chunks of one byte used to be parsed at once, several times in one iteration of the event loop."""

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    create_protocol: Any = ConnectionLimits(0, 60).protocol()
    config = uvicorn.Config(refuse, http="httptools", lifespan="off", log_level="critical")
    protocol = create_protocol(config=config, server_state=uvicorn.server.ServerState(), app_state={})
    connection = Connection()
    protocol.connection_made(connection)
    protocol.data_received(CHUNKED)
    while b"401" not in connection.written:
        await anyio.lowlevel.checkpoint()
    chunks = b"1\r\nx\r\n" * 40_000
    protocol.data_received(chunks)
    iterations = 0
    while connection.is_paused:
        await anyio.lowlevel.checkpoint()
        iterations += 1
    assert iterations >= len(chunks) // SLICE_BYTES
    protocol.data_received(b"0\r\n\r\n" + KEPT_ALIVE)
    while connection.written.count(b"401") < 2:
        await anyio.lowlevel.checkpoint()
    assert not connection.is_aborted
    protocol.connection_lost(None)


async def test_slices_wait_while_their_receiver_is_paused_and_end_with_the_connection() -> None:
    connection = Connection()
    parsed: list[bytes] = []
    data = SlicedData(connection, parsed.append)
    first = bytes(range(256)) * (SLICE_BYTES // 256)
    data.feed(first + b"second")
    assert parsed == [first]
    data.pause_reading()
    await anyio.lowlevel.checkpoint()
    data.feed(b" and third")
    await anyio.lowlevel.checkpoint()
    assert parsed == [first]
    assert connection.is_paused
    data.resume_reading()
    data.resume_reading()
    await anyio.lowlevel.checkpoint()
    assert parsed == [first, b"second and third"]
    assert not connection.is_paused
    data.feed(first + first)
    connection.abort()
    await anyio.lowlevel.checkpoint()
    await anyio.lowlevel.checkpoint()
    assert parsed == [first, b"second and third", first]


@pytest.mark.parametrize("path", BODIES)
async def test_a_body_has_a_deadline(path: str) -> None:
    app = create_app(Settings(store="sqlite://", bounds=Bounds(body_timeout=0.05)), handler=Scripted())
    async with serving(app) as url, await connect(url) as stream:
        await stream.send(HALF_BODY.replace(b"POST /", f"POST {path}".encode()))
        with anyio.fail_after(10):
            received = b""
            while b"TAILRACE_BOUNDS: body_timeout" not in received:
                received += await stream.receive()
    assert received.startswith(b"HTTP/1.1 408 ")


async def end_with_half_requests(server: Served, data: bytes) -> None:
    await server.ready()
    async with AsyncExitStack() as stack:
        for _ in range(4):
            stream = await stack.enter_async_context(await connect(server.url))
            await stream.send(data)
        await healthy(server.url)
        server.process.send_signal(signal.SIGTERM)
        with anyio.fail_after(12):  # less than uvicorn would wait
            assert await anyio.to_thread.run_sync(server.process.wait) == 0
    text = server.log.read_text()
    assert "Traceback" not in text
    assert "ERROR" not in text


@pytest.mark.parametrize("data", [HALF_BODY, HALF_HEADER], ids=["body", "header"])
async def test_half_a_request_does_not_delay_the_end(data: bytes, tmp_path: Path) -> None:
    with served(tmp_path / "log", "--model", "ollama:none", "--store", "sqlite://") as server:
        await end_with_half_requests(server, data)


async def test_several_processes_are_bounded_each(
    tmp_path: Path, postgres: PostgresServer, valkey: ValkeyServer
) -> None:
    cluster = ("--store", await postgres.empty_database(), "--events", valkey.url(), "--workers", "2")
    with served(tmp_path / "log", "--model", "ollama:none", *cluster, open_files="256") as server:
        await server.ready()
        await healthy(server.url, within=30)  # it listens before its worker processes do
        async with AsyncExitStack() as stack:
            await burst(stack, server.url, HALF_HEADER, 600)
            await healthy(server.url)
        await end_with_half_requests(server, HALF_BODY)

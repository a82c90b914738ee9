"""Server-sent event streams on a real connection: under ``tailrace serve`` and under any other ASGI server."""

import logging
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import closing, suppress

import anyio
import anyio.lowlevel
import pytest
from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from support.live_server import serving
from support.raw_http import connected
from tailrace.server.http.deferred_response import with_deferral
from tailrace.server.http.sse import EventResponse
from tailrace.server.runtime.stream_registry import OpenStreams
from tailrace.server.settings import Settings

MUCH = 32 * 1024 * 1024
"""More than the buffers of a connection hold."""

Frames = AsyncGenerator[bytes]


def offering(app: ASGIApp) -> ASGIApp:
    """Return the application as ``tailrace serve`` runs it."""

    async def with_extension(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        scope = {**scope, "extensions": {**scope.get("extensions", {})}}
        await with_deferral(app, scope, receive, send)

    return with_extension


@pytest.fixture(params=["tailrace serve", "another server"])
def as_served(request: pytest.FixtureRequest) -> Callable[[ASGIApp], ASGIApp]:
    return offering if request.param == "tailrace serve" else lambda app: app


AsServed = Callable[[ASGIApp], ASGIApp]


def streaming(frames: Callable[[], Frames], streams: OpenStreams | None = None, **bounds: float) -> FastAPI:
    """Return an application that streams frames at ``/``."""
    app = FastAPI()
    given = Settings.model_validate({"bounds": {"ping_interval": 1, "send_timeout": 1, **bounds}})

    @app.api_route("/", methods=["GET", "HEAD"])
    async def stream() -> Response:
        return EventResponse(
            frames(), settings=given, headers={"x-own": "1"}, streams=streams or OpenStreams()
        )

    return app


@pytest.mark.parametrize("is_quiet", [False, True], ids=["more data", "end of data"])
async def test_a_client_that_takes_nothing_is_dropped(
    is_quiet: bool, as_served: AsServed, caplog: pytest.LogCaptureFixture
) -> None:
    ended = anyio.Event()
    caplog.set_level(logging.INFO, "tailrace.server")

    async def frames() -> Frames:
        try:
            yield b"data: " + b"x" * MUCH + b"\n\n"
            while not is_quiet:
                yield b"data: more\n\n"
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with serving(as_served(streaming(frames))) as url:
        host, port = url.removeprefix("http://").split(":")
        with closing(socket.create_connection((host, int(port)))) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n")
            with anyio.fail_after(10):
                await ended.wait()
    assert "disconnected a client that received no bytes for 1 seconds" in caplog.text


async def test_frames_are_sent_as_they_are_with_comments_between_and_no_empty_piece(
    as_served: AsServed,
) -> None:
    ready = anyio.Event()

    async def frames() -> Frames:
        yield b""
        yield b"id: 1\ndata: one\n\n"
        await ready.wait()
        yield b""
        yield b"id: 2\ndata: two\n\nid: 3\ndata: three\n\n"

    async with serving(as_served(streaming(frames))) as url, connected(url) as client:
        client.ask("GET", "/")
        await client.begin()
        await client.until(": ping\n\n")
        ready.set()
        await client.rest()
        head = client.head.lower()
    assert client.body.replace(b": ping\n\n", b"") == (
        b"id: 1\ndata: one\n\nid: 2\ndata: two\n\nid: 3\ndata: three\n\n"
    )
    assert b"" not in client.chunks[:-1]
    for line in (b"content-type: text/event-stream; charset=utf-8", b"x-own: 1", b"x-accel-buffering: no"):
        assert line in head
    assert head.count(b"cache-control: no-store") == 1
    assert b"connection:" not in head  # HTTP/2 has no such header


async def test_a_client_that_leaves_ends_its_frames_and_an_open_stream_is_cut_off(
    as_served: AsServed,
) -> None:
    streams = OpenStreams()
    ended = [anyio.Event(), anyio.Event()]
    begun = 0

    async def frames() -> Frames:
        nonlocal begun
        number, begun = begun, begun + 1
        try:
            yield b"data: begun\n\n"
            await anyio.sleep_forever()
        finally:
            ended[number].set()

    stopping = anyio.Event()
    async with serving(as_served(streaming(frames, streams))) as url, streams.cut_off(stopping, 0):
        async with connected(url) as leaver:
            leaver.ask("GET", "/")
            await leaver.begin()
            await leaver.until("begun")
        async with connected(url) as stays:
            stays.ask("GET", "/")
            await stays.begin()
            await stays.until("begun")
            with anyio.fail_after(5):
                await ended[0].wait()
                assert not ended[1].is_set()
                stopping.set()
                await ended[1].wait()


class Broken(Exception):
    """A connection whose client has disconnected."""


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_frames_of_which_nothing_is_sent_are_closed(method: str) -> None:
    ended = anyio.Event()

    async def frames() -> Frames:
        try:
            await anyio.lowlevel.checkpoint()
            yield b"data: one\n\n"
        finally:
            ended.set()

    async def receive() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        if method == "GET":
            raise Broken

    scope: Scope = {"type": "http", "method": method, "path": "/", "headers": [], "query_string": b""}
    response = EventResponse(frames(), settings=Settings(), headers={}, streams=OpenStreams())
    with suppress(Broken):
        await response(scope, receive, send)
    assert ended.is_set()


async def test_an_error_of_the_frames_is_the_servers_to_log(as_served: AsServed) -> None:
    async def frames() -> Frames:
        yield b"data: one\n\n"
        raise RuntimeError("broken")

    raised: list[BaseException] = []
    app = as_served(streaming(frames))

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except RuntimeError as error:
            raised.append(error)

    async with serving(noting) as url, connected(url) as client:
        client.ask("GET", "/")
        await client.begin()
        await client.until("one")
        assert await client.at_end()
    assert [str(error) for error in raised] == ["broken"]


async def test_frames_that_are_cancelled_end_the_response() -> None:
    async def frames() -> Frames:
        yield b"data: one\n\n"
        raise anyio.get_cancelled_exc_class()

    async with serving(offering(streaming(frames))) as url, connected(url) as client:
        client.ask("GET", "/")
        await client.begin()
        await client.until("one")
        assert await client.at_end()

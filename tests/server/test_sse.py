"""Streams of server-sent events as a client meets them that takes nothing: on a real connection."""

import socket
from collections.abc import AsyncGenerator
from contextlib import closing

import anyio
import pytest
from fastapi import FastAPI
from starlette.responses import Response

from support.serving import serving
from tailrace.server.open_streams import OpenStreams
from tailrace.server.settings import Settings
from tailrace.server.sse import sse_response

MUCH = 32 * 1024 * 1024
"""More than the buffers of a connection take."""


@pytest.mark.parametrize("is_quiet", [False, True], ids=["there is more", "nothing follows"])
async def test_a_client_that_takes_nothing_is_dropped(is_quiet: bool):
    settings = Settings(ping_interval=1, send_timeout=1)
    ended = anyio.Event()

    async def frames() -> AsyncGenerator[bytes]:
        try:
            yield b"data: " + b"x" * MUCH + b"\n\n"
            while not is_quiet:
                yield b"data: more\n\n"
            await anyio.sleep_forever()
        finally:
            ended.set()

    app = FastAPI()

    @app.get("/")
    async def stream() -> Response:
        return sse_response(frames(), settings=settings, headers={}, streams=OpenStreams())

    async with serving(app) as url:
        host, port = url.removeprefix("http://").split(":")
        with closing(socket.create_connection((host, int(port)))) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n")
            with anyio.fail_after(10):
                await ended.wait()

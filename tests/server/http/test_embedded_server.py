"""A server inside another program: it starts, stops in bounded time, and propagates errors."""

import os
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import anyio
import psutil
import pytest
from starlette.applications import Starlette

from tailrace.server import Settings, Turn, create_app
from tailrace.server.http.embedded_server import serving
from tailrace.server.remote.client import AgentClient, StreamEvent
from tailrace.streaming.a2a import Message, TaskState
from tailrace.streaming.task.updates import StatusUpdate, Update
from tailrace.wrappers import ConfigurationError


def listen() -> tuple[socket.socket, str]:
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


async def work(turn: Turn) -> AsyncIterator[Update | Message]:
    yield StatusUpdate(TaskState.WORKING)
    await anyio.sleep_forever()


def agent() -> Starlette:
    return create_app(Settings(store="sqlite://", shutdown_grace=0), handler=work)


async def test_the_block_runs_while_the_server_answers_and_the_port_is_free_afterwards():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    listener, url = listen()
    async with serving(agent(), listener):
        async with aiohttp.ClientSession() as http, http.get(f"{url}/healthz") as response:
            assert response.status == 200
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    socket.create_server(listener_address(url)).close()


def listener_address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


async def test_what_is_written_is_sent_at_once():
    listener, url = listen()
    port = listener.getsockname()[1]
    async with serving(agent(), listener), aiohttp.ClientSession() as http:
        async with http.get(f"{url}/healthz"):
            pass
        [accepted] = [
            connection.fd
            for connection in psutil.Process().net_connections("tcp")
            if connection.laddr[1] == port and connection.status == psutil.CONN_ESTABLISHED
        ]
        with socket.socket(fileno=os.dup(accepted)) as ours:
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_an_active_stream_receives_the_end_of_its_task():
    listener, url = listen()
    events: list[StreamEvent] = []
    working = anyio.Event()

    async def follow() -> None:
        async with AgentClient(url) as client:
            async for event in client.stream("hello"):
                events.append(event)
                if len(events) == 2:
                    working.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            async with serving(agent(), listener):
                group.start_soon(follow)
                await working.wait()
    last = events[-1].response.status_update
    assert last is not None
    assert last.status.state is TaskState.FAILED


async def test_a_cancelled_block_ends_the_application_in_good_order():
    ended = anyio.Event()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        yield
        await anyio.lowlevel.checkpoint()
        ended.set()

    listener, _ = listen()
    with anyio.CancelScope() as scope:
        async with serving(Starlette(lifespan=lifespan), listener):
            scope.cancel()
            await anyio.sleep_forever()
    assert ended.is_set()


async def test_what_the_block_raises_is_raised_as_it_is():
    listener, _ = listen()
    with pytest.raises(ZeroDivisionError):
        async with serving(agent(), listener):
            raise ZeroDivisionError


async def test_an_application_that_cannot_start_reports_the_reason():
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        raise ConfigurationError("no ink")
        yield

    listener, url = listen()
    with pytest.raises(ConfigurationError, match="no ink"):
        async with serving(Starlette(lifespan=lifespan), listener):
            pytest.fail("the block was entered")
    socket.create_server(listener_address(url)).close()

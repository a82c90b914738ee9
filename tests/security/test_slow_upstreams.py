"""A provider or a remote agent that sends a response in tiny pieces without end: its time is bounded, and its memory constant."""

import gc
import json
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.to_thread
import pytest
from anyio.abc import SocketAttribute, SocketStream
from pydantic import SecretStr

from support.live_server import serving
from support.rpc import Rpc, message
from tailrace.server import Settings, create_app
from tailrace.server.settings import Bounds

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
STATUS = {"taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
TASK = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}


def rpc_event(result: object) -> bytes:
    return b"data: %s\n\n" % json.dumps({"jsonrpc": "2.0", "id": "1", "result": result}).encode()


PIECES = {
    "comments": (b"", b": c\n\n"),
    "bytes of an event": (b"data: ", b"x"),
    "line ends": (b"", b"\n"),
    "fields": (b"", b"id: 1\n"),
}
"""The begin of a response, and the piece that is repeated."""

PROVIDER = {**PIECES, "empty deltas": (b"", b'data: {"choices": [{"index": 0, "delta": {}}]}\n\n')}
AGENT = {
    **PIECES,
    "the same status": (rpc_event({"task": TASK}), rpc_event({"statusUpdate": STATUS})),
}


class Dripping:
    """A server whose responses never end: a provider, and an agent.

    Args:
        first: The begin of a response.
        piece: Sent again and again, in a chunk of its own.

    Attributes:
        url: Its URL.
        sent: The number of pieces so far.
        closed: Set when the client closes the connection of a response.
    """

    def __init__(self, first: bytes, piece: bytes) -> None:
        self.url = ""
        self.sent = 0
        self.closed = anyio.Event()
        self._first = first
        self._chunk = b"%x\r\n%s\r\n" % (len(piece), piece)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Listen during the block."""
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.url = f"http://127.0.0.1:{listener.listeners[0].extra(SocketAttribute.local_port)}"
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, self._respond)
            yield
            group.cancel_scope.cancel()

    async def _respond(self, stream: SocketStream) -> None:
        async with stream:
            request = await stream.receive()
            if request.startswith(b"GET "):
                interface = {"url": f"{self.url}/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
                card = {
                    "name": "slow",
                    "description": "d",
                    "version": "1",
                    "capabilities": {"streaming": True},
                    "defaultInputModes": ["text"],
                    "defaultOutputModes": ["text"],
                    "skills": [],
                    "supportedInterfaces": [interface],
                }
                body = json.dumps(card).encode()
                head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
                await stream.send(head % len(body) + body)
                return
            try:
                await stream.send(HEAD)
                if self._first:
                    await stream.send(b"%x\r\n%s\r\n" % (len(self._first), self._first))
                while True:
                    await stream.send(self._chunk)
                    self.sent += 1
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self.closed.set()

    async def reach(self, pieces: int) -> None:
        """Wait for this many pieces."""
        while self.sent < pieces and not self.closed.is_set():
            await anyio.lowlevel.checkpoint()


async def assert_is_bounded(settings: Settings, upstream: Dripping) -> None:
    """Assert that a task fails, and that its memory does not grow with the pieces of its response."""
    app = await anyio.to_thread.run_sync(partial(create_app, settings))
    async with serving(app) as url, Rpc(url) as rpc:
        sent = await rpc.call("SendMessage", {**message(), "configuration": {"returnImmediately": True}})
        await upstream.reach(500)
        tracemalloc.start()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        await upstream.closed.wait()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        events = await rpc.stream(
            "SubscribeToTask", {"id": sent["result"]["task"]["id"]}, {"Last-Event-ID": "0"}
        )
    assert "TASK_STATE_FAILED" in json.dumps(events[-1][1])
    assert peak - before < 3_000_000


@pytest.mark.parametrize("kind", PROVIDER)
async def test_a_provider_that_never_ends_has_a_bound(kind: str) -> None:
    upstream = Dripping(*PROVIDER[kind])
    async with upstream.running():
        settings = Settings(
            model="openai:m",
            base_url=f"{upstream.url}/v1",
            api_key=SecretStr("k"),
            store="sqlite://",
            bounds=Bounds(max_turn_seconds=3),
        )
        await assert_is_bounded(settings, upstream)


@pytest.mark.parametrize("kind", AGENT)
async def test_a_remote_agent_that_never_ends_has_a_bound(kind: str) -> None:
    upstream = Dripping(*AGENT[kind])
    async with upstream.running():
        settings = Settings(agent=upstream.url, store="sqlite://", bounds=Bounds(max_turn_seconds=3))
        await assert_is_bounded(settings, upstream)

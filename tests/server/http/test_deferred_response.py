"""Streams that begin after the application has returned: identical for clients, and no stack is kept for them."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from support.live_server import serving
from support.raw_http import Connection, connected
from support.rpc import message
from support.tracing import Spans
from tailrace.server import Settings, Turn, create_app
from tailrace.server.http.deferred_response import defer, with_deferral
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.models import Artifact, Part

ORIGIN = "https://chat.example"
SEND = json.dumps(
    {"jsonrpc": "2.0", "id": "s", "method": "SendStreamingMessage", "params": message()}
).encode()


class Answering:
    """An application with deferred responses, like that of ``tailrace serve``.

    Attributes:
        returned: Set when the application has returned from its latest request.
        streamed: Set when its response is complete.
    """

    def __init__(self, app: ASGIApp, *, late: bool = True) -> None:
        self.returned = anyio.Event()
        self.streamed = anyio.Event()
        self._app = app
        self._late = late

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        self.returned, self.streamed = anyio.Event(), anyio.Event()
        streamed = self.streamed
        if self._late:
            await with_deferral(self._answer, {**scope}, receive, send)
        else:
            await self._answer(scope, receive, send)
        streamed.set()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        returned = self.returned
        await self._app(scope, receive, send)
        returned.set()


class GatedHandler:
    """A handler that sends one delta, and another one on a signal."""

    def __init__(self) -> None:
        self.gate = anyio.Event()

    async def __call__(self, turn: Turn) -> AsyncIterator[Update]:
        yield StatusUpdate(TaskState.WORKING)
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="begun"),)), last=False)
        await self.gate.wait()
        yield TextDelta("text", " and over")


@asynccontextmanager
async def begin_stream(
    *, late: bool = True, spans: Spans | None = None
) -> AsyncGenerator[tuple[Connection, GatedHandler, Answering]]:
    """Begin a stream that continues on a signal."""
    handler = GatedHandler()
    settings = Settings(store="sqlite://", allowed_origins=(ORIGIN,))
    answering = Answering(
        create_app(settings, handler=handler, tracer_provider=spans and spans.provider), late=late
    )
    async with serving(answering) as url, connected(url) as client:
        client.ask("POST", "/", SEND, origin=ORIGIN)
        await client.begin()
        await client.until("begun")
        yield client, handler, answering


async def test_the_application_has_returned_while_a_stream_goes_on() -> None:
    async with begin_stream() as (client, handler, answering):
        assert answering.returned.is_set()
        assert not answering.streamed.is_set()
        handler.gate.set()
        await client.until("and over")
        await client.rest()
        await answering.streamed.wait()


async def test_a_server_that_does_not_offer_it_streams_within_the_application() -> None:
    async with begin_stream(late=False) as (client, handler, answering):
        assert not answering.returned.is_set()
        handler.gate.set()
        await client.rest()
        await answering.returned.wait()


async def test_a_stream_that_is_late_has_the_headers_of_one_that_is_not() -> None:
    names: list[list[bytes]] = []
    for late in (True, False):
        async with begin_stream(late=late) as (client, handler, _):
            handler.gate.set()
            await client.rest()
            names.append(sorted(line.partition(b":")[0].lower() for line in client.head.splitlines()))
    assert names[0] == names[1]
    assert b"access-control-allow-origin" in names[0]


async def test_the_span_of_a_request_lasts_as_long_as_its_stream() -> None:
    spans = Spans()
    async with begin_stream(spans=spans) as (client, handler, answering):
        assert not answering.returned.is_set()
        handler.gate.set()
        await client.rest()
        await answering.returned.wait()


async def test_a_client_that_leaves_ends_a_stream_that_is_late() -> None:
    async with begin_stream() as (client, handler, answering):
        client.close()
        await answering.streamed.wait()
        assert not handler.gate.is_set()


async def test_what_is_put_off_comes_when_the_application_has_returned() -> None:
    order: list[str] = []

    async def rest(receive: Receive, send: Send) -> None:
        order.append("rest")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert defer(scope, rest)
        order.append("returned")

    await with_deferral(app, {"type": "http"}, _receive, _send)
    assert order == ["returned", "rest"]


async def test_nothing_comes_of_what_was_put_off_by_an_application_that_failed() -> None:
    async def rest(receive: Receive, send: Send) -> None:
        pytest.fail("the response was sent")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert defer(scope, rest)
        raise RuntimeError("it failed")

    with pytest.raises(RuntimeError, match="it failed"):
        await with_deferral(app, {"type": "http"}, _receive, _send)


@pytest.mark.parametrize("scope", [{}, {"extensions": {}}, {"extensions": {"another": None}}])
async def test_a_response_is_not_deferred_without_support_of_the_server(scope: dict[str, Any]) -> None:
    async def rest(receive: Receive, send: Send) -> None:
        pytest.fail("the response was sent")

    assert not defer(scope, rest)


async def _receive() -> Message:
    return {"type": "http.disconnect"}


async def _send(message: Message) -> None:
    pytest.fail(f"unexpected message: {message}")

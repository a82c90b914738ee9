"""Events that are written at once: on a real connection, and the same stream as when a task sends them."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Self

import anyio
import pytest
from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from support.raw_http import Connection, connected
from support.rpc import Rpc, message
from support.serving import serving
from support.written import PIECE, Written, written
from tailrace.server import Settings, Turn, create_app
from tailrace.server.direct_writing import Writer, offer_writer, writer_of
from tailrace.server.open_streams import OpenStreams
from tailrace.server.operations import EventStream
from tailrace.server.sse import Framing, sse_response
from tailrace.streaming import ArtifactUpdate, Event, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part
from tailrace.streaming.a2a.v1_0 import Version10

LARGE = "x" * 1_000_000


class Told:
    """A handler that says what it is told, each piece as an event of its own, until it is told to end."""

    def __init__(self) -> None:
        self._told: asyncio.Queue[str | None] = asyncio.Queue()

    def say(self, text: str) -> None:
        self._told.put_nowait(text)

    def end(self) -> None:
        self._told.put_nowait(None)

    async def __call__(self, turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.WORKING)
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="begun"),)), last=False)
        while (text := await self._told.get()) is not None:
            yield TextDelta("text", text)


class Watched:
    """A response, and what is written of it at once.

    Attributes:
        written: That.
        refused: How often the writer was not ready.
        ended: Set when the application is done with the request.
    """

    def __init__(self, writer: Writer) -> None:
        self.written: list[bytes] = []
        self.refused = 0
        self.ended = anyio.Event()
        self._writer = writer

    @property
    def ready(self) -> bool:
        is_ready = self._writer.ready
        self.refused += not is_ready
        return is_ready

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self._writer.write(data)

    @property
    def text(self) -> bytes:
        return b"".join(self.written)


class Offering:
    """An application that may write at once, as the one of ``tailrace serve`` may.

    Attributes:
        responses: One a request, in their order.
    """

    def __init__(self, app: ASGIApp, *, offers: bool = True) -> None:
        self.responses: list[Watched] = []
        self._app = app
        self._offers = offers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not self._offers:
            await self._app(scope, receive, send)
            return
        offer_writer(scope, send)
        writer = writer_of(scope)
        assert writer is not None
        assert not writer.ready  # nothing goes before the head
        watched = Watched(writer)
        scope["extensions"]["tailrace.writer"] = watched
        self.responses.append(watched)
        try:
            await self._app(scope, receive, send)
        finally:
            watched.ended.set()


@asynccontextmanager
async def agent(*, offers: bool = True, **settings: Any) -> AsyncGenerator[tuple[str, Told, Offering]]:
    told = Told()
    app = create_app(Settings.model_validate({"store": "sqlite://", **settings}), handler=told)
    offering = Offering(app, offers=offers)
    async with serving(offering) as url:
        yield url, told, offering


@contextmanager
def nothing_logged(caplog: pytest.LogCaptureFixture) -> Generator[None]:
    """Nothing goes wrong in the block, as far as anybody says; uvicorn's own loggers do not hand on what they are told."""
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(caplog.handler)
    try:
        yield
    finally:
        logger.removeHandler(caplog.handler)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []


def call(method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": "s", "method": method, "params": params}).encode()


SEND = call("SendStreamingMessage", message())


def subscription(connection: Connection, task_id: str) -> None:
    connection.ask("POST", "/", call("SubscribeToTask", {"id": task_id}), last_event_id=0)


def task_of(connection: Connection) -> str:
    """The id of the task that a stream is about."""
    found = re.search(rb'"task":\{"id":"([^"]+)"', connection.body)
    assert found
    return found[1].decode()


def ids_of(connection: Connection) -> list[int]:
    return [int(found) for found in re.findall(rb"^id: (\d+)$", connection.body, re.MULTILINE)]


async def say(
    told: Told, *connections: Connection, texts: Sequence[str] = ("river", "mill", "wheel")
) -> None:
    """Each when the one before it was read everywhere."""
    for text in texts:
        told.say(text)
        for connection in connections:
            await connection.until(text)


# --- the same stream --------------------------------------------------------------------------------------------


def without_chance(data: bytes) -> bytes:
    """What a server says, but for what is another one each time."""
    data = re.sub(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", b"UUID", data)
    return re.sub(rb"\d{4}-\d\d-\d\dT[0-9:.]+Z|(?<=date: )[^\r]+", b"TIME", data)


Ask = Callable[[Connection, str], None]
"""Sends a request about a task."""

OLD = {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hello"}]}
OLDER = {"role": "user", "parts": [{"type": "text", "text": "hello"}]}
SENT: dict[str, bytes] = {
    "1.0": SEND,
    "0.3": call("message/stream", {"message": OLD}),
    "0.1": call("tasks/sendSubscribe", {"id": "mine", "message": OLDER}),
}
FOLLOWED: dict[str, Ask] = {
    "1.0": lambda client, task: client.ask("POST", "/", call("SubscribeToTask", {"id": task})),
    "1.0 from its beginning": subscription,
    "0.3": lambda client, task: client.ask("POST", "/", call("tasks/resubscribe", {"id": task})),
    "0.1": lambda client, task: client.ask(
        "POST", "/", call("tasks/resubscribe", {"id": task}), a2a_version="0.1"
    ),
    "1.0 by its address": lambda client, task: client.ask("POST", f"/tasks/{task}:subscribe"),
    "an EventSource": lambda client, task: client.ask("GET", f"/tasks/{task}:subscribe", last_event_id=1),
}


@dataclass
class Stream:
    """A stream as its client had it.

    Attributes:
        said: Its head and its body, but for what is another one each time.
        ids: Of its events.
        at_once: What was written at once.
    """

    said: list[bytes]
    ids: list[int]
    at_once: bytes

    @classmethod
    def of(cls, client: Connection, app: Offering) -> Self:
        at_once = app.responses[-1].text if app.responses else b""
        return cls([without_chance(client.head), without_chance(client.body)], ids_of(client), at_once)


async def sent(body: bytes, version: str, *, offers: bool) -> Stream:
    """The stream that answers a message."""
    async with agent(offers=offers) as (url, told, app), connected(url) as client:
        client.ask("POST", "/", body, version=version)
        await client.begin()
        await client.until("begun")
        await say(told, client)
        told.end()
        await client.rest()
        assert version == "1.1" or await client.at_end()
        return Stream.of(client, app)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("dialect", SENT)
async def test_an_answer_is_the_same_whoever_writes_it(dialect: str, version: str) -> None:
    offered, plain = [await sent(SENT[dialect], version, offers=offers) for offers in (True, False)]
    assert offered.said == plain.said
    assert offered.ids == list(range(offered.ids[0], offered.ids[0] + len(offered.ids)))
    assert len(offered.ids) >= 7
    if dialect != "0.1":  # whose tasks come with no history, so that no event goes by itself
        assert all(text in offered.at_once for text in (b"river", b"mill", b"wheel"))


async def followed(ask: Ask, *, offers: bool) -> Stream:
    """A stream of a task that has begun."""
    async with agent(offers=offers) as (url, told, app), connected(url) as client, Rpc(url) as rpc:
        params = {**message(), "configuration": {"returnImmediately": True}}
        task = (await rpc.result("SendMessage", params))["task"]
        told.say("first")
        async with connected(url) as other:
            subscription(other, task["id"])
            await other.begin()
            await other.until("first")
        ask(client, task["id"])
        await client.begin()
        await client.chunk()
        await say(told, client)
        told.end()
        await client.rest()
        return Stream.of(client, app)


@pytest.mark.parametrize("how", FOLLOWED)
async def test_a_subscription_is_the_same_whoever_writes_it(how: str) -> None:
    offered, plain = [await followed(FOLLOWED[how], offers=offers) for offers in (True, False)]
    assert offered.said == plain.said
    assert offered.ids == list(range(offered.ids[0], offered.ids[0] + len(offered.ids)))
    assert b"wheel" in offered.said[1]
    if how not in ("1.0 by its address", "an EventSource"):
        assert b"wheel" in offered.at_once


async def test_a_connection_goes_on_after_a_stream() -> None:
    async with agent() as (url, told, app), connected(url) as client:
        for count in (1, 2, 3):
            client.ask("POST", "/", SEND)
            await client.begin()
            await client.until("begun")
            await say(told, client)
            told.end()
            await client.rest()
            assert ids_of(client) == list(range(1, ids_of(client)[-1] + 1))
            assert len(app.responses) == count
            await app.responses[-1].ended.wait()
            assert not app.responses[-1].ready
            assert b"mill" in app.responses[-1].text


async def test_what_was_asked_before_the_stream_is_over_is_answered_after_it() -> None:
    async with agent() as (url, told, app), connected(url) as client:
        client.ask("POST", "/", SEND)
        client.ask("POST", "/", SEND)
        for at in (0, 1):
            await client.begin()
            await client.until("begun")
            await say(told, client)
            told.end()
            await client.rest()
            assert ids_of(client) == list(range(1, ids_of(client)[-1] + 1))
            assert b"mill" in app.responses[at].text


async def test_comments_between_events_are_frames_of_their_own() -> None:
    async with agent(ping_interval=1) as (url, told, app), connected(url) as client:
        client.ask("POST", "/", SEND)
        await client.begin()
        await client.until("begun")
        for text in ("river", "mill"):
            await client.until(": ping\n\n")
            assert client.chunks[-1] == b": ping\n\n"
            await say(told, client, texts=[text])
            assert client.chunks[-1] == app.responses[0].written[-1]
            assert client.chunks[-1].startswith(b"id: ")
        told.end()
        await client.rest()
        assert ids_of(client) == list(range(1, ids_of(client)[-1] + 1))


# --- clients that stop, or leave --------------------------------------------------------------------------------


async def fill(told: Told, response: Watched, other: Connection) -> None:
    """Say much, which another client reads, until this one's connection takes nothing at once any more."""
    number = 0
    while not response.refused:
        told.say(f"{number}.{LARGE}")
        await other.until(f'"{number}.x')
        number += 1


async def test_a_client_that_stops_and_goes_on_has_every_event_once() -> None:
    async with agent() as (url, told, app), connected(url) as slow, connected(url) as other:
        slow.ask("POST", "/", SEND)
        await slow.begin()
        await slow.until("begun")
        subscription(other, task_of(slow))
        await other.begin()
        await other.until("begun")
        for _ in range(2):
            await fill(told, app.responses[0], other)
            await say(told, other)  # while it takes nothing
            await slow.until("wheel")
            await say(told, slow, other, texts=["again"])
            assert b"again" in app.responses[0].written[-1]  # as before
            app.responses[0].refused = 0
        told.end()
        await slow.rest()
        await other.rest()
        assert ids_of(slow) == list(range(1, ids_of(slow)[-1] + 1))
        is_same = slow.body == other.body
        assert is_same


@pytest.mark.parametrize("stops", [False, True], ids=["it reads", "it had stopped"])
@pytest.mark.parametrize("leave", [Connection.close, Connection.abort], ids=["in good order", "killed"])
async def test_a_client_that_leaves_is_missed_by_nobody(
    caplog: pytest.LogCaptureFixture, leave: Callable[[Connection], None], stops: bool
) -> None:
    async with agent(max_streams=2) as (url, told, app), connected(url) as leaver, connected(url) as stays:
        with nothing_logged(caplog):
            leaver.ask("POST", "/", SEND)
            await leaver.begin()
            await leaver.until("begun")
            subscription(stays, task_of(leaver))
            await stays.begin()
            await stays.until("begun")
            await say(told, leaver, stays)
            if stops:
                await fill(told, app.responses[0], stays)
            leave(leaver)
            await say(told, stays)  # which the server writes without having learned that it has left
            await app.responses[0].ended.wait()
            assert not app.responses[0].ready
            async with connected(url) as third:  # there is a place for it now
                subscription(third, task_of(leaver))
                await third.begin()
                await third.until("begun")
                while ids_of(third)[-1] < ids_of(stays)[-1]:
                    await third.chunk()
                await say(told, stays, third)
                told.end()
                await stays.rest()
                await third.rest()
                assert ids_of(stays) == ids_of(third) == list(range(1, ids_of(stays)[-1] + 1))
            assert b"TASK_STATE_COMPLETED" in stays.body


@pytest.mark.parametrize("is_quiet", [False, True], ids=["there is more", "nothing follows"])
async def test_a_client_that_takes_nothing_is_dropped_and_may_come_back(is_quiet: bool) -> None:
    async with (
        agent(ping_interval=1, send_timeout=1, max_streams=2) as (url, told, app),
        connected(url) as slow,
        connected(url) as other,
    ):
        slow.ask("POST", "/", SEND)
        await slow.begin()
        await slow.until("begun")
        subscription(other, task_of(slow))
        await other.begin()
        await other.until("begun")
        if is_quiet:
            told.say(LARGE * 16)
            await other.until("xxx")
            assert len(app.responses[0].text) > len(LARGE * 16)
        else:
            await fill(told, app.responses[0], other)
        with anyio.fail_after(10):
            await app.responses[0].ended.wait()
        async with connected(url) as again:
            subscription(again, task_of(slow))
            await again.begin()
            await again.until("begun")
            while ids_of(again)[-1] < ids_of(other)[-1]:
                await again.chunk()
            await say(told, again)
            told.end()
            await again.rest()
            assert ids_of(again) == list(range(1, ids_of(again)[-1] + 1))


# --- what is written by a task all the same ---------------------------------------------------------------------


def a_stream_of(task: Written, newest: type[Framing] = Framing) -> FastAPI:
    """An application that streams a task.

    Args:
        task: What is streamed.
        newest: Frames what is written at once.
    """
    app = FastAPI()

    @app.api_route("/", methods=["GET", "HEAD"])
    async def stream() -> Response:
        events = EventStream(task.subscription())
        framing = Framing(events, Version10())

        async def frames() -> AsyncGenerator[bytes]:
            async with aclosing(events.batches()) as batches:
                async for batch in batches:
                    yield framing.frame(batch)

        return sse_response(
            frames(),
            settings=Settings(),
            headers={},
            streams=OpenStreams(),
            framing=newest(events, Version10()),
        )

    return app


async def test_who_asks_for_the_head_alone_is_given_nothing_else() -> None:
    async with written() as task:
        app = Offering(a_stream_of(task))
        async with serving(app) as url, connected(url) as client, connected(url) as other:
            client.ask("HEAD", "/")
            await client.begin()
            other.ask("GET", "/")
            await other.begin()
            await other.until("WORKING")
            assert [response.ready for response in app.responses] == [False, True]
            await task.show(PIECE, PIECE)
            await task.end()
            await other.rest()
            client.ask("GET", "/")  # on the same connection: the next thing in it is the head of the answer
            await client.begin()
            assert client.head.startswith(b"HTTP/1.1 200")
            await client.rest()
        assert app.responses[0].written == []
        assert client.body == other.body
        assert ids_of(client) == [event.number for event in task.events]


async def test_what_cannot_be_written_at_once_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    failures = [True, False, True]

    class Failing(Framing):
        def frame(self, events: Sequence[Event]) -> bytes:
            if failures.pop(0):
                raise ValueError("no ink")
            return super().frame(events)

    async with written() as task:
        app = Offering(a_stream_of(task, Failing))
        async with serving(app) as url, connected(url) as client:
            client.ask("GET", "/")
            await client.begin()
            await client.until("WORKING")
            for number in (4, 5, 6):
                await task.show(PIECE)
                await client.until(f"id: {number}\n")
            failures += [False, False, False]
            await task.end()
            await client.rest()
        assert ids_of(client) == [event.number for event in task.events]
        assert len(app.responses[0].written) >= 2
    assert [each.exc_info is not None for each in caplog.records if each.name == "tailrace.server"] == [
        True,
        True,
    ]


async def test_nothing_is_offered_where_another_server_sends() -> None:
    async def send(message: Any) -> None: ...

    scope: Scope = {"type": "http"}
    offer_writer(scope, send)
    assert scope == {"type": "http"}
    assert writer_of(scope) is None

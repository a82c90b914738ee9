"""Connections to a real Valkey: commands of many at once, what is published, and broken connections."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from support.proxy import CuttingProxy
from support.valkey import ValkeyServer
from tailrace.server.cluster.broker import Broker
from tailrace.server.cluster.link import BrokerError, Link, ReplyError, Subscriber, pack


@asynccontextmanager
async def broker_behind(
    valkey: ValkeyServer, seconds: float = 5.0
) -> AsyncGenerator[tuple[Broker, CuttingProxy]]:
    """A broker that can be cut off."""
    async with CuttingProxy(valkey.url()) as proxy:
        broker = Broker(f"redis://{proxy.url.removeprefix('http://')}/0", timeout=seconds)
        yield broker, proxy
        await broker.close()


@pytest.fixture
async def link(valkey: ValkeyServer) -> AsyncGenerator[Link]:
    valkey.command("FLUSHALL")
    link = Broker(valkey.url()).link()
    yield link
    await link.close()


def test_words_of_every_kind_are_packed() -> None:
    packed = b"*4\r\n$1\r\nA\r\n$2\r\n\xc3\xa9\r\n$2\r\n12\r\n$3\r\n\x00\r\n\r\n"
    assert pack((b"A", "é", 12, b"\x00\r\n")) == packed


async def test_answers_come_in_the_order_of_the_commands_and_errors_are_among_them(link: Link) -> None:
    found = await link.run(
        (b"SET", b"k", b"v"), (b"XLEN", b"k"), (b"GET", b"k"), (b"TIME", b"no"), (b"LRANGE", b"l", 0, 1)
    )
    assert found[0] == b"OK"
    assert isinstance(found[1], ReplyError)
    assert found[1].reply.startswith("WRONGTYPE")
    assert found[2] == b"v"
    assert isinstance(found[3], ReplyError)
    assert found[4] == []


async def test_nobody_waits_for_the_round_trip_of_somebody_else(link: Link) -> None:
    """A hundred at once, one of whom leaves: each is given its own answer."""
    answers: dict[int, bytes] = {}

    async def ask(number: int) -> None:
        [answers[number]] = await link.run((b"ECHO", number))

    async with anyio.create_task_group() as group:
        leaving = anyio.CancelScope()

        async def leave() -> None:
            with leaving:
                await link.run((b"ECHO", b"nobody hears this"))

        for number in range(50):
            group.start_soon(ask, number)
        group.start_soon(leave)
        for number in range(50, 100):
            group.start_soon(ask, number)
        await anyio.wait_all_tasks_blocked()
        leaving.cancel()
    assert answers == {number: str(number).encode() for number in range(100)}


async def test_a_connection_is_made_anew_after_it_was_cut(valkey: ValkeyServer) -> None:
    async with broker_behind(valkey) as (broker, proxy):
        assert await broker.reading.run((b"PING",)) == [b"PONG"]
        waiting = anyio.Event()

        async def wait() -> None:
            waiting.set()
            with pytest.raises(BrokerError, match="cannot be reached"):
                await broker.reading.run((b"BLPOP", b"nothing", 30), waits=30)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await waiting.wait()
            await anyio.wait_all_tasks_blocked()
            proxy.cut_now()
        assert await broker.reading.run((b"PING",)) == [b"PONG"]


async def test_a_broker_that_says_nothing_is_given_up_in_bounded_time(valkey: ValkeyServer) -> None:
    async with broker_behind(valkey, seconds=0.2) as (broker, proxy):
        await broker.reading.run((b"PING",))
        proxy.hold()
        with anyio.fail_after(5), pytest.raises(BrokerError, match="no answer in time"):
            await broker.reading.run((b"PING",))
        proxy.heal()
        assert await broker.reading.run((b"PING",)) == [b"PONG"]


class Ear:
    """What a subscriber hears, and a way to wait for it."""

    def __init__(self) -> None:
        self.began: list[bytes] = []
        self.heard: list[tuple[bytes, bytes]] = []
        self._more = anyio.Event()

    def subscriber(self, broker: Broker) -> Subscriber:
        return broker.subscriber(self._note_begin, self._note)

    async def until(self, holds: Callable[[], bool]) -> None:
        with anyio.fail_after(10):
            while not holds():
                self._more = anyio.Event()
                await self._more.wait()

    def _note_begin(self, channel: bytes) -> None:
        self.began.append(channel)
        self._more.set()

    def _note(self, channel: bytes, message: bytes) -> None:
        self.heard.append((channel, message))
        self._more.set()


async def test_what_is_published_is_heard_from_the_moment_that_is_said(valkey: ValkeyServer) -> None:
    async with broker_behind(valkey) as (broker, proxy):
        ear = Ear()
        subscriber = ear.subscriber(broker)
        subscriber.subscribe(b"c")  # there is no connection yet: it is nothing
        async with anyio.create_task_group() as group:
            broken = anyio.Event()

            async def hear() -> None:
                with pytest.raises(BrokerError, match="cannot be reached"):
                    await subscriber.run(lambda: [b"a", b"b"])
                broken.set()

            group.start_soon(hear)
            await ear.until(lambda: ear.began == [b"a", b"b"])
            subscriber.subscribe(b"c")
            await ear.until(lambda: ear.began == [b"a", b"b", b"c"])
            subscriber.unsubscribe(b"b")
            for channel in (b"a", b"b", b"c"):
                await broker.writing.run((b"PUBLISH", channel, b"to " + channel))
            await ear.until(lambda: len(ear.heard) == 2)
            assert ear.heard == [(b"a", b"to a"), (b"c", b"to c")]
            proxy.cut_now()
            with anyio.fail_after(10):
                await broken.wait()


async def test_a_subscriber_notices_that_the_broker_is_silent(valkey: ValkeyServer) -> None:
    async with broker_behind(valkey, seconds=0.2) as (broker, proxy):
        ear = Ear()
        async with anyio.create_task_group() as group:

            async def hold() -> None:
                await ear.until(lambda: ear.began == [b"a"])
                proxy.hold()

            group.start_soon(hold)
            with anyio.fail_after(10), pytest.raises(BrokerError, match="silent"):
                await ear.subscriber(broker).run(lambda: [b"a"])
        proxy.heal()

"""Connections to a real Valkey: concurrent commands, published messages, and broken connections."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from support.http_server import certificates
from support.proxy import CuttingProxy
from support.valkey import ValkeyServer
from tailrace.server.cluster.broker import Broker
from tailrace.server.cluster.broker_connection import (
    BrokerConnection,
    BrokerError,
    ReplyError,
    Subscriber,
    pack,
)
from tailrace.wrappers import ConfigurationError


@asynccontextmanager
async def broker_behind(
    valkey: ValkeyServer, seconds: float = 5.0
) -> AsyncGenerator[tuple[Broker, CuttingProxy]]:
    """Return a broker behind a cuttable proxy."""
    async with CuttingProxy(valkey.url()) as proxy:
        broker = Broker(f"redis://{proxy.url.removeprefix('http://')}/0", timeout=seconds)
        yield broker, proxy
        await broker.close()


@pytest.fixture
async def link(valkey: ValkeyServer) -> AsyncGenerator[BrokerConnection]:
    valkey.command("FLUSHALL")
    link = Broker(valkey.url()).create_connection()
    yield link
    await link.close()


def test_words_of_every_kind_are_packed() -> None:
    packed = b"*4\r\n$1\r\nA\r\n$2\r\n\xc3\xa9\r\n$2\r\n12\r\n$3\r\n\x00\r\n\r\n"
    assert pack((b"A", "é", 12, b"\x00\r\n")) == packed


async def test_answers_come_in_the_order_of_the_commands_and_errors_are_among_them(
    link: BrokerConnection,
) -> None:
    found = await link.run(
        (b"SET", b"k", b"v"), (b"XLEN", b"k"), (b"GET", b"k"), (b"TIME", b"no"), (b"LRANGE", b"l", 0, 1)
    )
    assert found[0] == b"OK"
    assert isinstance(found[1], ReplyError)
    assert found[1].reply.startswith("WRONGTYPE")
    assert found[2] == b"v"
    assert isinstance(found[3], ReplyError)
    assert found[4] == []


async def test_concurrent_commands_do_not_wait_for_each_other(link: BrokerConnection) -> None:
    """Of a hundred concurrent commands one is cancelled; each other one gets its own reply."""
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


async def test_the_client_reconnects_after_a_lost_connection(valkey: ValkeyServer) -> None:
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


async def test_a_silent_broker_times_out(valkey: ValkeyServer) -> None:
    async with broker_behind(valkey, seconds=1) as (broker, proxy):
        await broker.reading.run((b"PING",))
        proxy.hold()
        with anyio.fail_after(20), pytest.raises(BrokerError, match="no reply in time"):
            await broker.reading.run((b"PING",))
        proxy.heal()
        assert await broker.reading.run((b"PING",)) == [b"PONG"]


class Ear:
    """Collects the messages of a subscriber, and waits for them."""

    def __init__(self) -> None:
        self.began: list[bytes] = []
        self.deliveries: list[tuple[bytes, bytes]] = []
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
        self.deliveries.append((channel, message))
        self._more.set()


async def test_messages_arrive_as_soon_as_a_subscription_is_confirmed(valkey: ValkeyServer) -> None:
    async with broker_behind(valkey) as (broker, proxy):
        ear = Ear()
        subscriber = ear.subscriber(broker)
        subscriber.subscribe(b"c")  # without a connection, this has no effect
        async with anyio.create_task_group() as group:
            broken = anyio.Event()

            async def receive() -> None:
                with pytest.raises(BrokerError, match="cannot be reached"):
                    await subscriber.run(lambda: [b"a", b"b"])
                broken.set()

            group.start_soon(receive)
            await ear.until(lambda: ear.began == [b"a", b"b"])
            subscriber.subscribe(b"c")
            await ear.until(lambda: ear.began == [b"a", b"b", b"c"])
            subscriber.unsubscribe(b"b")
            for channel in (b"a", b"b", b"c"):
                await broker.writing.run((b"PUBLISH", channel, b"to " + channel))
            await ear.until(lambda: len(ear.deliveries) == 2)
            assert ear.deliveries == [(b"a", b"to a"), (b"c", b"to c")]
            proxy.cut_now()
            with anyio.fail_after(10):
                await broken.wait()


async def test_a_subscriber_notices_that_the_broker_is_silent(valkey: ValkeyServer) -> None:
    async with broker_behind(valkey, seconds=1) as (broker, proxy):
        ear = Ear()
        async with anyio.create_task_group() as group:

            async def hold() -> None:
                await ear.until(lambda: ear.began == [b"a"])
                proxy.hold()

            group.start_soon(hold)
            with anyio.fail_after(10), pytest.raises(BrokerError, match="silent"):
                await ear.subscriber(broker).run(lambda: [b"a"])
        proxy.heal()


async def test_a_user_and_a_database_of_the_address_are_used(valkey: ValkeyServer) -> None:
    valkey.command("FLUSHALL")
    valkey.command("ACL", "SETUSER", "node", "on", ">s3cret", "~*", "+@all")
    try:
        user = Broker(f"redis://node:s3cret@127.0.0.1:{valkey.port}/3?client_name=n1")
        assert await user.reading.run((b"ACL", b"WHOAMI"), (b"CLIENT", b"GETNAME"), (b"SET", b"k", b"v")) == [
            b"node",
            b"n1",
            b"OK",
        ]
        other = Broker(valkey.url(3))
        assert await other.reading.run((b"GET", b"k")) == [b"v"]
        refused = Broker(f"redis://node:wrong@127.0.0.1:{valkey.port}/3")
        with pytest.raises(BrokerError, match="cannot be reached: WRONGPASS") as raised:
            await refused.reading.run((b"PING",))
        assert "wrong@" not in str(raised.value)
        for broker in (user, other, refused):
            await broker.close()
    finally:
        valkey.command("ACL", "DELUSER", "node")
        valkey.command("FLUSHALL")


class Listener:
    """A server that replies to each command with OK.

    Attributes:
        received: The bytes that it received.
    """

    def __init__(self) -> None:
        self.received = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.received += data
            writer.write(b"+OK\r\n" * data.count(b"*"))
        writer.close()


async def test_an_address_is_a_unix_socket(tmp_path: Path) -> None:
    listener, path = Listener(), tmp_path / "broker"
    async with await asyncio.start_unix_server(listener.serve, path):
        broker = Broker(f"unix://:s3cret@{path}?db=2")
        assert await broker.reading.run((b"PING",)) == [b"OK"]
        await broker.close()
    assert listener.received == b"".join(
        map(pack, ((b"AUTH", b"s3cret"), (b"SELECT", 2), (b"PING",)))  # nothing added by the library
    )


async def test_an_address_with_tls_is_encrypted_and_verified(tmp_path: Path) -> None:
    server_side, client_side = certificates("127.0.0.1")
    [certificate] = client_side.get_ca_certs(binary_form=True)
    (tmp_path / "ca.pem").write_text(ssl.DER_cert_to_PEM_cert(certificate))
    listener = Listener()
    async with await asyncio.start_server(listener.serve, "127.0.0.1", 0, ssl=server_side) as server:
        url = f"rediss://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        broker = Broker(f"{url}?ssl_ca_certs={tmp_path}/ca.pem")
        assert await broker.reading.run((b"PING",)) == [b"OK"]
        await broker.close()
        stranger = Broker(url)
        with pytest.raises(BrokerError, match=r"cannot be reached: .*certificate verify failed"):
            await stranger.reading.run((b"PING",))
    assert listener.received == pack((b"PING",))


@pytest.mark.parametrize("url", ["redis://h:port/0", "redis://h/0?no_such_option=1", "http://h"])
def test_an_address_that_cannot_be_used_is_an_error_at_the_start(url: str) -> None:
    with pytest.raises(ConfigurationError, match="TAILRACE_EVENTS: "):
        Broker(url)

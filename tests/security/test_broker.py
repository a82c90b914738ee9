"""Write access to the broker: injected entries deliver no events, execute no commands, and end no task."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from redis.asyncio import Redis

from support import engines
from support.engines import Typist, shown
from support.live_server import serving
from support.metrics import scrape
from support.nodes import Nodes
from support.postgres import PostgresServer
from support.rpc import Rpc, message, streamed_text
from support.valkey import ValkeyServer
from tailrace.server import Settings, create_app
from tailrace.server.cluster.broker import Broker
from tailrace.server.cluster.message_authentication import Authentication, EntryRejected
from tailrace.server.cluster.node_commands import Cancel, Command, Commands, NoReply
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import FunctionHandler
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.streaming import ArtifactUpdate, Event, TaskState
from tailrace.streaming.a2a.models import Artifact, Part

FORGED = "forged by an attacker"
Attacker = Any  # the client (redis-py), whose types are partial
SECRET, OTHER_SECRET = "installation-secret-1", "installation-secret-2"


def body_of(text: str) -> bytes:
    """Return an event that adds text to the artifact of every task below."""
    update = ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=text),)), append=True, last=False)
    event = {
        "taskId": "t",
        "contextId": "c",
        "artifact": update.artifact.model_dump(mode="json", by_alias=True),
    }
    return msgspec.json.encode({"artifactUpdate": {**event, "append": True, "lastChunk": False}})


def ending(state: TaskState) -> bytes:
    status = {"taskId": "t", "contextId": "c", "status": {"state": state.value}}
    return msgspec.json.encode({"statusUpdate": status})


def packed(*events: bytes | tuple[bytes, str]) -> bytes:
    """Return events in the unsigned format of version 0.1."""
    return msgspec.msgpack.encode(list(events))


def unauthentic(*events: bytes | tuple[bytes, str]) -> bytes:
    """Return events in the current format, with an invented tag."""
    return b"\x01" + bytes(16) + packed(*events)


class Reader:
    """Reads a task at one node, to its end."""

    def __init__(self, engine: Engine, task_id: str) -> None:
        self.events: list[Event] = []
        self._engine, self._task_id = engine, task_id
        self._more = anyio.Event()
        self.over = anyio.Event()

    @property
    def text(self) -> str:
        return shown(self.events)

    async def run(self) -> None:
        subscription = await self._engine.subscribe(self._task_id, after=0)
        async for batch in subscription.batches():
            self.events += batch
            self._more.set()
            self._more = anyio.Event()
        self._more.set()
        self.over.set()

    async def until(self, text: str) -> None:
        """Wait until this text was read."""
        while self.text != text:
            await self._more.wait()


async def start(engine: Engine, text: str = "hello") -> str:
    started = await engines.start(engine, text)
    await started.wait_for_start()
    return started.task_id


def stream(task_id: str) -> str:
    return f"tailrace:{{{task_id}}}:events"


@pytest.fixture
async def nodes(postgres: PostgresServer, valkey: ValkeyServer) -> Nodes:
    return await Nodes.empty(postgres, valkey, ttl=10.0)


@pytest.fixture
async def attacker(valkey: ValkeyServer) -> AsyncGenerator[Attacker]:
    """A client with write access to the broker."""
    async with Redis(port=valkey.port) as client:
        yield client


class Followed:
    """A working task on one of two nodes, with a subscriber on each."""

    def __init__(self, typist: Typist, task_id: str, own: Reader, other: Reader) -> None:
        self.typist = typist
        self.task_id = task_id
        self.own, self.other = own, other

    async def type(self, text: str, whole: str) -> None:
        """Continue the answer, until both subscribers have received it."""
        self.typist.type(text)
        await self.own.until(whole)
        await self.other.until(whole)


@asynccontextmanager
async def followed(nodes: Nodes) -> AsyncGenerator[Followed]:
    """Run the task to its end; both subscribers must receive the same events and no injected text."""
    typist = Typist()
    with anyio.fail_after(40):
        async with nodes.running(typist.handle) as (first, second), anyio.create_task_group() as group:
            task_id = await start(first)
            own, other = Reader(first, task_id), Reader(second, task_id)
            group.start_soon(own.run)
            group.start_soon(other.run)
            task = Followed(typist, task_id, own, other)
            await task.type("a", "a")
            yield task
            typist.type("z", "")
            for reader in (own, other):
                await reader.over.wait()
                assert reader.text.endswith("z")
                assert FORGED not in reader.text
                assert reader.events[-1].state is TaskState.COMPLETED
            assert typist.turns == ["hello"]


@pytest.mark.parametrize("entry", [packed, unauthentic], ids=["of 0.1", "of today"])
async def test_a_forged_event_on_a_channel_is_not_delivered(
    nodes: Nodes, attacker: Attacker, entry: object
) -> None:
    make = packed if entry is packed else unauthentic
    async with followed(nodes) as task:
        number = task.other.events[-1].number + 1
        for forged in (make(body_of(FORGED)), make((ending(TaskState.COMPLETED), "TASK_STATE_COMPLETED"))):
            for name in (b"%d " % number, b"%d node " % number):
                assert await attacker.publish(stream(task.task_id), name + forged) == 1
        await task.type("b", "ab")


@pytest.mark.parametrize("entry", [packed, unauthentic], ids=["of 0.1", "of today"])
async def test_a_forged_entry_of_a_stream_is_not_delivered_and_ends_nothing(
    nodes: Nodes, attacker: Attacker, entry: object
) -> None:
    make = packed if entry is packed else unauthentic
    async with followed(nodes) as task:
        number = task.other.events[-1].number + 1
        end = make((ending(TaskState.FAILED), "TASK_STATE_FAILED"))
        await attacker.xadd(stream(task.task_id), {"w": "x", "e": make(body_of(FORGED))}, id=f"{number}-0")
        await attacker.xadd(stream(task.task_id), {"w": "x", "e": end}, id=f"{number + 1}-0")
        await task.type("b", "ab")  # the node that runs the task continues it
        await task.type("c", "abc")


@pytest.mark.parametrize(
    "fields",
    [
        {"e": "x"},
        {"w": "x"},
        {"w": "e"},
        {"a": "b", "c": "e"},
        {"w": "x", "e": "\xff"},
        {"w": "x", "e": "", "f": ""},
    ],
)
async def test_an_entry_of_another_form_is_passed_over(
    nodes: Nodes, attacker: Attacker, fields: dict[str, str]
) -> None:
    async with followed(nodes) as task:
        await attacker.xadd(stream(task.task_id), dict(fields), id="9000000000-7")
        await attacker.publish(stream(task.task_id), "notanumber x")
        await attacker.publish(stream(task.task_id), "")
        await attacker.publish(stream(task.task_id), "9" * 5000 + " x " + "y")
        await task.type("b", "ab")


@pytest.mark.parametrize(
    "poison",
    [
        ("SET", "{key}", "x"),
        ("DEL", "{key}"),
        ("XADD", "{key}", "18446744073709551615-18446744073709551615", "w", "x", "e", ""),
        ("XSETID", "{key}", "18446744073709551615-18446744073709551615"),
        ("XTRIM", "{key}", "MAXLEN", "0"),
        (
            "EVAL",
            "for n = 1, 600 do redis.call('XADD', KEYS[1], '1000-' .. n, 'w', 'x', 'e', 'y') end",
            "1",
            "{key}",
        ),
    ],
    ids=["no stream", "gone", "last id", "last id set", "emptied", "full of garbage"],
)
async def test_a_stream_that_cannot_be_used_costs_its_task_nothing_but_time(
    nodes: Nodes, attacker: Attacker, poison: tuple[str, ...]
) -> None:
    async with followed(nodes) as task:
        await attacker.execute_command(*(word.format(key=stream(task.task_id)) for word in poison))
        await task.type("b", "ab")
        await task.type("c", "abc")


async def test_one_poisoned_key_leaves_the_broker_to_the_other_tasks(
    nodes: Nodes, attacker: Attacker
) -> None:
    async with followed(nodes) as poisoned:
        key = stream(poisoned.task_id)
        await attacker.delete(key)
        await attacker.set(key, "x")
        async with followed(nodes) as task:
            await task.type("b", "ab")
            assert await attacker.xlen(stream(task.task_id)) > 0
            entries = await attacker.xlen(stream(task.task_id))
            await poisoned.type("b", "ab")
            await task.type("c", "abc")
            assert await attacker.xlen(stream(task.task_id)) > entries
        await attacker.flushall()


async def test_an_entry_is_accepted_in_its_own_place_alone(nodes: Nodes, attacker: Attacker) -> None:
    async with followed(nodes) as source:
        for text in "bcd":
            await source.type(text, f"a{'bcd'[: 'bcd'.index(text) + 1]}")
        copied = await attacker.xrange(stream(source.task_id))
        async with followed(nodes) as target:
            key, last = stream(target.task_id), target.other.events[-1].number
            for name, fields in copied:
                number = int(name.partition(b"-")[0])
                if not number > last:
                    continue
                for place in (number, number + 5, number - 1):
                    moved = b"%d %b %b" % (place, fields[b"w"], fields[b"e"])
                    await attacker.publish(key, moved)  # of another task
                    if place != number:
                        await attacker.publish(stream(source.task_id), moved)  # at another position
                await attacker.xadd(key, dict(fields), id=f"{number}-0")
            await target.type("X", "aX")
        await source.type("e", "abcde")


async def test_a_task_of_a_dead_node_is_taken_over_past_keys_that_cannot_be_used(
    postgres: PostgresServer, valkey: ValkeyServer, attacker: Attacker
) -> None:
    nodes = await Nodes.empty(postgres, valkey, ttl=4.0)
    typist = Typist()
    with anyio.fail_after(40):
        async with nodes.running(typist.handle, 1) as (second,):
            dead = nodes.node(typist.handle)
            async with dead.running():
                ids = [await start(dead) for _ in range(3)]
                for task_id in ids:
                    reader = Reader(second, task_id)
                    async with anyio.create_task_group() as group:
                        group.start_soon(reader.run)
                        await reader.until("")
                        group.cancel_scope.cancel()
                # The events of these are only there, and lost; they must not keep the third task from being ended.
                for task_id in ids[:2]:
                    await attacker.delete(stream(task_id))
                await attacker.set(stream(ids[0]), "x")
                await attacker.xadd(
                    stream(ids[1]), {"w": "x"}, id="18446744073709551615-18446744073709551615"
                )
                await postgres.execute(
                    "UPDATE nodes SET beat = beat - interval '1 day' WHERE id <> ''", "nodes"
                )
                await postgres.execute("DELETE FROM nodes", "nodes")
            for task_id in ids:
                reader = Reader(second, task_id)
                await reader.run()
                assert reader.events[-1].state is not None
                assert (await second.get_task(task_id)).status.state is TaskState.FAILED


# --- commands -----------------------------------------------------------------------------------------------------


class _Request01(msgspec.Struct, tag="_Request", frozen=True):
    id: str
    sender: str
    command: Command


async def channels(attacker: Attacker) -> list[str]:
    """Return the channels on which the nodes receive commands."""
    return [name.decode() for name in await attacker.pubsub_channels("tailrace:node:*")]


@asynccontextmanager
async def overhearing(attacker: Attacker, channel: str) -> AsyncGenerator[Callable[[], Awaitable[bytes]]]:
    """Yield a function that returns the next message on a channel."""
    spy: Any
    async with attacker.pubsub() as spy:
        await spy.subscribe(channel)

        async def receive(kind: str = "message") -> bytes:
            found: dict[str, Any] = await spy.get_message(timeout=None)
            assert found["type"] == kind
            return found["data"]

        await receive("subscribe")
        yield receive


async def subscribers(attacker: Attacker) -> set[str]:
    """Return the connections on which nodes are subscribed."""
    return {client["id"] for client in await attacker.client_list(_type="pubsub")}


async def test_a_forged_command_is_not_carried_out(nodes: Nodes, attacker: Attacker) -> None:
    async with followed(nodes) as task:
        seconds, microseconds = await attacker.time()
        now = b"%d%03d" % (seconds, microseconds // 1000)
        encoded = msgspec.msgpack.encode(_Request01("1" * 32, "x", Cancel(task.task_id, "")))
        times = int(now).to_bytes(8, "big")
        for channel in await channels(attacker):
            await attacker.publish(channel, now + b" " + encoded)
            await attacker.publish(channel, b"\x01" + bytes(16) + times + encoded)
        await task.type("b", "ab")


async def test_what_no_node_sent_leaves_the_connections_as_they_are(nodes: Nodes, attacker: Attacker) -> None:
    async with followed(nodes) as task:
        before = await subscribers(attacker)
        channel_names = await channels(attacker)
        assert len(channel_names) == 2
        command = msgspec.msgpack.encode(_Request01("1" * 32, "x", Cancel(task.task_id, "")))
        for channel in [*channel_names, stream(task.task_id)]:
            for garbage in (
                b"",
                b" ",
                b"notanumber x",
                b"notanumber " + command,
                b"\x01",
                b"\x02" * 40,
                b"\xff\x00\r\n",
                b"1 " + b"\x93" * 99,
            ):
                await attacker.publish(channel, garbage)
        await task.type("b", "ab")
        assert await subscribers(attacker) == before


class Node:
    """A node's command endpoint, with a log of executed commands."""

    def __init__(self, valkey: ValkeyServer, keys: SecretKeys) -> None:
        self.broker = Broker(valkey.url())
        self.carried_out: list[Command] = []
        self.commands = Commands(self.broker, Authentication(keys), self._execute_command)

    async def _execute_command(self, command: Command) -> bytes:
        self.carried_out.append(command)
        return b"done"


@asynccontextmanager
async def talking(valkey: ValkeyServer, *keys: SecretKeys) -> AsyncGenerator[list[Node]]:
    """Connect nodes a, b, c, … to each other."""
    ends = [Node(valkey, each) for each in keys]
    with anyio.fail_after(20):
        async with AsyncExitStack() as stack, anyio.create_task_group() as group:
            for name, end in zip("abcd", ends, strict=False):
                stack.push_async_callback(end.broker.close)
                group.start_soon(end.commands.run, name)
            client: Attacker
            async with Redis(port=valkey.port) as client:
                while len(await client.pubsub_channels("tailrace:node:*")) < len(ends):  # noqa: ASYNC110
                    await anyio.sleep(0.01)  # the broker is the only state to wait on
            yield ends
            group.cancel_scope.cancel()


async def test_a_replayed_command_is_never_carried_out(valkey: ValkeyServer, attacker: Attacker) -> None:
    keys = SecretKeys(SECRET)
    async with (
        talking(valkey, keys, keys, keys) as (a, b, c),
        overhearing(attacker, "tailrace:node:b") as receive,
    ):
        assert await a.commands.send_request("b", Cancel("t", "ann")) == b"done"
        recorded = await receive()
        for channel in ("tailrace:node:b", "tailrace:node:c", "tailrace:node:a"):
            await attacker.publish(channel, recorded)
        await a.commands.send_request("b", Cancel("u", "ann"))
        await a.commands.send_request("c", Cancel("v", "ann"))
        assert b.carried_out == [Cancel("t", "ann"), Cancel("u", "ann")]
        assert c.carried_out == [Cancel("v", "ann")]


async def test_the_time_of_a_command_is_signed(valkey: ValkeyServer, attacker: Attacker) -> None:
    keys = SecretKeys(SECRET)
    async with talking(valkey, keys, keys) as (a, b), overhearing(attacker, "tailrace:node:b") as receive:
        await a.commands.send_request("b", Cancel("t", "ann"))
        recorded = await receive()
        for at in range(len(recorded)):  # every byte, including those of the time
            changed = bytearray(recorded)
            changed[at] ^= 1
            with pytest.raises(EntryRejected):
                Authentication(keys).verify("command", bytes(changed), b"tailrace:node:b")
        assert Authentication(keys).verify("command", recorded, b"tailrace:node:b")
        assert b.carried_out == [Cancel("t", "ann")]


async def test_messages_of_nodes_with_another_secret_are_ignored(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tailrace.server.cluster.node_commands.REQUEST_TIMEOUT", 0.5)
    async with talking(valkey, SecretKeys(SECRET), SecretKeys(OTHER_SECRET)) as (a, b):
        with pytest.raises(NoReply):
            await a.commands.send_request("b", Cancel("t", "ann"))
        assert b.carried_out == []
    assert "another TAILRACE_SECRET_KEY" in caplog.text


async def test_a_secret_is_replaced_node_by_node(valkey: ValkeyServer) -> None:
    both = SecretKeys(f"{SECRET},{OTHER_SECRET}")
    other_first = SecretKeys(f"{OTHER_SECRET},{SECRET}")
    for pair in ((SecretKeys(SECRET), both), (both, other_first), (other_first, SecretKeys(OTHER_SECRET))):
        async with talking(valkey, *pair) as (a, b):
            assert await a.commands.send_request("b", Cancel("t", "ann")) == b"done"
            assert await b.commands.send_request("a", Cancel("t", "ann")) == b"done"


async def event_stream(attacker: Attacker) -> str:
    """Wait for the stream of the only task, which may be created late on a busy machine."""
    while True:
        names = [name async for name in attacker.scan_iter("tailrace:*:events")]
        if names:
            return names[0]
        await anyio.sleep(0.05)


async def test_rejected_entries_are_counted_and_logged_once_in_a_while_without_their_control_characters(
    postgres: PostgresServer, valkey: ValkeyServer, attacker: Attacker, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = await Nodes.empty(postgres, valkey)
    caplog.set_level(logging.INFO, "tailrace.server")
    typist = Typist()
    named = "bad\r\nERROR: \x1b[31mforged"
    async with AsyncExitStack() as stack:
        urls: list[str] = []
        for _ in range(2):
            settings = Settings(events=nodes.events, store=nodes.store, endpoints=("metrics",))
            app = create_app(settings, handler=FunctionHandler(typist.handle))
            urls.append(await stack.enter_async_context(serving(app)))
        seen: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        async with Rpc(urls[0]) as first, Rpc(urls[1]) as second, anyio.create_task_group() as group:
            began = anyio.Event()

            async def read() -> None:
                tasks = await first.result("ListTasks", {})
                task_id = tasks["tasks"][0]["id"]
                seen["other"] = await second.stream(
                    "SubscribeToTask", {"id": task_id}, seen=lambda _: began.set()
                )

            async def send() -> None:
                seen["own"] = await first.stream(
                    "SendStreamingMessage", message(), seen=lambda _: started.set()
                )

            started = anyio.Event()
            with anyio.fail_after(30):
                group.start_soon(send)
                await started.wait()
                group.start_soon(read)
                await began.wait()
                channel = await event_stream(attacker)
                for _ in range(50):
                    assert await attacker.publish(channel, f"5 {named} x")
                for node in await channels(attacker):
                    await attacker.publish(node, "notanumber x")
                typist.type("whole", "")
        assert streamed_text(seen["own"]) == "whole"
        counted = [await scrape(url) for url in urls]
        name = "tailrace_broker_rejected_entries_total"
        assert sum(each.value(name, purpose="event") for each in counted) == 50
        assert sum(each.value(name, purpose="command") for each in counted) == 2
    lines = [record for record in caplog.records if "rejected an entry" in record.getMessage()]
    assert 1 <= len(lines) <= 2  # a node logs at most one in ten seconds
    assert all(record.getMessage().isprintable() for record in lines)
    assert FORGED not in caplog.text

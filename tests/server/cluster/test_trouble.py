"""Failures between nodes and their broker or database: no event is lost or repeated."""

from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import pytest

from support import engines
from support.engines import shown
from support.nodes import Nodes
from support.postgres import PostgresServer
from support.proxy import CuttingProxy
from support.store_objects import numbers_of, write
from support.valkey import ValkeyServer
from tailrace.server.cluster.engine import ClusterEngine
from tailrace.server.runtime.active_task import Subscription
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import Turn
from tailrace.server.store.store import NotOwnedError, TasksNotWrittenError
from tailrace.streaming import ArtifactUpdate, Event, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part
from tailrace.wrappers import StoreError

PIECES = 300


async def count(turn: Turn) -> AsyncIterator[Update | Message]:
    """Count, two numbers per hundredth of a second."""
    yield StatusUpdate(TaskState.WORKING)
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=""),)), last=False)
    for number in range(PIECES):
        await anyio.sleep(0.005)
        yield TextDelta("text", f"{number} ")


WHOLE = "".join(f"{number} " for number in range(PIECES))


async def start(engine: Engine) -> Subscription:
    started = await engines.start(engine)
    await started.wait_for_start()
    return started


async def read(engine: Engine, task_id: str, reached: anyio.Event | None = None, at: int = 0) -> list[Event]:
    """Read every event with a client that resumes when its stream ends early."""
    events: list[Event] = []
    with anyio.fail_after(30):
        while True:
            try:
                subscription = await engine.subscribe(task_id, after=events[-1].number if events else 0)
                async for batch in subscription.batches():
                    events += batch
                    if reached is not None and len(events) >= at:
                        reached.set()
                return events
            except StoreError:
                await anyio.sleep(0.05)  # as a client would


async def read_on_both(
    first: Engine, second: Engine, task_id: str, trouble: "anyio.Event"
) -> list[list[Event]]:
    """Return the events seen by clients of both nodes; ``trouble`` is set after the first ones."""
    seen: list[list[Event]] = [[], []]

    async def follow(at: int, engine: Engine) -> None:
        seen[at] = await read(engine, task_id, trouble, 20)

    async with anyio.create_task_group() as group:
        group.start_soon(follow, 0, first)
        group.start_soon(follow, 1, second)
    return seen


def through(proxy: CuttingProxy, store: str) -> str:
    """Return the address of a store behind a proxy."""
    return store.replace(urlsplit(store).netloc, f"postgres@{urlsplit(proxy.url).netloc}")


def check(seen: list[list[Event]]) -> None:
    assert seen[0] == seen[1]
    assert [event.number for event in seen[0]] == list(range(1, len(seen[0]) + 1))
    assert shown(seen[0]) == WHOLE
    assert seen[0][-1].state is TaskState.COMPLETED


@pytest.fixture
async def nodes(postgres: PostgresServer, valkey: ValkeyServer) -> Nodes:
    return await Nodes.empty(postgres, valkey, ttl=5.0)


async def test_streams_go_on_while_the_broker_is_dead_and_after(nodes: Nodes) -> None:
    async with nodes.running(count) as (first, second):
        started = await start(first)
        trouble = anyio.Event()
        seen: list[list[Event]] = []

        async def follow() -> None:
            seen.extend(await read_on_both(first, second, started.task_id, trouble))

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await trouble.wait()
            nodes.valkey.kill()
            with anyio.fail_after(5):
                while "broker" not in (await first.health()).problems:
                    await anyio.lowlevel.checkpoint()
            assert not (await first.health()).ready
            await anyio.to_thread.run_sync(nodes.valkey.start)
        check(seen)
        assert (await first.health()).ready


async def test_a_broker_that_lost_its_data_loses_no_persisted_events(nodes: Nodes) -> None:
    async with nodes.running(count) as (first, second):
        started = await start(first)
        trouble = anyio.Event()
        seen: list[list[Event]] = []
        events: list[Event] = []

        async def follow() -> None:
            seen.extend(await read_on_both(first, second, started.task_id, trouble))

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await trouble.wait()
            nodes.valkey.command("FLUSHALL")
            # A new subscriber receives the working node's snapshot, then the events that follow.
            late = await second.subscribe(started.task_id)
            events += [event async for batch in late.batches() for event in batch]
        check([seen[0], seen[0]])
        # Events that the other node had not received are only in the task: its clients get a snapshot instead.
        assert shown(seen[1]) == WHOLE
        assert events[-1] == seen[1][-1] == seen[0][-1]
        task = await second.get_task(started.task_id)
        assert task.artifacts[0].parts[0].text == WHOLE


async def test_a_node_that_cannot_reach_its_database_stops_in_time(
    nodes: Nodes, postgres: PostgresServer
) -> None:
    """Its lock and its sessions are terminated repeatedly, as in a network failure."""
    nodes.ttl = 1.0
    async with nodes.running(count) as (first, second):
        started = await start(first)
        broken: list[ClusterEngine] = [first]

        async def fail(*_: object) -> bool:
            raise StoreError("the network is cut")

        for engine in broken:
            engine._node.beat = fail  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        events = await read(second, started.task_id)
        assert events[-1].state is TaskState.FAILED
        assert [event.number for event in events] == list(range(1, len(events) + 1))
        assert await read(second, started.task_id) == events
        assert "store" in (await first.health()).problems


async def test_an_idle_node_that_was_cut_off_becomes_ready_again(
    nodes: Nodes,
) -> None:
    nodes.ttl = 1.0
    async with CuttingProxy(nodes.store) as proxy, nodes.node(count).running() as other:
        async with nodes.node(count, store=through(proxy, nodes.store)).running() as node:
            started = await start(node)
            proxy.refuse()
            # The other node takes over the task, and this one has nothing more to write.
            assert (await read(other, started.task_id))[-1].state is TaskState.FAILED
            assert "store" in (await node.health()).problems
            proxy.heal()
            with anyio.fail_after(10):
                while not (await node.health()).ready:
                    await anyio.lowlevel.checkpoint()


async def test_a_node_does_not_wait_for_connections_that_were_cut_silently(nodes: Nodes) -> None:
    """The network is restored, without the connections that existed before."""
    nodes.ttl = 2.0
    async with (
        CuttingProxy(nodes.store) as proxy,
        # A statement in progress waits for its timeout; shorter waits are the subject of this test.
        nodes.node(count, store=f"{through(proxy, nodes.store)}?command_timeout=5").running() as node,
    ):
        started = await start(node)
        proxy.forget()
        with anyio.fail_after(20):
            events = await read(node, started.task_id)
            assert events[-1].state in (TaskState.COMPLETED, TaskState.FAILED)
            while not (await node.health()).ready:
                await anyio.lowlevel.checkpoint()
            again = await start(node)
            events = await read(node, again.task_id)
        assert events[-1].state is TaskState.COMPLETED
        assert shown(events) == WHOLE


async def test_what_was_begun_under_a_name_that_was_lost_is_not_begun_under_the_next(nodes: Nodes) -> None:
    """The task was abandoned while its first write was in transit: no node would run it or take it over."""
    async with nodes.store_of_one() as (store, node), nodes.store_of_one() as (other, _):
        store.forget_own_tasks(["t"])
        await node.join(store.database)
        with pytest.raises(TasksNotWrittenError) as caught:
            await store.commit(
                [write("t", 1, state=TaskState.WORKING), write("u", 1, state=TaskState.WORKING)]
            )
        assert set(caught.value.tasks) == {"t"}
        assert isinstance(caught.value.tasks["t"], NotOwnedError)
        assert await other.load_task("t", "me") is None
        assert await numbers_of(other, "t") == []
        assert await numbers_of(other, "u") == [1]
        # A later write with the same task id begins the task.
        await store.commit([write("t", 1, state=TaskState.WORKING)])
        assert await numbers_of(other, "t") == [1]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(10):
        while not await holds():
            await anyio.lowlevel.checkpoint()


async def test_a_broker_that_may_lose_events_is_logged_at_startup_and_after_reconnecting(
    nodes: Nodes, valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if "appendfsync" in record.getMessage()]

    async def is_away() -> bool:
        return "broker" in (await node.health()).problems

    async def is_logged() -> bool:
        return bool(warnings())

    async def is_logged_again() -> bool:
        return len(warnings()) == 2

    valkey.command("CONFIG", "SET", "appendfsync", "everysec")
    try:
        async with CuttingProxy(valkey.url()) as proxy:
            node = nodes.node(count, events=f"redis://{urlsplit(proxy.url).netloc}/0")
            async with node.running():
                await until(is_logged)
                proxy.refuse()
                await until(is_away)
                proxy.heal()
                await until(is_logged_again)
    finally:
        valkey.command("CONFIG", "SET", "appendfsync", "always")
    assert "appendfsync is everysec" in warnings()[0]
    assert "set it to always" in warnings()[0]


async def test_a_full_broker_is_logged_once_and_streams_continue(
    nodes: Nodes, valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def is_refused() -> bool:
        return (await second.health()).problems.get("broker") == "it rejects writes"

    async def is_well() -> bool:
        return not (await second.health()).problems

    async with nodes.running(count) as (first, second):
        valkey.command("CONFIG", "SET", "maxmemory", "1")
        try:
            started = await start(second)
            await until(is_refused)
            events = [event async for batch in started.batches() for event in batch]
        finally:
            valkey.command("CONFIG", "SET", "maxmemory", "0")
        assert shown(events) == WHOLE
        assert [event.number for event in events] == list(range(1, len(events) + 1))
        await until(is_well)
        late = await first.subscribe(started.task_id, after=0)
        assert [event async for batch in late.batches() for event in batch] == events
    warnings = [record.getMessage() for record in caplog.records if "rejects events" in record.getMessage()]
    assert len(warnings) == 1
    assert "maxmemory" in warnings[0]

"""The claim of a context on several nodes: one task holds it, and others do not release it."""

from collections.abc import AsyncIterator

import anyio
import pytest

from support.nodes import Nodes
from support.postgres import PostgresServer
from support.valkey import ValkeyServer
from tailrace.server.cluster.engine import ClusterEngine
from tailrace.server.cluster.ownership import conversation_claim
from tailrace.server.runtime.active_task import Subscription
from tailrace.server.runtime.handlers import Turn
from tailrace.streaming import StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.models import Message, Part, Role
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI


@pytest.fixture
async def nodes(postgres: PostgresServer, valkey: ValkeyServer) -> Nodes:
    return await Nodes.empty(postgres, valkey)


async def start(engine: ClusterEngine, text: str, *, parallel: bool = False) -> Subscription:
    message = Message(message_id=text, role=Role.USER, parts=(Part(text=text),), context_id="c")
    metadata = {EXTENSION_URI: {"parallel": True}} if parallel else {}
    started = await engine.start(SendMessageRequest(message=message, metadata=metadata))
    assert isinstance(started, Subscription)
    await started.wait_for_start()
    return started


async def test_only_the_task_that_holds_a_context_releases_it(nodes: Nodes) -> None:
    begun, ends = anyio.Event(), anyio.Event()

    async def handle(turn: Turn) -> AsyncIterator[Update]:
        yield StatusUpdate(TaskState.WORKING)
        if turn.message.message_id == "one":
            begun.set()
            await ends.wait()

    async with nodes.running(handle) as (first, second):
        one = await start(first, "one")
        with anyio.fail_after(30):
            await begun.wait()

        async def is_free() -> bool:
            return await second._shared.ownership.claim("", conversation_claim("c"))  # pyright: ignore[reportPrivateUsage]

        waiting = await start(first, "two")
        await first.cancel_task(waiting.task_id)
        assert not await is_free()
        with anyio.fail_after(30):
            async for _ in (await start(first, "three", parallel=True)).batches():
                pass
        assert not await is_free()
        ends.set()
        with anyio.fail_after(30):
            async for _ in one.batches():
                pass
        assert await is_free()


async def test_the_turn_of_a_dead_node_precedes_turns_that_waited_for_it(
    nodes: Nodes, postgres: PostgresServer
) -> None:
    turns, begun, ends = list[str](), anyio.Event(), anyio.Event()
    histories: dict[str, list[str]] = {}

    async def handle(turn: Turn) -> AsyncIterator[Update]:
        text = turn.message.message_id
        turns.append(text)
        histories[text] = [entry.text for entry in turn.history.conversation]
        begun.set()
        yield StatusUpdate(TaskState.WORKING)
        await ends.wait()

    async with nodes.running(handle, restart_interrupted=True) as (first, second):
        tasks = [await start(first, "one")]
        with anyio.fail_after(30):
            await begun.wait()
        tasks += [await start(second, "two"), await start(second, "three")]
        begun = anyio.Event()
        name = first._node.id  # pyright: ignore[reportPrivateUsage]
        await postgres.execute(f"DELETE FROM nodes WHERE id = '{name}'", "nodes")
        with anyio.fail_after(60):
            await begun.wait()
            ends.set()
            for each in tasks:
                subscription = await second.subscribe(each.task_id, after=0)
                events = [event async for batch in subscription.batches() for event in batch]
                assert events[-1].state is TaskState.COMPLETED
    assert turns == ["one", "one", "two", "three"]
    assert histories == {"one": ["one"], "two": ["one", "two"], "three": ["one", "two", "three"]}

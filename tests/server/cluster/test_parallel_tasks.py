"""The claim of a context on several nodes: one task holds it, and others do not release it."""

from collections.abc import AsyncIterator

import anyio
import pytest

from support.nodes import Nodes
from support.postgres import PostgresServer
from support.valkey import ValkeyServer
from tailrace.server.cluster.engine import ClusterEngine
from tailrace.server.cluster.store import conversation_claim
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
            return await second._shared.claim("", conversation_claim("c"))  # pyright: ignore[reportPrivateUsage]

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

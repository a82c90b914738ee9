"""A node that ends while a turn waits for credentials."""

from collections.abc import AsyncIterator

import anyio
import pytest

from support.nodes import Nodes
from support.postgres import PostgresServer
from support.valkey import ValkeyServer
from tailrace.server.runtime.active_task import Subscription
from tailrace.server.runtime.handlers import Turn
from tailrace.streaming import Event, StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.models import Message, Part, Role
from tailrace.streaming.a2a.requests import SendMessageRequest

REQUEST = SendMessageRequest(message=Message(message_id="m", role=Role.USER, parts=(Part(text="hello"),)))


@pytest.fixture
async def nodes(postgres: PostgresServer, valkey: ValkeyServer) -> Nodes:
    return await Nodes.empty(postgres, valkey)


async def read_until(subscription: Subscription, state: TaskState) -> list[Event]:
    events: list[Event] = []
    with anyio.fail_after(30):
        while not events or events[-1].state is not state:
            batch = await subscription.read()
            assert batch
            events += batch
    return events


@pytest.mark.parametrize("restart", [False, True])
async def test_another_node_ends_or_restarts_the_turn(
    nodes: Nodes, postgres: PostgresServer, restart: bool
) -> None:
    turns: list[str] = []

    async def handle(turn: Turn) -> AsyncIterator[Update]:
        turns.append(turn.task_id)
        yield StatusUpdate(TaskState.WORKING)
        if len(turns) == 1:
            yield StatusUpdate(TaskState.AUTH_REQUIRED, continues=True)
            await anyio.sleep_forever()

    async with nodes.running(handle, restart_interrupted=restart) as (first, second):
        started = await first.start(REQUEST)
        assert isinstance(started, Subscription)
        await started.wait_for_start()
        follower = await second.subscribe(started.task_id, after=0)
        events = await read_until(follower, TaskState.AUTH_REQUIRED)
        name = first._node.id  # pyright: ignore[reportPrivateUsage]
        await postgres.execute(f"DELETE FROM nodes WHERE id = '{name}'", "nodes")
        events += await read_until(follower, TaskState.COMPLETED if restart else TaskState.FAILED)
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert len(turns) == 1 + restart

"""Webhooks of tasks that another node runs, or that a failed node ran: delivered once, by one node."""

from collections.abc import AsyncIterator

import anyio
import pytest
from aiohttp import web

from support import engines
from support.nodes import Nodes
from support.postgres import PostgresServer
from support.store_objects import write
from support.valkey import ValkeyServer
from support.webhook_receiver import Delivery, receiving
from tailrace.server.cluster.engine import ClusterEngine
from tailrace.server.runtime.handlers import Turn
from tailrace.server.store.store import PushConfig
from tailrace.streaming import StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.a2a.requests import TaskPushNotificationConfig


class Held:
    """A handler that works until it is released."""

    def __init__(self) -> None:
        self.go_on = anyio.Event()

    async def handle(self, turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.WORKING)
        await self.go_on.wait()


async def start(engine: ClusterEngine) -> str:
    started = await engines.start(engine)
    await engines.read_until(started, 2)
    return started.task_id


@pytest.fixture
async def nodes(postgres: PostgresServer, valkey: ValkeyServer) -> Nodes:
    return await Nodes.empty(postgres, valkey)


async def test_webhooks_are_managed_at_any_node_and_notified_by_the_node_that_runs_the_task(
    nodes: Nodes,
) -> None:
    held = Held()
    async with receiving() as kept, receiving() as deleted, nodes.running(held.handle) as (first, second):
        task_id = await start(first)
        await second.set_webhook(TaskPushNotificationConfig(task_id=task_id, url=kept.url), "", "1.0")
        gone = TaskPushNotificationConfig(task_id=task_id, id="gone", url=deleted.url)
        await second.set_webhook(gone, "", "1.0")
        await second.delete_webhook(task_id, "gone", "")
        held.go_on.set()
        deliveries = await kept.until_end()
    assert [each.state for each in deliveries] == ["TASK_STATE_COMPLETED"] * 2
    assert len({each.event for each in deliveries}) == 2
    assert not deleted.deliveries


async def test_notifications_of_a_dead_node_are_sent_by_another_node(
    nodes: Nodes, postgres: PostgresServer
) -> None:
    held = Held()
    refused = anyio.Event()

    async def refuse(delivery: Delivery) -> web.StreamResponse:
        refused.set()
        return web.Response(status=503)

    async with receiving() as receiver, nodes.running(held.handle) as (first, second):
        task_id = await start(first)
        receiver.answer, accept = refuse, receiver.answer
        await second.set_webhook(TaskPushNotificationConfig(task_id=task_id, url=receiver.url), "", "1.0")
        name = first._node.id  # pyright: ignore[reportPrivateUsage]
        await postgres.execute(f"DELETE FROM nodes WHERE id = '{name}'", "nodes")
        await refused.wait()  # its task has failed
        receiver.answer = accept
        deliveries = await receiver.until_end()
    assert {each.state for each in deliveries} == {"TASK_STATE_FAILED"}
    assert len({each.event for each in deliveries}) == 2


async def test_a_webhook_goes_with_its_task_to_the_node_that_takes_that_over(nodes: Nodes) -> None:
    """Any other node would not receive the task's events."""
    async with (
        nodes.store_of_one() as (dead, node),
        nodes.store_of_one() as (first, _),
        nodes.store_of_one() as (second, _),
    ):
        await dead.commit([write("t", 1, state=TaskState.WORKING)])
        config = TaskPushNotificationConfig(id="w", task_id="t", url="http://127.0.0.1:1/")
        await dead.put_push_config(PushConfig("me", "1.0", config, 1))
        await node.unregister(dead.database)
        assert await second.ownership.take_over_webhooks() == []
        tasks, [(webhook, _)] = await first.ownership.take_over()
        assert tasks == [("t", "me")]
        assert webhook.config == config
        assert await second.ownership.take_over() == ([], [])
        assert await second.ownership.take_over_webhooks() == []

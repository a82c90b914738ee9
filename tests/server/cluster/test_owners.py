"""Two callers in the store of several nodes: the node of a task, and claims, belong to one owner."""

import pytest
from sqlalchemy import insert

from support.nodes import Nodes
from support.postgres import PostgresServer
from support.store_objects import write
from support.valkey import ValkeyServer
from tailrace.server.store.records import NotOwnedError
from tailrace.server.store.schema import events as events_table
from tailrace.streaming import TaskState


@pytest.fixture
async def nodes(postgres: PostgresServer, valkey: ValkeyServer) -> Nodes:
    return await Nodes.empty(postgres, valkey)


async def test_a_task_is_located_for_its_owner(nodes: Nodes) -> None:
    async with nodes.store_of_one() as (first, node), nodes.store_of_one() as (second, _):
        await first.commit([write("t", 1, state=TaskState.WORKING, owner="alice")])
        location = await second.ownership.locate("t", "alice")
        assert location is not None
        assert (location.task_id, location.node, location.is_alive) == ("t", node.id, True)
        assert await second.ownership.locate("t", "bob") is None


async def test_a_claim_is_its_owners(nodes: Nodes) -> None:
    async with nodes.store_of_one() as (first, _), nodes.store_of_one() as (second, _):
        assert await first.ownership.claim("alice", "name")
        assert await first.ownership.claim("bob", "name")
        assert not await second.ownership.claim("alice", "name")
        await first.ownership.release("alice", "name")
        assert not await second.ownership.claim("bob", "name")
        assert await second.ownership.claim("alice", "name")


async def test_a_node_that_was_declared_dead_takes_over_no_task(
    nodes: Nodes, postgres: PostgresServer
) -> None:
    async with nodes.store_of_one() as (dead, node), nodes.store_of_one() as (other, _):
        await dead.commit([write("t", 1, state=TaskState.WORKING), write("u", 1, state=TaskState.WORKING)])
        await postgres.execute(f"DELETE FROM nodes WHERE id = '{node.id}'", "nodes")
        with pytest.raises(NotOwnedError):
            await dead.ownership.take_over()
        tasks, _ = await other.ownership.take_over()
        assert {task_id for task_id, _ in tasks} == {"t", "u"}
        assert await other.ownership.owned(["t", "u", "v"]) == {"t", "u"}
        assert not await dead.ownership.owned(["t", "u"])


async def test_the_claim_of_a_turn_that_is_to_be_taken_over_is_respected(
    nodes: Nodes, postgres: PostgresServer
) -> None:
    async with nodes.store_of_one() as (dead, node), nodes.store_of_one() as (other, _):
        await dead.commit([write("t", 1, state=TaskState.WORKING)])
        assert await dead.ownership.claim("", "conversation:c", "t")
        await postgres.execute(f"DELETE FROM nodes WHERE id = '{node.id}'", "nodes")
        for _ in range(2):  # before and after the other node has taken over the task
            assert not await other.ownership.claim("", "conversation:c", "u")
            await other.ownership.take_over()
        assert await other.ownership.claim("", "conversation:c", "t")
        await other.commit([write("t", 2, state=TaskState.COMPLETED)])
        assert await other.ownership.claim("", "conversation:c", "u")


async def test_events_that_only_the_database_has_are_read_within_a_bound_on_bytes(nodes: Nodes) -> None:
    async with nodes.store_of_one() as (store, _):
        await store.commit([write("t", 1, state=TaskState.WORKING)])
        rows = [{"task_id": "t", "number": number, "body": b"x" * 100_000} for number in range(2, 22)]
        await store.database.write(lambda connection: connection.execute(insert(events_table), rows))
        nodes.valkey.command("FLUSHALL")
        first = await store.load_events("t", 0, max_bytes=250_000)
        rest = await store.load_events("t", len(first), max_bytes=50_000)
        assert [event.number for event in first] == [1, 2, 3]
        assert [event.number for event in rest] == [4]  # one, however large

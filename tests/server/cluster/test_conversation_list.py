"""The list of conversations on several nodes."""

import anyio
import pytest

from support.agents import nothing
from support.engines import read, start
from support.nodes import Nodes
from support.postgres import PostgresServer
from support.valkey import ValkeyServer
from tailrace.server.runtime.engine import Engine
from tailrace.server.store.store import ConversationFilter, TaskFilter
from tailrace.streaming.a2a.errors import TaskNotFoundError


async def listed(engine: Engine) -> list[tuple[str, str]]:
    page = await engine.conversations.page("", ConversationFilter(), after=None, limit=100)
    return [(each.context_id, each.title) for each in page.conversations]


async def test_each_node_lists_renames_and_deletes_the_conversations_of_all(
    postgres: PostgresServer, valkey: ValkeyServer
) -> None:
    nodes = await Nodes.empty(postgres, valkey)
    async with nodes.running(nothing) as (one, two):
        for text, context_id, engine in (("a", "c1", one), ("b", "c2", two), ("more", "c1", two)):
            await read(await start(engine, text, context_id=context_id))
        for engine in (one, two):
            assert await listed(engine) == [("c1", "a"), ("c2", "b")]
        await two.edits.rename("c1", "Rivers", "")
        assert await listed(one) == [("c1", "Rivers"), ("c2", "b")]
        await two.delete_conversation("c1", "")
        assert await listed(one) == [("c2", "b")]
        with pytest.raises(TaskNotFoundError):
            await one.edits.rename("c1", "x", "")


async def test_messages_and_deletions_on_different_nodes_leave_no_other_list(
    postgres: PostgresServer, valkey: ValkeyServer
) -> None:
    """A deletion must not remove the conversation of a task that another node adds at the same time."""
    nodes = await Nodes.empty(postgres, valkey)
    async with nodes.running(nothing, parallel_tasks=True) as (one, two):

        async def send(engine: Engine, name: str) -> None:
            for at in range(5):
                task = await start(engine, f"{name}{at}", context_id=f"c{at % 2}")
                await read(task)
                await engine.delete_task(task.task_id, "")

        async def check() -> None:
            tasks = (await one.list_tasks(TaskFilter(), limit=100)).tasks
            found = dict(await listed(two))
            assert found.keys() == {task.context_id for task in tasks}
            for context_id, title in found.items():
                assert title in {
                    part.text
                    for task in tasks
                    if task.context_id == context_id
                    for part in task.history[0].parts
                }

        for _ in range(2):
            async with anyio.create_task_group() as group:
                for engine, name in ((one, "one"), (two, "two"), (one, "three"), (two, "four")):
                    group.start_soon(send, engine, name)
            await check()
            assert await listed(one) == []
            for engine, name in ((one, "c0"), (two, "c1")):
                await read(await start(engine, name, context_id=name))
            await check()
            await one.delete_conversation("c0", "")
            await one.delete_conversation("c1", "")

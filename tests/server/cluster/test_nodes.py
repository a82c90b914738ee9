"""Several nodes on one Valkey and one PostgreSQL: a task is the same on every node."""

import anyio
import pytest

from support import engines
from support.engines import Typist, read, read_until, text_of
from support.nodes import Nodes
from support.postgres import PostgresServer
from support.valkey import ValkeyServer
from tailrace.server.cluster import task_follower
from tailrace.server.cluster.engine import ClusterEngine
from tailrace.server.runtime.active_task import Subscription
from tailrace.server.runtime.engine import Engine
from tailrace.server.store.store import TaskFilter
from tailrace.streaming import Event, TaskState
from tailrace.streaming.a2a.errors import (
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)


async def start(engine: Engine, *message: str, **options: str) -> Subscription:
    started = await engines.start(engine, *message, **options)
    await started.wait_for_start()
    return started


@pytest.fixture
async def nodes(postgres: PostgresServer, valkey: ValkeyServer) -> Nodes:
    return await Nodes.empty(postgres, valkey)


async def test_events_are_the_same_on_every_node_and_followed_once(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[int] = []
    feed = task_follower.feed

    def count(live: object, events: list[Event]) -> bool:
        fed.extend(event.number for event in events)
        return feed(live, events)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(task_follower, "feed", count)
    typist = Typist()
    async with nodes.running(typist.handle, 3) as (first, *others):
        started = await start(first)
        own: list[Event] = []
        seen: dict[tuple[int, int], list[Event]] = {}
        readers = {
            (at, number): await engine.subscribe(started.task_id, after=0)
            for at, engine in enumerate(others)
            for number in range(10)
        }

        async def follow(key: tuple[int, int]) -> None:
            seen[key] = await read(readers[key])

        async with anyio.create_task_group() as group:
            for key in readers:
                group.start_soon(follow, key)
            typist.type(*map(str, range(100)), "")
            own += await read(started)
        assert [event.number for event in own] == list(range(1, len(own) + 1))
        assert all(events == own for events in seen.values())
        assert len(fed) <= 2 * 2 * len(own)  # not once for each of ten subscribers
        for engine in others:
            assert text_of(await engine.get_task(started.task_id)) == "".join(map(str, range(100)))
            assert await read(await engine.subscribe(started.task_id, after=7)) == own[7:]
            page = await engine.list_tasks(TaskFilter(), limit=10)
            assert [task.status.state for task in page.tasks] == [TaskState.COMPLETED]


async def test_a_task_of_another_node_is_listed_and_given_as_it_stands_at_this_moment(nodes: Nodes) -> None:
    typist = Typist()
    async with nodes.running(typist.handle) as (first, second):
        started = await start(first)
        for number, piece in enumerate("abc", 4):
            typist.type(piece)
            await read_until(await first.subscribe(started.task_id, after=0), number)
            assert text_of(await second.get_task(started.task_id)) == "abc"[: number - 3]
            [listed] = (await second.list_tasks(TaskFilter(), limit=10)).tasks
            assert text_of(listed) == "abc"[: number - 3]
        with pytest.raises(InvalidParamsError, match="no event 99"):
            await second.subscribe(started.task_id, after=99)
        for engine in (first, second):
            with pytest.raises(TaskNotFoundError):
                await engine.get_task(started.task_id, "somebody else")
            with pytest.raises(TaskNotFoundError):
                await engine.cancel_task(started.task_id, "somebody else")


async def test_a_task_without_subscribers_is_dropped(nodes: Nodes) -> None:
    typist = Typist()
    async with nodes.running(typist.handle) as (first, second):
        started = await start(first)
        reader = await second.subscribe(started.task_id)
        assert len(second._tasks.all_in_memory()) == 1  # pyright: ignore[reportPrivateUsage]
        del reader
        with anyio.fail_after(30):
            # Until the node has read the task's stream, if it does.
            while second._tasks.all_in_memory():  # pyright: ignore[reportPrivateUsage]  # noqa: ASYNC110
                await anyio.sleep(0.01)


async def test_canceling_reaches_the_node_that_works_on_the_task(nodes: Nodes) -> None:
    typist = Typist()
    async with nodes.running(typist.handle) as (first, second):
        started = await start(first)
        typist.type("half")
        await read_until(await second.subscribe(started.task_id, after=0), 4)
        task = await second.cancel_task(started.task_id)
        assert typist.left.is_set()
        assert task.status.state is TaskState.CANCELED
        assert text_of(task) == "half"
        for engine in (first, second):
            assert (await read(await engine.subscribe(started.task_id, after=0)))[-1].state is (
                TaskState.CANCELED
            )
            with pytest.raises(TaskNotCancelableError):
                await engine.cancel_task(started.task_id)


async def test_a_message_to_a_task_of_another_node_waits_for_its_turn_there(nodes: Nodes) -> None:
    typist = Typist()
    async with nodes.running(typist.handle) as (first, second):
        started = await start(first)
        await read_until(await first.subscribe(started.task_id, after=0), 3)
        further = await start(second, "more", started.task_id)
        typist.type("a", "", "b", "")
        events = await read(further)
        assert events[-1].state is TaskState.COMPLETED
        assert typist.turns == ["hello", "more"]
        history = (await second.get_task(started.task_id)).history
        assert [message.parts[0].text for message in history] == ["hello", "a", "more", "b"]
        with pytest.raises(UnsupportedOperationError, match="the task has ended"):
            await start(second, "late", started.task_id)


async def test_a_repeated_message_to_a_task_of_another_node_is_known_as_a_repeat(nodes: Nodes) -> None:
    typist = Typist()
    async with nodes.running(typist.handle) as (first, second):
        task_id = (await start(first)).task_id
        sent = [await start(engine, "more", task_id, send_key="k") for engine in (second, second, first)]
        assert sent[0].repeated_key is None
        assert [each.repeated_key and each.repeated_key.turn for each in sent[1:]] == [2, 2]
        typist.type("", "")
        await read(await second.subscribe(task_id, after=0))


async def test_of_two_nodes_that_take_a_message_of_one_name_at_once_one_makes_the_task(nodes: Nodes) -> None:
    typist = Typist()
    async with nodes.running(typist.handle, 3) as engines:
        ids: list[str] = []

        async def send(engine: Engine) -> None:
            ids.append((await start(engine, send_key="k")).task_id)

        async with anyio.create_task_group() as group:
            for engine in engines * 3:
                group.start_soon(send, engine)
        assert len(ids) == 9
        assert len(set(ids)) == 1
        typist.type("")
        await read(await engines[1].subscribe(ids[0], after=0))
        assert typist.turns == ["hello"]


async def test_turns_of_one_conversation_come_one_after_the_other_on_any_node(nodes: Nodes) -> None:
    typist = Typist()
    async with nodes.running(typist.handle) as (first, second):
        one = await start(first, "1", context_id="c")
        await read_until(await first.subscribe(one.task_id, after=0), 3)
        two = await start(second, "2", context_id="c")
        other = await start(second, "other", context_id="d")
        await read_until(await second.subscribe(other.task_id, after=0), 3)
        assert typist.turns == ["1", "other"]
        await second.cancel_task(other.task_id)
        typist.type("x", "")
        await read(one)
        typist.type("")
        await read(two)
        assert typist.turns == ["1", "other", "2"]
        messages = await second.conversation("c", "", 10)
        assert [message.parts[0].text for message in messages] == ["1", "x", "2"]


async def test_a_task_that_waits_is_gone_on_with_wherever_its_caller_comes(nodes: Nodes) -> None:
    typist = Typist()
    async with nodes.running(typist.handle) as (second, third):
        async with nodes.node(typist.handle).running() as first:
            started = await start(first)
            typist.type("a", "?")
            await read(started, until_interrupted=True)
            # Its node is running, and receives the message itself.
            typist.type("b", "?")
            await read(await start(second, "2", started.task_id), until_interrupted=True)
            follower = await third.subscribe(started.task_id)
        # Its node has stopped: one of two others continues the task.
        outcomes: list[Subscription | Exception] = []

        async def send(engine: Engine) -> None:
            try:
                outcomes.append(await start(engine, "3", started.task_id))
            except Exception as error:
                outcomes.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(send, second)
            group.start_soon(send, third)
        typist.type("c", "", "d", "")
        assert (await read(follower))[-1].state is TaskState.COMPLETED
        assert typist.turns[:2] == ["hello", "2"]
        assert typist.turns[2:] == ["3"] * sum(isinstance(each, Subscription) for each in outcomes)


async def given_up(nodes: Nodes, postgres: PostgresServer, engine: ClusterEngine) -> None:
    """Make the other nodes consider a node failed."""
    name = engine._node.id  # pyright: ignore[reportPrivateUsage]
    await postgres.execute(f"DELETE FROM nodes WHERE id = '{name}'", "nodes")


async def test_tasks_of_a_dead_node_end_failed_for_all_who_read_them(
    nodes: Nodes, postgres: PostgresServer
) -> None:
    typist = Typist()
    async with nodes.running(typist.handle, 3) as (first, second, third):
        started = await start(first)
        typist.type("half")
        readers = [await engine.subscribe(started.task_id, after=0) for engine in (first, second, third)]
        for engine in (first, second, third):
            await read_until(await engine.subscribe(started.task_id, after=0), 4)
        renamed = first._node.renamed  # pyright: ignore[reportPrivateUsage]
        await given_up(nodes, postgres, first)
        seen: list[list[Event]] = [[], [], []]

        async def follow(at: int) -> None:
            seen[at] = await read(readers[at])

        async with anyio.create_task_group() as group:
            for at in range(3):
                group.start_soon(follow, at)
        assert seen[0] == seen[1] == seen[2]
        assert [event.number for event in seen[0]] == list(range(1, len(seen[0]) + 1))
        assert seen[0][-1].state is TaskState.FAILED
        assert sum(event.state is TaskState.FAILED for event in seen[0]) == 1
        assert text_of(await third.get_task(started.task_id)) == "half"
        # The expired node continues under another id.
        with anyio.fail_after(30):
            await renamed.wait()
        typist.type("")
        assert (await read(await start(first)))[-1].state is TaskState.COMPLETED


async def test_a_node_that_is_given_up_can_write_nothing_more(
    nodes: Nodes, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    typist = Typist()
    async with nodes.running(typist.handle) as (first, second):
        started = await start(first)
        typist.type("half")
        await read_until(await second.subscribe(started.task_id, after=0), 4)
        # It detects the expiry only when it writes.
        monkeypatch.setattr(first._node, "beat", anyio.sleep_forever)  # pyright: ignore[reportPrivateUsage]
        reader = await first.subscribe(started.task_id, after=0)
        await given_up(nodes, postgres, first)
        ended = await read(await second.subscribe(started.task_id, after=0))
        typist.type("too late")
        assert await read(reader) == ended
        assert text_of(await second.get_task(started.task_id)) == "half"


async def test_tasks_of_a_dead_node_are_begun_again_where_that_is_wanted(
    nodes: Nodes, postgres: PostgresServer
) -> None:
    typist = Typist()
    async with nodes.running(typist.handle, restart_interrupted=True) as (first, second):
        started = await start(first)
        typist.type("half")
        reader = await second.subscribe(started.task_id, after=0)
        await read_until(await second.subscribe(started.task_id, after=0), 4)
        await given_up(nodes, postgres, first)
        with anyio.fail_after(30):
            await typist.again.wait()
        typist.type("whole", "")
        events = await read(reader)
        assert events[-1].state is TaskState.COMPLETED
        assert [event.number for event in events] == list(range(1, len(events) + 1))
        assert text_of(await first.get_task(started.task_id)) == "whole"

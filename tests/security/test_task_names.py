"""No caller detects the tasks of another one: by the time of a lookup, or by guessing the ids of named tasks."""

from hashlib import sha256
from pathlib import Path

import anyio
import pytest

from support.engines import Updates, engine_with, request, start
from support.store_objects import write
from tailrace.server.runtime.active_task import Subscription
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import Turn
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.server.store.store import Store, StoredTask
from tailrace.streaming import StatusUpdate, TaskState
from tailrace.streaming.a2a.errors import TaskNotFoundError
from tailrace.streaming.a2a.v0_1 import client_id

OLD, NEW = "the former secret of all", "the secret of all"


class CountingStore(Store):
    """Counts the reads of tasks."""

    reads = 0

    async def load_task(self, task_id: str, owner: str, *other_ids: str) -> StoredTask | None:
        self.reads += 1
        return await super().load_task(task_id, owner, *other_ids)


async def question(turn: Turn) -> Updates:
    yield StatusUpdate(TaskState.INPUT_REQUIRED)


def store_with(url: str, secret: str) -> Store:
    store = Store(url)
    store.use_keys(SecretKeys(secret))
    return store


async def named(engine: Engine, name: str, owner: str) -> Subscription:
    """Send a message to a task that its owner names; wait until the task waits for its owner."""
    task = await start(engine, task_id=name, owner=owner, version_of_chosen_ids="0.1")
    async for _ in task.batches(until_interrupted=True):
        pass
    return task


async def test_the_lookup_of_another_callers_running_task_reads_what_one_of_an_unknown_task_reads() -> None:
    begun, end = anyio.Event(), anyio.Event()

    async def wait(turn: Turn) -> Updates:
        yield StatusUpdate(TaskState.WORKING)
        begun.set()
        await end.wait()

    store = CountingStore("sqlite://")
    async with engine_with(wait, store) as engine:
        task = await start(engine, owner="alice")
        await begun.wait()
        reads: list[int] = []
        for task_id in (task.task_id, "an-unknown-task"):
            before = store.reads
            with pytest.raises(TaskNotFoundError):
                await engine.get_task(task_id, "bob")
            reads.append(store.reads - before)
        assert reads == [1, 1]
        assert (await engine.get_task(task.task_id, "alice")).id == task.task_id
        end.set()


async def test_the_id_of_a_named_task_depends_on_the_secret_the_owner_and_the_name() -> None:
    ids: set[str] = set()
    for secret in (OLD, NEW):
        async with engine_with(question, store_with("sqlite://", secret)) as engine:
            for owner, name in (("alice", "order-1"), ("bob", "order-1"), ("alice", "order-2")):
                task_id = (await named(engine, name, owner)).task_id
                assert client_id(task_id) == name
                assert sha256(owner.encode()).hexdigest()[:32] not in task_id
                assert (await engine.get_task(name, owner)).id == task_id
                ids.add(task_id)
    assert len(ids) == 6


async def test_names_of_a_former_secret_and_of_the_first_version_still_find_their_tasks(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    former = f"order-0~{sha256(b'alice').hexdigest()[:32]}"
    async with engine_with(question, (store := store_with(url, OLD))) as engine:
        task_id = (await named(engine, "order-1", "alice")).task_id
        await store.commit([write(former, 1, state=TaskState.COMPLETED, owner="alice")])
    async with engine_with(question, store_with(url, f"{NEW},{OLD}")) as engine:
        assert (await engine.get_task("order-1", "alice")).id == task_id
        assert (await engine.get_task("order-0", "alice")).id == former
        # The name continues the task, and begins no other.
        assert (await named(engine, "order-1", "alice")).task_id == task_id
        for name in ("order-0", "order-1"):
            with pytest.raises(TaskNotFoundError):
                await engine.get_task(name, "bob")
        with pytest.raises(TaskNotFoundError):
            await engine.start(request(task_id="order-1"), "bob")


async def test_a_name_is_found_after_a_restart_with_the_stored_secret(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    async with engine_with(question, url) as engine:
        task_id = (await named(engine, "order-1", "alice")).task_id
    async with engine_with(question, url) as engine:
        assert (await engine.get_task("order-1", "alice")).id == task_id

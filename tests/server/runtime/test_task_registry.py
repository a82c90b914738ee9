"""Tasks in memory, of this process and of others."""

import anyio
from anyio.lowlevel import checkpoint

from support.store_objects import open_store
from support.written_task import MESSAGE
from tailrace.server.runtime.active_task import ActiveTask
from tailrace.server.runtime.task_registry import TaskRegistry
from tailrace.server.store.store import StoredTask, TaskWrite
from tailrace.streaming.task.task_record import TaskRecord


class FirstRead:
    """Tasks of other processes: a task belongs to another one when it is read first, and to this one afterwards."""

    def __init__(self) -> None:
        self.reads: list[StoredTask] = []

    def is_remote(self, stored: StoredTask) -> bool:
        if not any(stored is each for each in self.reads):
            self.reads.append(stored)
        return stored is self.reads[0]

    def follow(self, active: ActiveTask) -> None:
        pass

    async def refresh(self, active: ActiveTask) -> None:
        pass

    async def fetch_snapshot(self, stored: StoredTask, owner: str, first: int) -> StoredTask:
        return stored


async def test_a_task_that_is_taken_over_while_it_is_read_belongs_to_this_process(sqlite_url: str) -> None:
    found: list[ActiveTask] = []
    record = TaskRecord.create(MESSAGE)
    remote = FirstRead()
    async with open_store(sqlite_url) as store:
        await store.commit([TaskWrite(record.id, "me", "c", [record.submitted()], record.snapshot())])
        registry = TaskRegistry(store, end_task=lambda _: None, remote_tasks=remote)

        async def find() -> None:
            found.append(await registry.find(record.id, "me"))

        async with anyio.create_task_group() as group:
            group.start_soon(find)
            await checkpoint()
            registry.end_following(record.id, "me")
    assert len(remote.reads) == 2
    assert not found[0].is_remote

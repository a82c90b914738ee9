"""A task that is written without an engine. The test controls the events, and how many of them are in memory."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from anyio.lowlevel import checkpoint

from support.store_objects import open_store
from tailrace.server.runtime.active_task import ActiveTask, Subscription
from tailrace.server.runtime.task_registry import TaskRegistry
from tailrace.server.store.store import Store, TaskWrite
from tailrace.streaming import ArtifactUpdate, Event, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.task.event_log import TaskLog
from tailrace.streaming.task.task_record import TaskRecord

MESSAGE = Message(message_id="m", role=Role.USER, parts=(Part(text="hello"),))
QUESTION = StatusUpdate(TaskState.INPUT_REQUIRED)
WORKING = StatusUpdate(TaskState.WORKING)
PIECE = TextDelta("text", "0123456789")


class Written:
    """A task whose events are persisted. The newest ones are also in memory.

    Attributes:
        events: All published events.
    """

    def __init__(self, store: Store, log: TaskLog) -> None:
        self.events: list[Event] = []
        self.record = TaskRecord.create(MESSAGE)
        self._store = store
        self._active = ActiveTask(self.record, "me", log)
        self._tasks = TaskRegistry(store, end_task=lambda live: None)
        self._tasks.add(self._active)

    async def begin(self) -> None:
        artifact = Artifact(artifact_id="text", parts=(Part(text=""),))
        await self._show([[self.record.submitted()]])
        await self.show(WORKING, ArtifactUpdate(artifact, last=False))

    async def show(self, *updates: Update) -> None:
        """Publish the events one by one."""
        await self._show([[self.record.apply(update)] for update in updates])

    async def show_together(self, *updates: Update) -> None:
        await self._show([[self.record.apply(update) for update in updates]])

    async def end(self) -> None:
        await self.show(*self.record.closing_updates(), StatusUpdate(TaskState.COMPLETED))
        self._active.log.end()

    async def _show(self, batches: list[list[Event]]) -> None:
        for batch in batches:
            snapshot = self.record.snapshot() if batch[-1].state is not None else None
            await self._store.commit([TaskWrite(self.record.id, "me", "c", batch, snapshot)])
        for batch in batches:
            self.events += batch
            self._active.log.publish(batch)
            await checkpoint()  # let subscribers read the event, or miss it

    def subscription(self, after: int = 0, first: Event | None = None) -> Subscription:
        return Subscription(self._active, after, first, tasks=self._tasks, max_lag=1_000_000)


@asynccontextmanager
async def written(log: TaskLog | None = None) -> AsyncGenerator[Written]:
    """A started task."""
    async with open_store("sqlite://") as store:
        task = Written(store, log or TaskLog())
        await task.begin()
        yield task

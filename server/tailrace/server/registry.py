"""The tasks that are alive in this process, and the way to any other: one object a task, one gate to all of them."""

from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

import anyio

from tailrace.server.live import LiveTask
from tailrace.server.store import EventsDropped, NotOurs, Store, StoredTask
from tailrace.streaming.a2a.errors import InternalError, InvalidParamsError, TaskNotFoundError
from tailrace.streaming.a2a.models import Task
from tailrace.streaming.a2a.v0_1 import scoped_id
from tailrace.streaming.log import Behind, TaskLog
from tailrace.streaming.task import Event, TaskRecord
from tailrace.wrappers import StoreError

MAX_BATCH_BYTES = 256 * 1024
"""Bytes of events from the store that a reader gets at once: what one that takes nothing keeps in memory."""

RETRY_DELAY = 1.0
"""Seconds after which the store is asked again for the tasks that were given up while it did not work."""

MAX_TASK_ID_LENGTH = 256
"""Characters of a task's id that a caller makes."""


class Elsewhere(Protocol):
    """What other processes do with tasks, where several share a store."""

    def has(self, stored: StoredTask) -> bool:
        """Whether another process writes this task, or may."""
        ...

    def follow(self, live: LiveTask) -> None:
        """Bring a task's record and log up to date from now on, for as long as somebody holds it."""
        ...

    async def refresh(self, live: LiveTask) -> None:
        """Bring a followed task up to everything that was shown to anybody by now."""
        ...

    async def stand_in(self, stored: StoredTask, owner: str, first: int) -> StoredTask:
        """The task as it stands, in the place of events before number ``first``, which nobody keeps."""
        ...


class TaskRegistry:
    """Finds tasks for their owners, wakes those that are only in the store, and reads their events.

    An unknown task and somebody else's give the same `TaskNotFoundError`.

    Args:
        store: Where the tasks are.
        lost: Called with a task whose turn ended with the store in trouble, and which the store still believes to be
            worked on: it is to be ended.
        elsewhere: What other processes do; None where there is this one alone.
    """

    def __init__(
        self, store: Store, lost: Callable[[LiveTask], None], elsewhere: Elsewhere | None = None
    ) -> None:
        self._elsewhere = elsewhere
        self._store = store
        self._lost = lost
        # Every task that somebody holds: its turn, a reader, a write that is not done. A second object for the same
        # task would give the same numbers again, so there is one for as long as anybody has it, and none after.
        self._live: WeakValueDictionary[str, LiveTask] = WeakValueDictionary()
        self._given_up: dict[
            str, str
        ] = {}  # tasks that the store believes to be worked on, with their owners
        self._some_given_up = anyio.Event()

    def add(self, live: LiveTask) -> None:
        """A new task."""
        self._live[live.record.id] = live

    def all(self) -> list[LiveTask]:
        """Every task that is alive."""
        return list(self._live.values())

    def give_up(self, live: LiveTask) -> None:
        """Forget a task whose events cannot be kept: whoever asks for it gets what the store has."""
        live.moved = isinstance(live.error, NotOurs)
        if self._live.get(live.record.id) is live:
            del self._live[live.record.id]
            if not live.moved:
                self._given_up[live.record.id] = live.owner
                self._some_given_up.set()

    def retire(self, task_id: str) -> None:
        """Have a task that was followed looked for again, by all who read it: somebody else writes it by now."""
        live = self._live.get(task_id)
        if live is not None and live.followed:
            del self._live[task_id]
            live.moved = True
            live.log.end()

    def held(self, task_id: str) -> LiveTask | None:
        """The task of that id as it is alive here, if it is. The caller checks the owner."""
        return self._live.get(task_id)

    async def end_given_up(self) -> None:
        """For ever: have the tasks that were given up ended, once the store works again, though nobody asks for them."""
        while True:
            await self._some_given_up.wait()
            await anyio.sleep(RETRY_DELAY)
            self._some_given_up = anyio.Event()
            for task_id, owner in list(self._given_up.items()):
                try:
                    await self.find(task_id, owner)
                except TaskNotFoundError:  # not even its beginning was kept
                    self._given_up.pop(task_id, None)
                except (StoreError, ValueError):
                    pass
            if self._given_up:
                self._some_given_up.set()

    async def find(self, task_id: str, owner: str) -> LiveTask:
        """The one gate: a task of that id that belongs to that owner, live or from the store.

        Args:
            task_id: The task's id, or the one that the owner made for it (`scoped_id`).
            owner: The caller.

        Raises:
            TaskNotFoundError: There is none.
            StoreError: The store cannot be read.
        """
        for each in dict.fromkeys((task_id, scoped_id(task_id, owner))):
            live = self._live.get(each)
            if live is not None and live.followed and self._elsewhere is not None and live.owner == owner:
                await self._elsewhere.refresh(live)
                live = self._live.get(each)
            if live is None:
                stored = await self._store.load_task(each, owner)
                # It may have come to life while the store was asked.
                live = self._live.get(each) or (stored and await self._revive(stored, owner))
            if live is not None and live.owner == owner:
                return live
        raise TaskNotFoundError(metadata={"taskId": task_id})

    async def is_free(self, task_id: str, owner: str) -> bool:
        """Whether a caller has no task of this id yet, and may begin one.

        Raises:
            InvalidParamsError: The id cannot be used: it is too long; or, where callers have no names and so no
                names of their own for tasks, it is that of somebody else's task.
        """
        if len(task_id) > MAX_TASK_ID_LENGTH:
            raise InvalidParamsError(f"the task's id is longer than {MAX_TASK_ID_LENGTH} characters")
        try:
            await self.find(task_id, owner)
        except TaskNotFoundError:
            named = scoped_id(task_id, owner)
            if named in self._live or await self._store.holds_task(named):
                raise InvalidParamsError("this id cannot be used for a task; choose another") from None
            return True
        return False

    async def as_it_stands(self, stored: Task, owner: str) -> Task:
        """A task of the store as it stands by now, everything in it durable."""
        live = self._live.get(stored.id)
        if live is not None and not live.followed:
            return await self.kept_snapshot(live)
        if self._elsewhere is None or stored.status.state.terminal:
            return stored
        return await self.kept_snapshot(await self.find(stored.id, owner))

    async def kept_snapshot(self, live: LiveTask, history_length: int | None = None) -> Task:
        """A task as it stands, once everything in it is durable."""
        task = live.record.snapshot(history_length)
        await self.until_kept(live, live.record.number)
        return task

    async def read(self, live: LiveTask, after: int, *, max_lag: int | None = None) -> list[Event]:
        """The next events of a task after a number: from memory, or from the store for whoever is far behind.

        Waits for one when there is none yet; empty when the task is over and everything was read. The task as it
        stands (`TaskRecord.overview`) for a reader that is further behind than ``max_lag`` events, and for one
        whose next event is no longer kept.

        Raises:
            StoreError: As `Subscription.batches`.
        """
        try:
            events = await live.log.read(after)
        except Behind:
            if max_lag is not None and live.log.number - after > max_lag:
                return await self._overview(live)
            try:
                events = await self._store.load_events(live.record.id, after, max_bytes=MAX_BATCH_BYTES)
            except EventsDropped:
                return await self._overview(live)
        if not events and live.error is not None and not live.moved:
            raise live.error
        return events

    async def _overview(self, live: LiveTask) -> list[Event]:
        events = live.record.overview()
        await self.until_kept(live, events[-1].number)
        return events

    async def until_kept(self, live: LiveTask, number: int) -> None:
        """Wait until the event of that number is durable.

        Raises:
            StoreError: It cannot be kept.
            InternalError: It will not be, because the server stops.
        """
        if not await live.log.reach(number):
            raise live.error or InternalError("the server is stopping")

    async def until_over(self, live: LiveTask) -> None:
        """Wait until the task is over, and that is durable; raises as `until_kept`."""
        while not live.record.state.terminal or live.log.number < live.record.number:
            await self.until_kept(live, live.log.number + 1)

    async def _revive(self, stored: StoredTask, owner: str) -> LiveTask:
        record = await self._replayed(stored, owner)
        live = self._live.get(record.id)
        if live is not None:
            return live
        live = LiveTask(record, owner, TaskLog(record.number))
        self._live[record.id] = live
        if record.state.terminal:
            live.log.end()
        elif self._elsewhere is not None and self._elsewhere.has(stored):
            live.followed = True
            self._elsewhere.follow(live)
            return live
        if record.id in self._given_up:
            del self._given_up[record.id]
            if not (record.state.terminal or record.state.interrupted):
                self._lost(live)
        return live

    async def _replayed(self, stored: StoredTask, owner: str) -> TaskRecord:
        record = TaskRecord(stored.task, stored.number)
        while True:
            try:
                events = await self._store.load_events(record.id, record.number)
            except EventsDropped as dropped:
                if self._elsewhere is None:
                    raise
                other = await self._elsewhere.stand_in(stored, owner, dropped.first)
                if other.number <= record.number:
                    raise
                if other.task is not stored.task:
                    record = TaskRecord(other.task)
                record.number = other.number
                stored = other
                continue
            if not events:
                return record
            for event in events:
                record.replay(event)

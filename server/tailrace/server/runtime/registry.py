"""The tasks of this process and the access to all others: one object a task, and one access check."""

from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

import anyio

from tailrace.server.runtime.active_task import LiveTask
from tailrace.server.store.store import EventsDropped, NotOurs, Store, StoredTask
from tailrace.streaming.a2a.errors import InternalError, InvalidParamsError, TaskNotFoundError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import Task
from tailrace.streaming.a2a.v0_1 import scoped_id
from tailrace.streaming.task.log import Behind, TaskLog
from tailrace.streaming.task.task import TaskRecord
from tailrace.wrappers import StoreError

MAX_BATCH_BYTES = 256 * 1024
"""Maximum bytes of events that a subscriber reads from the store at once, and keeps in memory if it stalls."""

RETRY_DELAY = 1.0
"""Seconds between two attempts to read the tasks that were dropped while the store did not work."""

MAX_TASK_ID_LENGTH = 256
"""Maximum characters of a task id that a caller chooses."""


class Elsewhere(Protocol):
    """Access to tasks of other processes, where several share a store."""

    def has(self, stored: StoredTask) -> bool:
        """Return whether another process writes this task, or may."""
        ...

    def follow(self, live: LiveTask) -> None:
        """Keep a task's record and log up to date from now on, while it has subscribers."""
        ...

    async def refresh(self, live: LiveTask) -> None:
        """Bring a followed task up to all published events."""
        ...

    async def stand_in(self, stored: StoredTask, owner: str, first: int) -> StoredTask:
        """Return a snapshot of the task, in place of events before number ``first``, which no longer exist."""
        ...


class TaskRegistry:
    """Finds tasks for their owners, loads those that are only in the store, and reads their events.

    Unknown tasks and those of other callers raise the same `TaskNotFoundError`.

    Args:
        store: The store.
        lost: Called with a task whose turn ended while the store failed, and which is running according to the store:
            it must be ended.
        elsewhere: Access to tasks of other processes; None for a single process.
    """

    def __init__(
        self, store: Store, lost: Callable[[LiveTask], None], elsewhere: Elsewhere | None = None
    ) -> None:
        self._elsewhere = elsewhere
        self._store = store
        self._lost = lost
        # Every task with a reference: its turn, a subscriber, a write that is not done. Two objects for the same task would
        # assign the same numbers, so there is one for as long as it is referenced, and none after.
        self._live: WeakValueDictionary[str, LiveTask] = WeakValueDictionary()
        self._given_up: dict[
            str, str
        ] = {}  # tasks that are running according to the store, with their owners
        self._some_given_up = anyio.Event()

    def add(self, live: LiveTask) -> None:
        """Add a new task."""
        self._live[live.record.id] = live

    def all(self) -> list[LiveTask]:
        """Return every task of this process."""
        return list(self._live.values())

    def give_up(self, live: LiveTask) -> None:
        """Drop a task whose events cannot be persisted: lookups return the state in the store."""
        live.moved = isinstance(live.error, NotOurs)
        if self._live.get(live.record.id) is live:
            del self._live[live.record.id]
            if not live.moved:
                self._given_up[live.record.id] = live.owner
                self._some_given_up.set()

    def remove(self, task_id: str) -> None:
        """Drop a task that has ended, and is deleted from the store."""
        live = self._live.pop(task_id, None)
        if live is not None:
            live.log.end()

    def retire(self, task_id: str) -> None:
        """Drop a followed task, so that all its subscribers look it up again: another process writes it now."""
        live = self._live.get(task_id)
        if live is not None and live.followed:
            del self._live[task_id]
            live.moved = True
            live.log.end()

    def held(self, task_id: str) -> LiveTask | None:
        """Return the task if it is in memory. The caller checks the owner."""
        return self._live.get(task_id)

    async def end_given_up(self) -> None:
        """End the dropped tasks, without end, as soon as the store works again."""
        while True:
            await self._some_given_up.wait()
            await anyio.sleep(RETRY_DELAY)
            self._some_given_up = anyio.Event()
            for task_id, owner in list(self._given_up.items()):
                try:
                    await self.find(task_id, owner)
                except TaskNotFoundError:  # its first event was not persisted
                    self._given_up.pop(task_id, None)
                except (StoreError, ValueError):
                    pass
            if self._given_up:
                self._some_given_up.set()

    async def find(self, task_id: str, owner: str) -> LiveTask:
        """Return a task of that owner, from memory or from the store: the one access check.

        Args:
            task_id: The task's id, or the one that the owner chose (`scoped_id`).
            owner: The caller.

        Raises:
            TaskNotFoundError: There is no such task.
            StoreError: The store cannot be read.
        """
        for each in dict.fromkeys((task_id, scoped_id(task_id, owner))):
            live = self._live.get(each)
            if live is not None and live.followed and self._elsewhere is not None and live.owner == owner:
                await self._elsewhere.refresh(live)
                live = self._live.get(each)
            if live is None:
                stored = await self._store.load_task(each, owner)
                # It may have been loaded while the store was read.
                live = self._live.get(each) or (stored and await self._revive(stored, owner))
            if live is not None and live.owner == owner:
                return live
        raise TaskNotFoundError(metadata={"taskId": task_id})

    async def is_free(self, task_id: str, owner: str) -> bool:
        """Return whether a caller has no task of this id yet, and may create one.

        Raises:
            InvalidParamsError: The id cannot be used: it is too long; or it is the id of another caller's task, where
                callers are not authenticated and ids are not scoped to them.
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
        """Return the current state of a stored task, with persisted content only."""
        live = self._live.get(stored.id)
        if live is not None and not live.followed:
            return await self.kept_snapshot(live)
        if self._elsewhere is None or stored.status.state.terminal:
            return stored
        return await self.kept_snapshot(await self.find(stored.id, owner))

    async def kept_snapshot(self, live: LiveTask, history_length: int | None = None) -> Task:
        """Return the current state of a task, after all of it is persisted."""
        task = live.record.snapshot(history_length)
        await self.until_kept(live, live.record.number)
        return task

    async def read(self, live: LiveTask, after: int, *, max_lag: int | None = None) -> list[Event]:
        """Return the next events of a task after a number: from memory, or from the store for a lagging subscriber.

        Waits for an event if there is none yet; empty when the task has ended and all events were read. A subscriber
        that lags more than ``max_lag`` events, or whose next event was dropped, gets a snapshot
        (`TaskRecord.overview`).

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
        """Wait until the event of that number is persisted.

        Raises:
            StoreError: It cannot be persisted.
            InternalError: It will not be, because the server is stopping.
        """
        if not await live.log.reach(number):
            raise live.error or InternalError("the server is stopping")

    async def until_over(self, live: LiveTask) -> None:
        """Wait until the task has ended, and its last event is persisted; raises as `until_kept`."""
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
            if not (record.state.terminal or record.awaits_caller):
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

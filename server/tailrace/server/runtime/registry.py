"""The tasks of this process and the access to all others: one object a task, and one access check."""

from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

import anyio

from tailrace.server.runtime.active_task import ActiveTask
from tailrace.server.runtime.task_names import id_of_named, possible_ids
from tailrace.server.store.store import EventsDropped, NotOurs, Store, StoredTask
from tailrace.streaming.a2a.errors import InternalError, InvalidParamsError, TaskNotFoundError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import Task
from tailrace.streaming.task.log import EventsEvicted, TaskLog
from tailrace.streaming.task.task import TaskRecord
from tailrace.wrappers import StoreError

MAX_BATCH_BYTES = 256 * 1024
"""Maximum bytes of events that a subscriber reads from the store at once, and keeps in memory if it stalls."""

RETRY_DELAY = 1.0
"""Seconds between two attempts to read the tasks that were dropped while the store did not work."""


class RemoteTasks(Protocol):
    """Access to tasks of other processes, where several share a store."""

    def has(self, stored: StoredTask) -> bool:
        """Return whether another process writes this task, or may."""
        ...

    def follow(self, active: ActiveTask) -> None:
        """Keep a task's record and log up to date from now on, while it has subscribers."""
        ...

    async def refresh(self, active: ActiveTask) -> None:
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
        remote_tasks: Access to tasks of other processes; None for a single process.
    """

    def __init__(
        self, store: Store, lost: Callable[[ActiveTask], None], remote_tasks: RemoteTasks | None = None
    ) -> None:
        self._remote_tasks = remote_tasks
        self._store = store
        self._lost = lost
        # Every task with a reference: its turn, a subscriber, a write that is not done. Two objects for the same task would
        # assign the same numbers, so there is one for as long as it is referenced, and none after. By owner and id: for
        # another caller's id, the store is read as for an unknown one, which takes the same time.
        self._active: WeakValueDictionary[tuple[str, str], ActiveTask] = WeakValueDictionary()
        self._failed: dict[str, str] = {}  # tasks that are running according to the store, with their owners
        self._has_failed = anyio.Event()

    def add(self, active: ActiveTask) -> None:
        """Add a new task."""
        self._active[active.owner, active.record.id] = active

    def all(self) -> list[ActiveTask]:
        """Return every task of this process."""
        return list(self._active.values())

    def drop(self, active: ActiveTask) -> None:
        """Drop a task whose events cannot be persisted: lookups return the state in the store."""
        active.moved = isinstance(active.error, NotOurs)
        key = active.owner, active.record.id
        if self._active.get(key) is active:
            del self._active[key]
            if not active.moved:
                self._failed[active.record.id] = active.owner
                self._has_failed.set()

    def remove(self, task_id: str, owner: str) -> None:
        """Drop a task that has ended, and is deleted from the store."""
        active = self._active.pop((owner, task_id), None)
        if active is not None:
            active.log.end()

    def retire(self, task_id: str, owner: str) -> None:
        """Drop a followed task, so that all its subscribers look it up again: another process writes it now."""
        active = self._active.get((owner, task_id))
        if active is not None and active.followed:
            del self._active[owner, task_id]
            active.moved = True
            active.log.end()

    def in_memory(self, task_id: str, owner: str) -> ActiveTask | None:
        """Return a task of that owner if it is in memory."""
        return self._active.get((owner, task_id))

    async def end_failed(self) -> None:
        """End the dropped tasks, without end, as soon as the store works again."""
        while True:
            await self._has_failed.wait()
            await anyio.sleep(RETRY_DELAY)
            self._has_failed = anyio.Event()
            for task_id, owner in list(self._failed.items()):
                try:
                    await self.find(task_id, owner)
                except TaskNotFoundError:  # its first event was not persisted
                    self._failed.pop(task_id, None)
                except (StoreError, ValueError):
                    pass
            if self._failed:
                self._has_failed.set()

    async def find(self, task_id: str, owner: str) -> ActiveTask:
        """Return a task of that owner, from memory or from the store: the one access check.

        Args:
            task_id: The task's id, or the owner's name for it.
            owner: The caller.

        Raises:
            TaskNotFoundError: There is no such task.
            StoreError: The store cannot be read.
        """
        for each in possible_ids(self._store.keys, task_id, owner):
            key = owner, each
            active = self._active.get(key)
            if active is not None and active.followed and self._remote_tasks is not None:
                await self._remote_tasks.refresh(active)
                active = self._active.get(key)
            if active is None:
                stored = await self._store.load_task(each, owner)
                # It may have been loaded while the store was read.
                active = self._active.get(key) or (stored and await self._revive(stored, owner))
            if active is not None:
                return active
        raise TaskNotFoundError(metadata={"taskId": task_id})

    async def is_free(self, task_id: str, owner: str) -> bool:
        """Return whether a caller has no task of this id yet, and may create one.

        Raises:
            InvalidParamsError: It is the id of another caller's task, where callers are not authenticated and ids are
                not scoped to them.
        """
        try:
            await self.find(task_id, owner)
        except TaskNotFoundError:
            if await self._store.holds_task(id_of_named(self._store.keys, task_id, owner)):
                raise InvalidParamsError("this id cannot be used for a task; choose another") from None
            return True
        return False

    async def current(self, stored: Task, owner: str) -> Task:
        """Return the current state of a stored task, with persisted content only."""
        active = self._active.get((owner, stored.id))
        if active is not None and not active.followed:
            return await self.kept_snapshot(active)
        if self._remote_tasks is None or stored.status.state.terminal:
            return stored
        return await self.kept_snapshot(await self.find(stored.id, owner))

    async def kept_snapshot(self, active: ActiveTask, history_length: int | None = None) -> Task:
        """Return the current state of a task, after all of it is persisted."""
        task = active.record.snapshot(history_length)
        await self.until_kept(active, active.record.number)
        return task

    async def read(self, active: ActiveTask, after: int, *, max_lag: int | None = None) -> list[Event]:
        """Return the next events of a task after a number: from memory, or from the store for a lagging subscriber.

        Waits for an event if there is none yet; empty when the task has ended and all events were read. A subscriber
        that lags more than ``max_lag`` events, or whose next event was dropped, gets a snapshot
        (`TaskRecord.overview`).

        Raises:
            StoreError: As `Subscription.batches`.
        """
        try:
            events = await active.log.read(after)
        except EventsEvicted:
            if max_lag is not None and active.log.number - after > max_lag:
                return await self._overview(active)
            try:
                events = await self._store.load_events(active.record.id, after, max_bytes=MAX_BATCH_BYTES)
            except EventsDropped:
                return await self._overview(active)
        if not events and active.error is not None and not active.moved:
            raise active.error
        return events

    async def _overview(self, active: ActiveTask) -> list[Event]:
        events = active.record.overview()
        await self.until_kept(active, events[-1].number)
        return events

    async def until_kept(self, active: ActiveTask, number: int) -> None:
        """Wait until the event of that number is persisted.

        Raises:
            StoreError: It cannot be persisted.
            InternalError: It will not be, because the server is stopping.
        """
        if not await active.log.reach(number):
            raise active.error or InternalError("the server is stopping")

    async def until_over(self, active: ActiveTask) -> None:
        """Wait until the task has ended, and its last event is persisted; raises as `until_kept`."""
        while not active.record.state.terminal or active.log.number < active.record.number:
            await self.until_kept(active, active.log.number + 1)

    async def _revive(self, stored: StoredTask, owner: str) -> ActiveTask:
        record = await self._replayed(stored, owner)
        active = self._active.get((owner, record.id))
        if active is not None:
            return active
        active = ActiveTask(record, owner, TaskLog(record.number))
        self._active[owner, record.id] = active
        if record.state.terminal:
            active.log.end()
        elif self._remote_tasks is not None and self._remote_tasks.has(stored):
            active.followed = True
            self._remote_tasks.follow(active)
            return active
        if record.id in self._failed:
            del self._failed[record.id]
            if not (record.state.terminal or record.awaits_caller):
                self._lost(active)
        return active

    async def _replayed(self, stored: StoredTask, owner: str) -> TaskRecord:
        record = TaskRecord(stored.task, stored.number)
        while True:
            try:
                events = await self._store.load_events(record.id, record.number)
            except EventsDropped as dropped:
                if self._remote_tasks is None:
                    raise
                other = await self._remote_tasks.stand_in(stored, owner, dropped.first)
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

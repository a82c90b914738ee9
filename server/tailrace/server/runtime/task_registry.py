"""The registry through which all code finds tasks, with the check that the caller owns the task.

The registry holds the tasks of this process, loads other tasks from the store, and reads their events. For each task, it holds at
most one `ActiveTask` object.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Protocol
from weakref import WeakValueDictionary

import anyio

from tailrace.server.runtime.active_task import ActiveTask
from tailrace.server.runtime.client_task_ids import id_of_named, possible_ids
from tailrace.server.runtime.identifier_bounds import MAX_TASK_ID_LENGTH
from tailrace.server.store.store import EventsDropped, NotOurs, Store, StoredTask
from tailrace.streaming.a2a.errors import InternalError, InvalidParamsError, TaskNotFoundError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import Task
from tailrace.streaming.task.event_log import EventsEvicted, TaskLog
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.wrappers import StoreError

MAX_BATCH_BYTES = 256 * 1024
"""Maximum bytes of events in one read from the store. A subscriber that stalls keeps this many bytes in memory."""

RETRY_DELAY = 1.0
"""Seconds between two attempts to read tasks that were dropped because the store failed."""


class RemoteTasks(Protocol):
    """Access to tasks of other processes that share the store."""

    def has(self, stored: StoredTask) -> bool:
        """Return whether another process writes this task, or may write it."""
        ...

    def follow(self, active: ActiveTask) -> None:
        """Update the record and the log of a task from now on, as long as the task has subscribers."""
        ...

    async def refresh(self, active: ActiveTask) -> None:
        """Read all published events of a followed task."""
        ...

    async def fetch_snapshot(self, stored: StoredTask, owner: str, first: int) -> StoredTask:
        """Return a snapshot of a task whose events before the number ``first`` no longer exist."""
        ...


class TaskRegistry:
    """Finds tasks for their owners, loads tasks from the store, and reads their events.

    Unknown tasks and tasks of other owners raise the same `TaskNotFoundError`.

    Args:
        store: The store.
        lost: Called with a task whose turn ended while the store failed, so that the store still has it as running. The
            function must end the task.
        remote_tasks: Access to tasks of other processes; None for a single process.
    """

    def __init__(
        self, store: Store, lost: Callable[[ActiveTask], None], remote_tasks: RemoteTasks | None = None
    ) -> None:
        self._remote_tasks = remote_tasks
        self._store = store
        self._lost = lost
        # All tasks that a turn, a subscriber or a pending write references. Weak references, because two objects of one task
        # would assign the same event numbers twice. The key includes the owner, so that a lookup with another caller's id
        # reads the store like a lookup with an unknown id and takes the same time.
        self._active: WeakValueDictionary[tuple[str, str], ActiveTask] = WeakValueDictionary()
        self._retirements = 0  # number of calls of `retire`
        self._failed: dict[str, str] = {}  # ids and owners of tasks that the store still has as running
        self._has_failed = anyio.Event()

    def add(self, active: ActiveTask) -> None:
        """Add a new task."""
        self._active[active.owner, active.record.id] = active

    def all(self) -> list[ActiveTask]:
        """Return every task of this process."""
        return list(self._active.values())

    def drop(self, active: ActiveTask) -> None:
        """Drop a task whose events cannot be persisted. Later lookups return the state in the store."""
        active.moved = isinstance(active.error, NotOurs)
        key = active.owner, active.record.id
        if self._active.get(key) is active:
            del self._active[key]
            if not active.moved:
                self._failed[active.record.id] = active.owner
                self._has_failed.set()

    def remove(self, task_id: str, owner: str) -> None:
        """Drop a task that has ended and was deleted from the store."""
        active = self._active.pop((owner, task_id), None)
        if active is not None:
            active.log.end()

    def retire(self, task_id: str, owner: str) -> None:
        """Drop a followed task whose writer has changed. Its subscribers then look it up again."""
        self._retirements += 1
        active = self._active.get((owner, task_id))
        if active is not None and active.followed:
            del self._active[owner, task_id]
            active.moved = True
            active.log.end()

    def in_order(self, task_ids: Collection[str], owner: str) -> list[str]:
        """Return those of an owner's tasks that are in memory, in the order in which they were added."""
        return [each for of_owner, each in self._active if of_owner == owner and each in task_ids]

    def in_memory(self, task_id: str, owner: str) -> ActiveTask | None:
        """Return a task of this owner if the task is in memory, otherwise None."""
        return self._active.get((owner, task_id))

    async def end_failed(self) -> None:
        """End dropped tasks as soon as the store works again. Runs until it is cancelled."""
        while True:
            await self._has_failed.wait()
            await anyio.sleep(RETRY_DELAY)
            self._has_failed = anyio.Event()
            for task_id, owner in list(self._failed.items()):
                try:
                    await self.find(task_id, owner)
                except TaskNotFoundError:  # the first event of the task was not persisted
                    self._failed.pop(task_id, None)
                except (StoreError, ValueError):
                    pass
            if self._failed:
                self._has_failed.set()

    async def find(self, task_id: str, owner: str) -> ActiveTask:
        """Return a task of this owner, from memory or from the store. All access checks are done here.

        Args:
            task_id: The id of the task, or the name that the owner chose for it.
            owner: The caller.

        Raises:
            TaskNotFoundError: The owner has no such task.
            StoreError: The store cannot be read.
        """
        # No task has such an id, and the hashes of several megabytes would block the event loop.
        if len(task_id) > MAX_TASK_ID_LENGTH:
            raise TaskNotFoundError(metadata={"taskId": task_id})
        ids = tuple(possible_ids(self._store.keys, task_id, owner))
        active = self._first_active(ids, owner)
        if active is not None and active.followed and self._remote_tasks is not None:
            await self._remote_tasks.refresh(active)
            active = self._first_active(ids, owner)
        while active is None:
            retirements = self._retirements
            stored = await self._store.load_task(ids[0], owner, *ids[1:])
            # It may have been loaded while the store was read.
            active = self._first_active(ids, owner)
            if active is None and stored is None:
                raise TaskNotFoundError(metadata={"taskId": task_id})
            if active is None and stored is not None:
                active = await self._revive(stored, owner, retirements)
        return active

    def _first_active(self, ids: Iterable[str], owner: str) -> ActiveTask | None:
        return next((active for each in ids if (active := self._active.get((owner, each))) is not None), None)

    async def is_free(self, task_id: str, owner: str) -> bool:
        """Return whether a caller may create a task with this id, because no task has it.

        Raises:
            InvalidParamsError: A task of another caller has this id. This is possible only without authentication, where
                ids are not scoped to callers.
        """
        try:
            await self.find(task_id, owner)
        except TaskNotFoundError:
            if await self._store.holds_task(id_of_named(self._store.keys, task_id, owner)):
                raise InvalidParamsError("this id cannot be used for a task; choose another") from None
            return True
        return False

    async def current(self, stored: Task, owner: str) -> Task:
        """Return the current state of a stored task, as far as it is persisted."""
        active = self._active.get((owner, stored.id))
        if active is not None and not active.followed:
            return await self.kept_snapshot(active)
        if self._remote_tasks is None or stored.status.state.terminal:
            return stored
        return await self.kept_snapshot(await self.find(stored.id, owner))

    async def kept_snapshot(self, active: ActiveTask, history_length: int | None = None) -> Task:
        """Wait until all events of a task are persisted, then return the task."""
        task = active.record.snapshot(history_length)
        await self.until_kept(active, active.record.number)
        return task

    async def read(self, active: ActiveTask, after: int, *, max_lag: int | None = None) -> list[Event]:
        """Return the events of a task after a number, from memory, or from the store for a lagging subscriber.

        Waits if there is no such event yet. Returns an empty list if the task has ended and has no more events. A subscriber
        that lags more than ``max_lag`` events, or whose next event no longer exists, gets a snapshot of the task
        (`TaskRecord.overview`).

        Raises:
            StoreError: Events could not be persisted or read.
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
        """Wait until the event with this number is persisted.

        Raises:
            StoreError: The event cannot be persisted.
            InternalError: The event will not be persisted, because the server is stopping.
        """
        if not await active.log.reach(number):
            raise active.error or InternalError("the server is stopping")

    async def until_over(self, active: ActiveTask) -> None:
        """Wait until the task has ended and its last event is persisted. Raises the same errors as `until_kept`."""
        while not active.record.state.terminal or active.log.number < active.record.number:
            await self.until_kept(active, active.log.number + 1)

    async def _revive(self, stored: StoredTask, owner: str, retirements: int) -> ActiveTask | None:
        """Add a task of the store; return None if its writer may have changed since the store was read.

        A task that this process has taken over meanwhile must not be added as a task of another one: it would run here, and its
        log would end when it is retired.
        """
        record = await self._replayed(stored, owner)
        active = self._active.get((owner, record.id))
        if active is not None:
            return active
        if (
            self._remote_tasks is not None
            and self._retirements != retirements
            and self._remote_tasks.has(stored)
        ):
            return None
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
                other = await self._remote_tasks.fetch_snapshot(stored, owner, dropped.first)
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

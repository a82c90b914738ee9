"""The registry of tasks. It finds tasks for their owners, in memory or in the store, and reads their events."""

from collections.abc import Callable, Collection, Iterable
from typing import Protocol
from weakref import WeakValueDictionary

import anyio

from tailrace.server.runtime.active_task import ActiveTask
from tailrace.server.runtime.client_task_ids import id_of_named, possible_ids
from tailrace.server.runtime.identifier_bounds import MAX_TASK_ID_LENGTH
from tailrace.server.store.store import EventsDropped, NotOwnedError, Store, StoredTask
from tailrace.streaming.a2a.errors import InternalError, InvalidParamsError, TaskNotFoundError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import Task
from tailrace.streaming.task.event_log import EventsEvicted, TaskLog
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.wrappers import StoreError

MAX_BATCH_BYTES = 256 * 1024
"""Maximum bytes of events in one read from the store. A stalled subscriber occupies at most this memory."""

RETRY_DELAY = 1.0
"""Seconds between two attempts to end tasks that failed with the store."""


class TasksOfOtherProcesses(Protocol):
    """Access to tasks of other processes with the same store."""

    def is_remote(self, stored: StoredTask) -> bool:
        """Return whether another process writes, or may write, this task."""
        ...

    def follow(self, active: ActiveTask) -> None:
        """Add the events of the other process to the record and the log of a task while it has subscribers."""
        ...

    async def refresh(self, active: ActiveTask) -> None:
        """Read all published events of a followed task."""
        ...

    async def fetch_snapshot(self, stored: StoredTask, owner: str, first: int) -> StoredTask:
        """Return a snapshot of a task that contains all events before the number ``first``. These events no longer exist."""
        ...


class TaskRegistry:
    """Finds tasks for their owners, loads tasks from the store, and reads their events.

    Args:
        end_task: Ends a task whose last status could not be stored. According to the store, its turn is still running.
        remote_tasks: Access to tasks of other processes; None for a single process.
    """

    def __init__(
        self,
        store: Store,
        end_task: Callable[[ActiveTask], None],
        remote_tasks: TasksOfOtherProcesses | None = None,
    ) -> None:
        self._remote_tasks = remote_tasks
        self._store = store
        self._end_task = end_task
        # All tasks that a turn, a subscriber or a pending write references. Two objects of one task would assign the same event
        # numbers twice. The key includes the owner: a lookup of another caller's task reads the store, and thus takes the same
        # time as a lookup of an unknown task.
        self._active: WeakValueDictionary[tuple[str, str], ActiveTask] = WeakValueDictionary()
        self._followings_ended = 0  # number of calls of `end_following`
        # Failed tasks that are still running according to the store: the owner by task id.
        self._failed: dict[str, str] = {}
        self._has_failed = anyio.Event()

    def add(self, active: ActiveTask) -> None:
        """Add a new task."""
        self._active[active.owner, active.record.id] = active

    def all_in_memory(self) -> list[ActiveTask]:
        """Return all tasks that are in memory."""
        return list(self._active.values())

    def drop_failed(self, active: ActiveTask) -> None:
        """Remove a task whose events could not be persisted. Later lookups load the state in the store."""
        active.is_taken_over = isinstance(active.error, NotOwnedError)
        key = active.owner, active.record.id
        if self._active.get(key) is active:
            del self._active[key]
            if not active.is_taken_over:
                self._failed[active.record.id] = active.owner
                self._has_failed.set()

    def remove_deleted(self, task_id: str, owner: str) -> None:
        """Remove an ended task that was deleted from the store."""
        active = self._active.pop((owner, task_id), None)
        if active is not None:
            active.log.end()

    def end_following(self, task_id: str, owner: str) -> None:
        """Remove a task because another process has started to write it. Its subscribers then look the task up again."""
        self._followings_ended += 1
        active = self._active.get((owner, task_id))
        if active is not None and active.is_remote:
            del self._active[owner, task_id]
            active.is_taken_over = True
            active.log.end()

    def ids_in_memory(self, task_ids: Collection[str], owner: str) -> list[str]:
        """Return the ids of this owner's tasks in memory among the given ids, in the order in which they were added."""
        return [each for of_owner, each in self._active if of_owner == owner and each in task_ids]

    def in_memory(self, task_id: str, owner: str) -> ActiveTask | None:
        """Return a task of this owner if it is in memory, otherwise None."""
        return self._active.get((owner, task_id))

    async def end_failed(self) -> None:
        """End failed tasks as soon as the store is available again. This method runs until it is cancelled."""
        while True:
            await self._has_failed.wait()
            await anyio.sleep(RETRY_DELAY)
            self._has_failed = anyio.Event()
            for task_id, owner in list(self._failed.items()):
                try:
                    await self.find(task_id, owner)
                except TaskNotFoundError:  # no event of the task was persisted
                    self._failed.pop(task_id, None)
                except (StoreError, ValueError):
                    pass
            if self._failed:
                self._has_failed.set()

    async def find(self, task_id: str, owner: str) -> ActiveTask:
        """Return a task of this owner from memory or from the store. All code checks the access to a task with this method.

        Args:
            task_id: The id of the task, or the name that the owner chose for it.
            owner: The caller.

        Raises:
            TaskNotFoundError: The owner has no such task. Tasks of other owners have the same error as unknown tasks.
            StoreError: The store cannot be read.
        """
        # Hashing an id of several megabytes would block the event loop.
        if len(task_id) > MAX_TASK_ID_LENGTH:
            raise TaskNotFoundError(metadata={"taskId": task_id})
        ids = tuple(possible_ids(self._store.keys, task_id, owner))
        active = self._first_active(ids, owner)
        if active is not None and active.is_remote and self._remote_tasks is not None:
            await self._remote_tasks.refresh(active)
            active = self._first_active(ids, owner)
        while active is None:
            followings_ended = self._followings_ended
            stored = await self._store.load_task(ids[0], owner, *ids[1:])
            # Another call may have loaded the task while this call read the store.
            active = self._first_active(ids, owner)
            if active is None and stored is None:
                raise TaskNotFoundError(metadata={"taskId": task_id})
            if active is None and stored is not None:
                active = await self._activate(stored, owner, followings_ended)
        return active

    def _first_active(self, ids: Iterable[str], owner: str) -> ActiveTask | None:
        return next((active for each in ids if (active := self._active.get((owner, each))) is not None), None)

    async def is_free(self, task_id: str, owner: str) -> bool:
        """Return whether the caller may create a task with this id.

        Raises:
            InvalidParamsError: A task of another caller has this id. This is only possible without authentication.
        """
        try:
            await self.find(task_id, owner)
        except TaskNotFoundError:
            if await self._store.task_id_exists(id_of_named(self._store.keys, task_id, owner)):
                raise InvalidParamsError("this id cannot be used for a task; choose another") from None
            return True
        return False

    async def current(self, stored: Task, owner: str) -> Task:
        """Return the current persisted state of a stored task."""
        active = self._active.get((owner, stored.id))
        if active is not None and not active.is_remote:
            return await self.persisted_snapshot(active)
        if self._remote_tasks is None or stored.status.state.terminal:
            return stored
        return await self.persisted_snapshot(await self.find(stored.id, owner))

    async def persisted_snapshot(self, active: ActiveTask, history_length: int | None = None) -> Task:
        """Wait until all events of a task are persisted, then return the task. See `wait_until_persisted` for the errors."""
        task = active.record.snapshot(history_length)
        await self.wait_until_persisted(active, active.record.number)
        return task

    async def read(self, active: ActiveTask, after: int, *, max_lag: int | None = None) -> list[Event]:
        """Return the events of a task after a number, from memory or from the store.

        Wait if there is no such event yet. Return an empty list if the log of the task has ended. If the subscriber lags by more
        than ``max_lag`` events, or if its next event no longer exists, return a snapshot of the task (`TaskRecord.overview`).

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
        if not events and active.error is not None and not active.is_taken_over:
            raise active.error
        return events

    async def _overview(self, active: ActiveTask) -> list[Event]:
        events = active.record.overview()
        await self.wait_until_persisted(active, events[-1].number)
        return events

    async def wait_until_persisted(self, active: ActiveTask, number: int) -> None:
        """Wait until the event with this number is persisted.

        Raises:
            StoreError: The event cannot be persisted.
            InternalError: The event will not be persisted, because the server is stopping.
        """
        if not await active.log.reach(number):
            raise active.error or InternalError("the server is stopping")

    async def wait_until_ended(self, active: ActiveTask) -> None:
        """Wait until the task has ended and its last event is persisted. Raise the errors of `wait_until_persisted`."""
        while not active.record.state.terminal or active.log.number < active.record.number:
            await self.wait_until_persisted(active, active.log.number + 1)

    async def _activate(self, stored: StoredTask, owner: str, followings_ended: int) -> ActiveTask | None:
        """Add a task from the store. Return None if the store must be read again.

        This is necessary if this process may have taken over the task since the store was read. Otherwise, the turn of the task
        would run here, but the next `end_following` would end the log of the task.
        """
        record = await self._replayed(stored, owner)
        active = self._active.get((owner, record.id))
        if active is not None:
            return active
        if (
            self._remote_tasks is not None
            and self._followings_ended != followings_ended
            and self._remote_tasks.is_remote(stored)
        ):
            return None
        active = ActiveTask(record, owner, TaskLog(record.number))
        self._active[owner, record.id] = active
        if record.state.terminal:
            active.log.end()
        elif self._remote_tasks is not None and self._remote_tasks.is_remote(stored):
            active.is_remote = True
            self._remote_tasks.follow(active)
            return active
        if record.id in self._failed:
            del self._failed[record.id]
            if not (record.state.terminal or record.awaits_caller):
                self._end_task(active)
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

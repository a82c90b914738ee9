"""The follower of tasks that other nodes run. All tasks and subscribers share one connection to the broker.

The events that the broker delivers are added to the record and the log of a followed task. The stream of a task is read after the
subscription to its channel, when an event is missing, and when the connection was lost. PostgreSQL is read for events that the
stream lacks, and at intervals, because a node that cannot reach the broker writes only to PostgreSQL.
"""

import logging
from collections.abc import Sequence
from typing import Any
from weakref import ref

import anyio
from anyio.abc import TaskGroup

from tailrace.server.cluster.broker import PROBE_INTERVAL
from tailrace.server.cluster.broker_connection import BrokerError
from tailrace.server.cluster.event_streams import LARGE_ENTRY, TaskStreams, stream_key
from tailrace.server.cluster.store import ClusterStore
from tailrace.server.runtime.active_task import ActiveTask
from tailrace.server.store.store import EventsDropped
from tailrace.streaming.a2a.event import Event
from tailrace.wrappers import StoreError

logger = logging.getLogger("tailrace.server")

ENTRIES = 200
"""Maximum number of entries of each stream in one read."""

STREAMS = 20
"""Maximum number of streams in one read."""

POLL_INTERVAL = 1.0
"""Seconds between two reads of PostgreSQL for events that streams lack."""

REPEATED_POLL_INTERVAL = 0.1
"""Seconds between two reads of PostgreSQL while events are missing."""


class _Followed:
    __slots__ = ("is_repairing", "key", "reference")

    def __init__(self, active: ActiveTask) -> None:
        self.reference = ref(active)
        self.key = stream_key(active.record.id)
        self.is_repairing = False

    def task(self) -> ActiveTask | None:
        """Return the task; None if it has no subscribers, has moved, or has ended."""
        active = self.reference()
        return None if active is None or active.is_taken_over or active.log.ended else active


class TaskFollower:
    """Adds the events of followed tasks to their logs.

    Args:
        store: The store, which has the events that a stream lacks.
        streams: The streams of the tasks.
        on_gap: Called with a task whose next event exists nowhere, so that its record must be loaded again.
    """

    def __init__(self, store: ClusterStore, streams: TaskStreams, on_gap: Any) -> None:
        self._store = store
        self._streams = streams
        self._broker = streams.broker
        self._on_gap = on_gap
        self._followed: dict[bytes, _Followed] = {}
        self._has_followed = anyio.Event()
        self._subscriber = self._broker.subscriber(self._begin, self._receive)
        # The streams to read, because this node may have missed published entries.
        self._unread: dict[bytes, _Followed] = {}
        self._some_unread = anyio.Event()
        self._group: TaskGroup | None = None

    def follow(self, active: ActiveTask) -> None:
        """Follow a task from the number of its last event, as long as it has subscribers."""
        followed = _Followed(active)
        self._followed[followed.key] = followed
        self._has_followed.set()
        self._subscriber.subscribe(followed.key)

    async def refresh(self, active: ActiveTask) -> None:
        """Add all persisted events to a task. If the broker is not available, some events may be missing."""
        try:
            await self._catch_up(active)
        except BrokerError:
            pass  # the missing events are added when the broker is available again

    async def run(self) -> None:
        """Follow the tasks until this method is cancelled."""
        async with anyio.create_task_group() as self._group:
            self._group.start_soon(self._listen)
            self._group.start_soon(self._read_streams)
            self._group.start_soon(self._poll_store)

    # --- published events ---------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            if not self._broker.is_usable:
                await anyio.sleep(PROBE_INTERVAL)
                continue
            try:
                await self._subscriber.run(self._followed.keys)
            except BrokerError as error:
                logger.warning("tasks of other nodes cannot be followed at present: %s", error)
                self._broker.fail(error)

    def _begin(self, key: bytes) -> None:
        followed = self._followed.get(key)
        if followed is not None:
            self._read_soon(followed)

    def _receive(self, key: bytes, message: bytes) -> None:
        followed = self._followed.get(key)
        active = followed and followed.task()
        if followed is None or active is None:
            self._drop(key)
            return
        # A large entry is read from the stream, because `TaskStreams` then verifies it in a thread.
        if len(message) > LARGE_ENTRY or not feed(active, self._streams.read_message(key, message)):
            self._read_soon(followed)
        elif active.log.ended:
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        self._followed.pop(key, None)
        self._subscriber.unsubscribe(key)

    # --- missed events ------------------------------------------------------------------------------------------

    def _read_soon(self, followed: _Followed) -> None:
        self._unread[followed.key] = followed
        self._some_unread.set()

    async def _read_streams(self) -> None:
        while True:
            await self._some_unread.wait()
            batch = [self._unread.pop(key) for key in list(self._unread)[:STREAMS]]
            if not batch:
                self._some_unread = anyio.Event()
                continue
            await self._read_batch(batch)

    async def _read_batch(self, batch: Sequence[_Followed]) -> None:
        # A separate function, so that no local variable keeps a task alive until the next read.
        in_memory = [(followed, active) for followed in batch if (active := followed.task()) is not None]
        positions = [(active.record.id, active.record.number) for _, active in in_memory]
        if not positions:
            return
        try:
            found = await self._streams.read_several(positions, ENTRIES)
        except BrokerError as error:  # the subscriber logs the error, and reads all streams later
            self._broker.fail(error)
            await anyio.sleep(PROBE_INTERVAL)
            for followed, _ in in_memory:
                self._read_soon(followed)
            return
        for (followed, active), page in zip(in_memory, found, strict=True):
            if not feed(active, page.events) or (page.is_full and not page.events):
                self._repair_soon(followed)
            elif page.is_full:
                self._read_soon(followed)

    # --- events that streams do not have ------------------------------------------------------------------------

    async def _poll_store(self) -> None:
        pause = POLL_INTERVAL
        while True:
            await self._has_followed.wait()
            await anyio.sleep(pause)
            pause = await self._poll()

    async def _poll(self) -> float:
        """Read the last event numbers of the followed tasks, and return the seconds until the next read."""
        # A separate function, for the same reason as `_read_batch`.
        for key, followed in list(self._followed.items()):
            if followed.task() is None:
                self._drop(key)
        if not self._followed:
            self._has_followed = anyio.Event()
            return POLL_INTERVAL
        tasks = {active.record.id: each for each in self._followed.values() if (active := each.reference())}
        try:
            known = await self._store.last_numbers(list(tasks))
        except StoreError as error:
            logger.warning("the states of followed tasks cannot be read: %s", error)
            return POLL_INTERVAL
        pause = POLL_INTERVAL
        for task_id, followed in tasks.items():
            active = followed.reference()
            if active is not None and task_id not in known:  # the task was deleted
                active.log.end()
            elif active is not None and known[task_id] > active.record.number:
                pause = REPEATED_POLL_INTERVAL
                self._repair_soon(followed)
        return pause

    def _repair_soon(self, followed: _Followed) -> None:
        if not followed.is_repairing and self._group is not None:
            followed.is_repairing = True
            self._group.start_soon(self._repair, followed)

    async def _repair(self, followed: _Followed) -> None:
        active = followed.reference()
        try:
            if active is not None:
                await self._catch_up(active)
        except BrokerError:
            pass  # the subscriber logs the error; the next poll tries again
        except StoreError as error:  # the next poll tries again
            logger.warning("the events of a followed task cannot be read: %s", error)
        finally:
            followed.is_repairing = False

    async def _catch_up(self, active: ActiveTask) -> None:
        while not (active.log.ended or active.is_taken_over):
            try:
                events = await self._store.load_events(active.record.id, active.record.number)
            except EventsDropped:
                self._on_gap(active)
                return
            if not events or not feed(active, events):
                return


def feed(active: ActiveTask, events: Sequence[Event]) -> bool:
    """Add received events to a followed task.

    Returns:
        False if there is a gap before or between the events. Events after the gap are not added.
    """
    record = active.record
    if active.is_taken_over or active.log.ended or not events or events[-1].number <= record.number:
        return True
    new = [event for event in events if event.number > record.number]
    is_complete = True
    for at, event in enumerate(new):
        if event.number != record.number + 1:
            new, is_complete = new[:at], False
            break
        record.replay(event)
    if new:
        active.log.publish(new)
        if record.state.terminal:
            active.log.end()
    return is_complete

"""Following tasks that other nodes work on: one connection to the broker for all of them, however many clients there are.

A task that is followed is a `LiveTask` like any other, whose record and log are fed with what is published of it. From the
moment on at which the broker publishes to this node, the stream is read once, for what was added before; and again when
a number is missing or the connection was lost. What a stream does not have is looked for in PostgreSQL: at once when it
lacks a number, and now and then in any case, as a node that cannot reach the broker writes there alone. A task that nobody
holds any more is dropped.
"""

import logging
from collections.abc import Sequence
from typing import Any
from weakref import ref

import anyio
from anyio.abc import TaskGroup

from tailrace.server.cluster.broker import PROBE_INTERVAL
from tailrace.server.cluster.link import BrokerError
from tailrace.server.cluster.store import ClusterStore
from tailrace.server.cluster.streams import TaskStreams, decode_message, stream_key
from tailrace.server.live import LiveTask
from tailrace.server.store import EventsDropped
from tailrace.streaming.task import Event
from tailrace.wrappers import StoreError

logger = logging.getLogger("tailrace.server")

ENTRIES = 200
"""Entries of each stream that are read at once."""

STREAMS = 20
"""Streams that are read at once."""

LOOK_INTERVAL = 1.0
"""Seconds between two looks at PostgreSQL for events that no stream has."""

LOOK_AGAIN = 0.1
"""The same while there are some."""


class _Followed:
    __slots__ = ("key", "live", "mending")

    def __init__(self, live: LiveTask) -> None:
        self.live = ref(live)
        self.key = stream_key(live.record.id)
        self.mending = False

    def held(self) -> LiveTask | None:
        """The task, while somebody holds it and it has not come to its end."""
        live = self.live()
        return None if live is None or live.moved or live.log.ended else live


class Following:
    """Feeds the tasks that are followed.

    Args:
        store: Where events are that a stream does not have.
        streams: The streams.
        gone: Called with the id of a task whose events are missing everywhere: it is to be looked for anew.
    """

    def __init__(self, store: ClusterStore, streams: TaskStreams, gone: Any) -> None:
        self._store = store
        self._streams = streams
        self._broker = streams.broker
        self._gone = gone
        self._followed: dict[bytes, _Followed] = {}
        self._some = anyio.Event()
        self._subscriber = self._broker.subscriber(self._begin, self._take)
        # The streams that have something which was not published to this node.
        self._unread: dict[bytes, _Followed] = {}
        self._some_unread = anyio.Event()
        self._group: TaskGroup | None = None

    def follow(self, live: LiveTask) -> None:
        """Feed a task from its present number on, for as long as somebody holds it."""
        followed = _Followed(live)
        self._followed[followed.key] = followed
        self._some.set()
        self._subscriber.subscribe(followed.key)

    async def refresh(self, live: LiveTask) -> None:
        """Bring a task up to everything that is kept of it by now, as far as that can be reached."""
        try:
            await self._catch_up(live)
        except BrokerError:
            pass  # what is known is given; it is brought up to date when the broker works again

    async def run(self) -> None:
        """For ever: feed what is followed."""
        async with anyio.create_task_group() as self._group:
            self._group.start_soon(self._listen)
            self._group.start_soon(self._read_streams)
            self._group.start_soon(self._look)

    # --- what is published --------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            if not self._broker.works:
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

    def _take(self, key: bytes, message: bytes) -> None:
        followed = self._followed.get(key)
        live = followed and followed.held()
        if followed is None or live is None:
            self._drop(key)
            return
        try:
            events = decode_message(message)
        except ValueError:
            logger.exception("the stream of task %s cannot be read", live.record.id)
            return
        if not feed(live, events):
            self._read_soon(followed)
        elif live.log.ended:
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        self._followed.pop(key, None)
        self._subscriber.unsubscribe(key)

    # --- what was not heard -------------------------------------------------------------------------------------

    def _read_soon(self, followed: _Followed) -> None:
        self._unread[followed.key] = followed
        self._some_unread.set()

    async def _read_streams(self) -> None:
        while True:
            await self._some_unread.wait()
            some = [self._unread.pop(key) for key in list(self._unread)[:STREAMS]]
            if not some:
                self._some_unread = anyio.Event()
                continue
            held = [(followed, live) for followed in some if (live := followed.held()) is not None]
            wanted = [(live.record.id, live.record.number) for _, live in held]
            if not wanted:
                continue
            try:
                found = await self._streams.read_several(wanted, ENTRIES)
            except (
                BrokerError
            ) as error:  # said by who listens; when the broker works again, all streams are read
                self._broker.fail(error)
                await anyio.sleep(PROBE_INTERVAL)
                for followed, _ in held:
                    self._read_soon(followed)
                continue
            except ValueError:
                logger.exception("streams of tasks cannot be read")
                continue
            for (followed, live), entries in zip(held, found, strict=True):
                if not feed(live, [event for entry in entries for event in entry.events]):
                    self._mend_soon(followed)
                elif len(entries) == ENTRIES:
                    self._read_soon(followed)

    # --- what streams do not have -------------------------------------------------------------------------------

    async def _look(self) -> None:
        pause = LOOK_INTERVAL
        while True:
            await self._some.wait()
            await anyio.sleep(pause)
            pause = LOOK_INTERVAL
            for key, followed in list(self._followed.items()):
                if followed.held() is None:
                    self._drop(key)
            if not self._followed:
                self._some = anyio.Event()
                continue
            tasks = {live.record.id: each for each in self._followed.values() if (live := each.live())}
            try:
                known = await self._store.last_numbers(list(tasks))
            except StoreError as error:
                logger.warning("followed tasks cannot be looked up: %s", error)
                continue
            for task_id, followed in tasks.items():
                live = followed.live()
                if live is not None and task_id not in known:  # it was deleted
                    live.log.end()
                elif live is not None and known[task_id] > live.record.number:
                    pause = LOOK_AGAIN
                    self._mend_soon(followed)

    def _mend_soon(self, followed: _Followed) -> None:
        if not followed.mending and self._group is not None:
            followed.mending = True
            self._group.start_soon(self._mend, followed)

    async def _mend(self, followed: _Followed) -> None:
        live = followed.live()
        try:
            if live is not None:
                await self._catch_up(live)
        except BrokerError:
            pass  # said once, by who reads the streams; the next look tries again
        except StoreError as error:  # as well
            logger.warning("a followed task is behind: %s", error)
        finally:
            followed.mending = False

    async def _catch_up(self, live: LiveTask) -> None:
        while not (live.log.ended or live.moved):
            try:
                events = await self._store.load_events(live.record.id, live.record.number)
            except EventsDropped:
                self._gone(live.record.id)
                return
            if not events or not feed(live, events):
                return


def feed(live: LiveTask, events: Sequence[Event]) -> bool:
    """Take in what was heard of a task that is followed; what is known already is passed over.

    Returns:
        False when an event before them is missing: nothing of what is behind it was taken.
    """
    record = live.record
    if live.moved or live.log.ended or not events or events[-1].number <= record.number:
        return True
    new = [event for event in events if event.number > record.number]
    whole = True
    for at, event in enumerate(new):
        if event.number != record.number + 1:
            new, whole = new[:at], False
            break
        record.replay(event)
    if new:
        live.log.publish(new)
        if record.state.terminal:
            live.log.end()
    return whole

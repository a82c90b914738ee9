"""Following tasks that other nodes work on: one reader of the broker for all of them, however many clients there are.

A task that is followed is a `LiveTask` like any other, whose record and log are fed from the task's stream. All streams
are read by one command that waits for any of them, from one entry on in each; reading takes nothing away, so breaking it
off loses nothing. What a stream does not have is looked for in PostgreSQL: at once when a number is missing, and now and
then in any case, as a node that cannot reach the broker writes there alone. A task that nobody holds any more is
dropped.
"""

import logging
from collections.abc import Sequence
from typing import Any
from uuid import uuid4
from weakref import ref

import anyio
from anyio.abc import TaskGroup

from tailrace.server.cluster.broker import PROBE_INTERVAL, BrokerError, pack_word
from tailrace.server.cluster.store import ClusterStore
from tailrace.server.cluster.streams import TaskStreams, decode_entry, stream_key
from tailrace.server.live import LiveTask
from tailrace.server.store import EventsDropped
from tailrace.streaming.task import Event
from tailrace.wrappers import StoreError

logger = logging.getLogger("tailrace.server")

WAIT_SECONDS = 1.0
"""Seconds that the broker is asked to wait for something new; after that it is asked again."""

ENTRIES = 200
"""Entries of each stream that are read at once."""

LOOK_INTERVAL = 1.0
"""Seconds between two looks at PostgreSQL for events that no stream has."""

LOOK_AGAIN = 0.1
"""The same while there are some."""


class _Followed:
    __slots__ = ("cursor", "key", "live", "mending", "word")

    def __init__(self, live: LiveTask) -> None:
        self.live = ref(live)
        self.key = stream_key(live.record.id)
        self.word = pack_word(self.key)
        self.cursor = b"%d-0" % live.record.number
        self.mending = False


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
        self._asking = False
        self._changed = anyio.Event()
        self._wake_key = f"tailrace:wake:{uuid4().hex}".encode()
        self._woken = b"0-0"
        self._group: TaskGroup | None = None

    def follow(self, live: LiveTask) -> None:
        """Feed a task from its present number on, for as long as somebody holds it."""
        followed = _Followed(live)
        self._followed[followed.key] = followed
        self._some.set()
        if self._asking:
            self._changed.set()

    async def refresh(self, live: LiveTask) -> None:
        """Bring a task up to everything that is kept of it by now, as far as that can be reached."""
        try:
            await self._catch_up(live)
        except BrokerError:
            pass  # what is known is given; it is brought up to date when the broker works again

    async def run(self) -> None:
        """For ever: feed what is followed."""
        async with anyio.create_task_group() as self._group:
            self._group.start_soon(self._read_streams)
            self._group.start_soon(self._wake)
            self._group.start_soon(self._look)

    # --- streams ------------------------------------------------------------------------------------------------

    async def _read_streams(self) -> None:
        link = self._broker.link()
        try:
            while True:
                await self._some.wait()
                packed = self._packed()
                if packed is None:
                    continue
                if not self._broker.works:
                    await anyio.sleep(PROBE_INTERVAL)
                    continue
                self._asking = True
                try:
                    found = await link.wait(packed, WAIT_SECONDS)
                except BrokerError as error:
                    logger.warning("tasks of other nodes cannot be followed at present: %s", error)
                    self._broker.fail()
                    continue
                finally:
                    self._asking = False
                for key, entries in found or ():
                    self._take(key, entries)
        finally:
            with anyio.CancelScope(shield=True):
                await link.close()

    def _packed(self) -> list[bytes] | None:
        """The command that waits for all streams; None when there is none."""
        for key, followed in list(self._followed.items()):
            live = followed.live()
            if live is None or live.moved or live.log.ended:
                del self._followed[key]
        if not self._followed:
            self._some = anyio.Event()
            return None
        wait = round(WAIT_SECONDS * 1000)
        words = [b"XREAD", b"BLOCK", wait, b"COUNT", ENTRIES, b"STREAMS", self._wake_key]
        pieces = [b"*%d\r\n" % (len(words) + 2 * len(self._followed) + 1), *map(pack_word, words)]
        pieces += [followed.word for followed in self._followed.values()]
        pieces.append(pack_word(self._woken))
        pieces += [pack_word(followed.cursor) for followed in self._followed.values()]
        return [b"".join(pieces)]

    def _take(self, key: bytes, entries: Sequence[Any]) -> None:
        if key == self._wake_key:
            self._woken = entries[-1][0]
            return
        followed = self._followed.get(key)
        live = followed and followed.live()
        if followed is None or live is None:
            return
        followed.cursor = entries[-1][0]
        try:
            events = [event for entry in entries for event in decode_entry(entry).events]
        except ValueError:
            logger.exception("the stream of task %s cannot be read", live.record.id)
            return
        if not feed(live, events):
            self._mend_soon(followed)

    async def _wake(self) -> None:
        """Have the command come back that waits for streams, when there is one more to wait for."""
        link = self._broker.link()
        try:
            while True:
                await self._changed.wait()
                self._changed = anyio.Event()
                wake = (b"XADD", self._wake_key, b"MAXLEN", 1, b"*", b"w", b"")
                try:
                    await link.run(wake, (b"EXPIRE", self._wake_key, 24 * 3600))
                except BrokerError:
                    self._broker.fail()
        finally:
            with anyio.CancelScope(shield=True):
                await link.close()

    # --- what streams do not have -------------------------------------------------------------------------------

    async def _look(self) -> None:
        pause = LOOK_INTERVAL
        while True:
            await self._some.wait()
            await anyio.sleep(pause)
            pause = LOOK_INTERVAL
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

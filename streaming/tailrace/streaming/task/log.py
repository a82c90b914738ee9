"""The numbered log of one task in memory, and cursors that wait for its events.

Writing never waits for a subscriber. A subscriber is a cursor: it reads the events after its number, as often as it likes, and is
woken when there are more. Published events are persisted already; the log has the newest ones only, and raises `EventsEvicted` for
older ones, which are in the store.
"""

import asyncio
from collections.abc import Sequence

from tailrace.streaming.a2a.event import Event


class EventsEvicted(LookupError):
    """The requested events were evicted from memory; they are in the store.

    Attributes:
        first: The number of the oldest event in memory.
    """

    def __init__(self, first: int) -> None:
        super().__init__(f"events before {first} are no longer in memory")
        self.first = first


class TaskLog:
    """The published events of one task: append-only, numbered without gaps, bounded in memory.

    Args:
        number: The number of the last event that was published before this log began.
        max_bytes: Bytes of bodies that stay in memory; older events are dropped when there is twice as much.
        unread_bytes: Bytes that stay in memory for subscribers that have yet to begin, or were woken and have not
            continued.

    Attributes:
        number: The number of the last published event.
        ended: No event will follow.
        events: The newest events, in memory.
        first: The number of the first of them, or of the next event without any.
        waiting: A future for each cursor that waits for an event.
        woken: The number of cursors that were woken and have not continued.
    """

    __slots__ = (
        "_bytes",
        "_fresh",
        "_max_bytes",
        "_unread_bytes",
        "ended",
        "events",
        "first",
        "number",
        "waiting",
        "woken",
    )

    def __init__(self, number: int = 0, *, max_bytes: int = 8 * 1024, unread_bytes: int = 512 * 1024) -> None:
        self.number = number
        self.ended = False
        self.first = number + 1
        self.events: list[Event] = []
        self._fresh = number  # subscribers that waited last have the events up to this number
        self._bytes = 0
        self._max_bytes = max_bytes
        self._unread_bytes = unread_bytes
        self.waiting: list[asyncio.Future[None]] = []
        self.woken = 0

    def publish(self, events: Sequence[Event]) -> None:
        """Publish persisted events, the next in number; do nothing after the end of the log.

        Raises:
            ValueError: A number is missing or repeated; nothing was published.
        """
        if self.ended:
            return
        number = before = self.number
        size = 0
        for event in events:
            number += 1
            if event.number != number:
                raise ValueError(f"event {event.number} cannot follow event {number - 1}")
            size += len(event.body)
        if self.waiting and not self.woken:
            self._fresh = before
        self.number = number
        self._bytes += size
        self.events += events
        if self._bytes > 2 * self._max_bytes:
            self._drop_oldest()
        waiting, self.waiting = self.waiting, []
        for change in waiting:
            if not change.done():  # else the subscriber was cancelled
                change.set_result(None)
                self.woken += 1

    def end(self) -> None:
        """End the log: no event follows."""
        self.publish(())
        self.ended = True

    def read_nowait(self, after: int) -> list[Event]:
        """Return the events after number ``after``, oldest first; empty if there is none yet.

        Raises:
            EventsEvicted: The next event is no longer in memory.
        """
        if after >= self.number:
            return []
        if after + 1 < self.first:
            raise EventsEvicted(self.first)
        return self.events[after + 1 - self.first :]

    async def read(self, after: int) -> list[Event]:
        """Read once, as `LogCursor.read` does.

        Raises:
            EventsEvicted: As `read_nowait`.
        """
        return await LogCursor(self, after).read()

    async def reach(self, number: int) -> bool:
        """Wait until the event of that number is published; return False if the log has ended before it."""
        while self.number < number and not self.ended:
            try:
                await self.read(self.number)
            except EventsEvicted:  # it was published and evicted
                continue
        return self.number >= number

    def _drop_oldest(self) -> None:
        """Drop the oldest events beyond the bound; in steps of many, so that an event costs O(1)."""
        most = len(self.events) - 1
        if self._bytes < self._unread_bytes:
            most = min(most, self._fresh + 1 - self.first)
        count = 0
        while self._bytes > self._max_bytes and count < most:
            self._bytes -= len(self.events[count].body)
            count += 1
        del self.events[:count]
        self.first += count


class LogCursor:
    """A cursor into a log. Cancelling a read affects neither the log nor other cursors.

    Args:
        log: The log.
        after: The number of the last known event.
        first: An event to return before all others; None for none.

    Attributes:
        after: The number of the last returned or known event.
        first: The event that is still to be returned before all others.
        has_caught_up: The cursor had every published event at some time.
    """

    __slots__ = ("_log", "_loop", "after", "first", "has_caught_up")

    def __init__(self, log: TaskLog, after: int, first: Event | None = None) -> None:
        self._log = log
        self._loop: asyncio.AbstractEventLoop | None = (
            None  # to ask for it is a system call before CPython 3.12
        )
        self.after = after
        self.first = first
        self.has_caught_up = after >= log.number

    async def read(self) -> list[Event]:
        """Return all events that follow; wait for one; empty when the log has ended.

        Raises:
            EventsEvicted: As `TaskLog.read_nowait`.
        """
        if self.first is not None:
            first, self.first = self.first, None
            return [first]
        log = self._log
        while self.after >= log.number:
            if log.ended:
                return await self._read_missing()
            # A bare future: an event object for several waiters costs more than the rest of a read.
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            change: asyncio.Future[None] = self._loop.create_future()
            log.waiting.append(change)
            try:
                await change
            finally:
                if change.done() and not change.cancelled():
                    log.woken -= 1
                elif change in log.waiting:
                    log.waiting.remove(change)
        at = self.after + 1 - log.first
        if at < 0:
            return await self._read_missing()
        self.after = log.number
        self.has_caught_up = True
        return log.events[at:]

    async def _read_missing(self) -> list[Event]:
        """Return events that the log no longer has; empty at its end."""
        return self._log.read_nowait(self.after)

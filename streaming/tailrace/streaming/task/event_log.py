"""The log of a task's events in memory, and cursors with which subscribers read the log.

The server has one `TaskLog` for each active task, and publishes events after they are persisted. Publishing never waits for a
subscriber. Each subscriber has a cursor, which reads the events after its position, and waits if there are none. Only the newest
events remain in memory. Reading an older event raises `EventsEvicted`; such events are in the store.
"""

import asyncio
from collections.abc import Sequence

from tailrace.streaming.a2a.event import Event


class EventsEvicted(LookupError):
    """The requested events are no longer in memory, but in the store.

    Attributes:
        first: The number of the oldest event in memory.
    """

    def __init__(self, first: int) -> None:
        super().__init__(f"events before {first} are no longer in memory")
        self.first = first


class TaskLog:
    """The published events of one task, of which the newest are in memory.

    Args:
        number: The number of the last event that was published before this log was created.
        max_bytes: Limit in bytes for the events in memory. When they exceed twice this size, the oldest events are dropped.
        unread_bytes: Limit in bytes up to which unread events remain in memory for subscribers that were woken.

    Attributes:
        number: The number of the last published event.
        ended: True if no further events follow.
        first: The number of the oldest event in memory; the number of the next event if there is none.
        waiting: A future for each cursor that waits for an event.
        woken: The number of cursors that were woken and have not read yet.
    """

    __slots__ = (
        "_bytes",
        "_last_read",
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
        self._last_read = number  # last event that the most recently woken subscribers had read
        self._bytes = 0
        self._max_bytes = max_bytes
        self._unread_bytes = unread_bytes
        self.waiting: list[asyncio.Future[None]] = []
        self.woken = 0

    def publish(self, events: Sequence[Event]) -> None:
        """Publish persisted events. After the end of the log, do nothing.

        Raises:
            ValueError: The numbers of the events do not follow `number`. In this case, no event is published.
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
            self._last_read = before
        self.number = number
        self._bytes += size
        self.events += events
        if self._bytes > 2 * self._max_bytes:
            self._drop_oldest()
        waiting, self.waiting = self.waiting, []
        for change in waiting:
            if not change.done():  # otherwise the subscriber was cancelled
                change.set_result(None)
                self.woken += 1

    def end(self) -> None:
        """End the log."""
        self.publish(())
        self.ended = True

    def read_nowait(self, after: int) -> list[Event]:
        """Return the events after the number ``after``; an empty list if there are none.

        Raises:
            EventsEvicted: The next event is no longer in memory.
        """
        if after >= self.number:
            return []
        if after + 1 < self.first:
            raise EventsEvicted(self.first)
        return self.events[after + 1 - self.first :]

    async def read(self, after: int) -> list[Event]:
        """Wait for events after a number; see `LogCursor.read`.

        Raises:
            EventsEvicted: The next event is no longer in memory.
        """
        return await LogCursor(self, after).read()

    async def reach(self, number: int) -> bool:
        """Wait until the event ``number`` is published. Return False if the log ends before that."""
        while self.number < number and not self.ended:
            try:
                await self.read(self.number)
            except EventsEvicted:  # the event was published and evicted
                continue
        return self.number >= number

    def _drop_oldest(self) -> None:
        """Drop the oldest events until the size is within the limit, but not the newest event.

        Events that woken subscribers have not read also remain, up to `unread_bytes`. One call drops many events, so that the
        average cost of an event is constant.
        """
        max_count = len(self.events) - 1
        if self._bytes < self._unread_bytes:
            max_count = min(max_count, self._last_read + 1 - self.first)
        count = 0
        while self._bytes > self._max_bytes and count < max_count:
            self._bytes -= len(self.events[count].body)
            count += 1
        del self.events[:count]
        self.first += count


class LogCursor:
    """The position of one subscriber in a log. Cancelling a read affects neither the log nor other cursors.

    Args:
        log: The log.
        after: The number of the last known event.
        first: An event that is returned before all other events, or None.

    Attributes:
        after: The number of the last returned or known event.
        first: The event that is returned before all other events; None after it was returned.
        has_caught_up: True if the cursor has once read all published events.
    """

    __slots__ = ("_log", "_loop", "after", "first", "has_caught_up")

    def __init__(self, log: TaskLog, after: int, first: Event | None = None) -> None:
        self._log = log
        self._loop: asyncio.AbstractEventLoop | None = (
            None  # set on first use: before CPython 3.12, getting the running loop is a system call
        )
        self.after = after
        self.first = first
        self.has_caught_up = after >= log.number

    async def read(self) -> list[Event]:
        """Wait for events after the position, and return all of them; an empty list if the log has ended.

        Raises:
            EventsEvicted: The next event is no longer in memory.
        """
        if self.first is not None:
            first, self.first = self.first, None
            return [first]
        log = self._log
        while self.after >= log.number:
            if log.ended:
                return await self._read_missing()
            # A future for each waiter takes less time than an event object for all waiters.
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
        """Continue `read` if the log has ended, or if the next event is no longer in memory.

        A subclass may read from the store.
        """
        return self._log.read_nowait(self.after)

"""The numbered log of one task as its readers see it, and how they wait for more.

Writing never waits for a reader. A reader is nothing but a number: it asks for what comes after it, from as many
places and as often as it likes, and is woken when there is more. What is published here is durable already; the log
holds the newest events only and says so (`Behind`) to a reader that wants older ones, which are in the store.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import copy_context
from functools import partial

from tailrace.streaming.task import Event


class Behind(LookupError):
    """Events that a reader asks for are no longer held in memory; they are in the store.

    Attributes:
        first: The number of the oldest event that the log still holds.
    """

    def __init__(self, first: int) -> None:
        super().__init__(f"events before {first} are no longer in memory")
        self.first = first


class TaskLog:
    """The published events of one task: append-only, numbered without gaps, bounded in memory.

    Args:
        number: The number of the last event that was published before this log began.
        max_bytes: How many bytes of bodies are held at least; older events are dropped beyond twice that.
        unread_bytes: How many are held all the same for readers who have yet to begin, or who were woken and have not
            read on yet.

    Attributes:
        number: The number of the last published event.
        ended: No event will follow.
    """

    __slots__ = (
        "_bytes",
        "_calls_soon",
        "_events",
        "_first",
        "_fresh",
        "_listening",
        "_max_bytes",
        "_unread_bytes",
        "_waiting",
        "_woken",
        "ended",
        "number",
    )

    def __init__(self, number: int = 0, *, max_bytes: int = 8 * 1024, unread_bytes: int = 512 * 1024) -> None:
        self.number = number
        self.ended = False
        self._first = number + 1
        self._events: list[Event] = []
        self._fresh = number  # who waited last has what is up to this number
        self._bytes = 0
        self._max_bytes = max_bytes
        self._unread_bytes = unread_bytes
        self._waiting: list[asyncio.Future[None]] = []  # one a reader that has nothing to read
        self._listening: list[
            tuple[Callable[[], bool], asyncio.Future[None]]
        ] = []  # those that need not be woken
        self._calls_soon = False
        self._woken = 0  # readers that were, and have not gone on yet

    def publish(self, events: Sequence[Event]) -> None:
        """Show events to the readers; they must be durable by now and next in number.

        Raises:
            ValueError: A number is missing or repeated; nothing was published.
        """
        number = before = self.number
        size = 0
        for event in events:
            number += 1
            if event.number != number:
                raise ValueError(f"event {event.number} cannot follow event {number - 1}")
            size += len(event.body)
        if (self._waiting or self._listening) and not (self._woken or self._calls_soon):
            self._fresh = before
        self.number = number
        self._bytes += size
        self._events += events
        if self._bytes > 2 * self._max_bytes:
            self._drop_oldest()
        self._wake()

    def end(self) -> None:
        """Say that nothing follows: readers that have everything are done."""
        self.ended = True
        self._wake()

    def read_nowait(self, after: int) -> list[Event]:
        """The events after number ``after``, oldest first; empty when there is none yet.

        Raises:
            Behind: The next event for this reader is no longer in memory.
        """
        if after >= self.number:
            return []
        if after + 1 < self._first:
            raise Behind(self._first)
        return self._events[after + 1 - self._first :]

    def newest(self, after: int) -> list[Event] | None:
        """The events after number ``after`` if that is all that there is to say of them.

        Returns:
            None where there is none yet (`change` waits for one); nothing where `read` has to say more: that the log has
            ended, or that they are no longer in memory.
        """
        if after < self.number:
            return self._events[after + 1 - self._first :] if after + 1 >= self._first else []
        return [] if self.ended else None

    async def read(self, after: int) -> list[Event]:
        """Like `read_nowait`, but waits for an event; empty only when the log has ended.

        Cancelling a waiting reader touches neither the log nor any other reader.
        """
        while True:
            events = self.read_nowait(after)
            if events or self.ended:
                return events
            await self.change()

    async def reach(self, number: int) -> bool:
        """Wait until the event of that number is published; False when the log has ended before it."""
        while self.number < number and not self.ended:
            await self.change()
        return self.number >= number

    async def follow(self, after: int) -> AsyncIterator[list[Event]]:
        """All events after number ``after``, in batches of what is there, until the log ends.

        Raises:
            Behind: As `read_nowait`.
        """
        while events := await self.read(after):
            after = events[-1].number
            yield events

    async def change(self, take: Callable[[], bool] | None = None) -> None:
        """Wait until something is published, or the log ends.

        Args:
            take: Called soon after that, and each time again, instead of waking whoever waits here: once for all that is
                published together, and in the context of whoever waits. False when it cannot deal with it: then the wait is over,
                as it is when the log has ended. It raises nothing.
        """
        # A bare future: an event that several can wait for costs more than all else that a reader does with one event.
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if take is None:
            self._waiting.append(change)
        else:
            self._listening.append((partial(copy_context().run, take), change))
        try:
            await change
        except BaseException:
            if change in self._waiting:
                self._waiting.remove(change)
            self._listening = [each for each in self._listening if each[1] is not change]
            raise
        finally:
            if change.done() and not change.cancelled():
                self._woken -= 1

    def _drop_oldest(self) -> None:
        """Drop the oldest events beyond the bound; in steps of many, so that an event costs O(1)."""
        most = len(self._events) - 1
        if self._bytes < self._unread_bytes:
            most = min(most, self._fresh + 1 - self._first)
        count = 0
        while self._bytes > self._max_bytes and count < most:
            self._bytes -= len(self._events[count].body)
            count += 1
        del self._events[:count]
        self._first += count

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            self._let_go_on(change)
        if self._listening and not self._calls_soon:
            self._calls_soon = True
            asyncio.get_running_loop().call_soon(self._call)

    def _call(self) -> None:
        self._calls_soon = False
        listening, self._listening = self._listening, []
        for take, change in listening:
            if change.done():
                continue
            if take() and not self.ended:
                self._listening.append((take, change))
            else:
                self._let_go_on(change)

    def _let_go_on(self, change: "asyncio.Future[None]") -> None:
        if not change.done():  # cancelled: a reader that has left
            change.set_result(None)
            self._woken += 1

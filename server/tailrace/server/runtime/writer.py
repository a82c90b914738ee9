"""Grouped writes: one transaction for the writes of many tasks; events are published after the commit."""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import itemgetter
from time import perf_counter

import anyio

from tailrace.server.runtime.observer import NO_OBSERVER, Observer
from tailrace.server.store.store import Store, TasksRefused, TaskWrite
from tailrace.streaming.a2a.event import Event
from tailrace.wrappers import StoreError

logger = logging.getLogger("tailrace.server")

Committed = Callable[[Sequence[Event]], object]
"""Called with the events of a write once they are durable."""

Failed = Callable[[StoreError], object]
"""Called in its place when a write is given up."""

LAG_BOUNDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
GROUP_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

_Write = tuple[TaskWrite, Committed, Failed]
_write_of: Callable[[_Write], TaskWrite] = itemgetter(0)


class Distribution:
    """Counts of values in ranges, for one thread; counting a value costs one binary search.

    An idle server commits every event separately: the locks of a metrics library would cost more than the rest of a commit.

    Args:
        bounds: The upper bounds of the ranges, the smallest first; values above the last one are counted, too.

    Attributes:
        bounds: As given.
        counts: The number of values in each range, and of those above the last bound.
        sum: The sum of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class GroupWriter:
    """The only one who writes to the store.

    There is no timer: while one transaction is under way, what comes in gathers for the next. An idle store is
    written to at once; a busy one gets fewer, larger transactions.

    Now and then it drops what the store keeps no longer, in small transactions between the others, with pauses: of
    the store's time they have a part that is bounded, however much there is to drop and to write.

    A store that kept nothing the last time is tried again now and then, with something that is taken back at once: whoever
    sends nothing to a server that is not ready is to find out all the same when it is.

    Args:
        store: Where to.
        max_waiting: Producers are held up (`room`) while more events than this wait to be written.
        retry_delays: Seconds between the tries of a transaction that fails; when all have failed, the writes
            are given up and their owners told.
        drop_interval: Seconds between two looks for what is kept no longer.
        drop_pause: Seconds between two small transactions that drop some of it.
        trial_interval: Seconds after which a store that kept nothing is tried again, when nothing else is to be written.
        observer: Notified of failed transactions.

    Attributes:
        trouble: Why the last transaction, or the last trial since, was not kept; None when it was.
        is_full: Too many events wait to be written: producers must wait for `room`.
        lag: Seconds from the oldest event of a transaction to its commit.
        group_sizes: The numbers of events in a transaction.
    """

    def __init__(
        self,
        store: Store,
        *,
        max_waiting: int = 1_000,
        retry_delays: Sequence[float] = (0.05, 0.25, 1.0),
        drop_interval: float = 60.0,
        drop_pause: float = 0.02,
        trial_interval: float = 1.0,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self.trouble: StoreError | None = None
        self.is_full = False
        self.lag = Distribution(LAG_BOUNDS)
        self.group_sizes = Distribution(GROUP_BOUNDS)
        self._observer = observer
        self._oldest = 0.0  # time at which the oldest waiting write arrived
        self._store = store
        self._max_waiting = max_waiting
        self._retry_delays = retry_delays
        self._drop_interval = drop_interval
        self._drop_pause = drop_pause
        self._trial_interval = trial_interval
        self._drop_due = False
        self._drop_more = False
        self._dropped = anyio.Event()
        self._waiting: list[_Write] = []
        self._count = 0
        self._more: asyncio.Future[None] | None = None
        self._less: anyio.Event | None = None
        self._closing = False
        self._closed = False
        self._hurried = False
        self._failed: StoreError | None = None  # the last try, once there is no time for another

    def put(self, write: TaskWrite, committed: Committed, failed: Failed) -> None:
        """Add a write to the next transaction; return at once.

        Args:
            write: The write.
            committed: Called when it is durable.
            failed: Called when it is given up.
        """
        if self._closed:
            failed(StoreError("the store is closed"))
            return
        if not self._waiting:
            self._oldest = perf_counter()
            self._wake()
        self._waiting.append((write, committed, failed))
        self._count += len(write.events)
        self.is_full = self._count > self._max_waiting

    @property
    def waiting(self) -> int:
        """The number of events that wait to be written."""
        return self._count

    async def room(self) -> None:
        """Wait while too much is waiting to be written; returns at once otherwise."""
        while self.is_full:
            if self._less is None:
                self._less = anyio.Event()
            await self._less.wait()

    def hurry(self) -> None:
        """The server stops: a try that fails from now on is the last one, for all that waits."""
        self._hurried = True

    def close(self) -> None:
        """Let `run` return when everything handed over so far is dealt with."""
        self._closing = True
        self._wake()

    async def run(self) -> None:
        """Write until closed. Nothing is lost on a failing store that recovers within the retries."""
        loop = asyncio.get_running_loop()  # once: before CPython 3.12 it is a system call
        self._closed = self._hurried = False
        self._failed = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._call_for_drops)
            while True:
                more = self._more = loop.create_future()
                if self._waiting or self._closing or self._drop_due:
                    self._wake()
                if self.trouble is None:
                    await more
                else:
                    await self._wait_or_try(more)
                if self._waiting:
                    await self._write_waiting()
                elif self._closing:
                    break
                if self._drop_due:
                    await self._drop()
            group.cancel_scope.cancel()
        self._closed, self._closing = True, False

    async def _wait_or_try(self, more: asyncio.Future[None]) -> None:
        """Wait for something to do; if there is none for some time, try the store, which kept nothing the last time."""
        with anyio.move_on_after(self._trial_interval):
            await more
            return
        await self._try()

    async def _try(self) -> None:
        """Find out whether the store, which kept nothing the last time, does so again."""
        try:
            await self._store.try_writing()
        except StoreError as error:
            self.trouble = error
        except Exception:  # it is no reason to write no more
            logger.exception("the store cannot be tried")
        else:
            logger.info("the store keeps what it is given again")
            self.trouble = None

    async def _call_for_drops(self) -> None:
        """Schedule the removal of expired rows; `run` removes them, since it alone writes."""
        pause = 0.0
        while True:
            await anyio.sleep(pause)
            self._drop_due, self._dropped = True, anyio.Event()
            self._wake()
            await self._dropped.wait()
            pause = self._drop_pause if self._drop_more else self._drop_interval

    async def _drop(self) -> None:
        try:
            self._drop_more = await self._store.drop_expired()
        except StoreError as error:
            self._drop_more = False  # the next look finds it again
            logger.warning("what is kept no longer cannot be dropped now: %s", error)
        except Exception:  # it is no reason to write no more
            self._drop_more = False
            logger.exception("what is kept no longer cannot be dropped")
        self._drop_due = False
        self._dropped.set()

    async def _write_waiting(self) -> None:
        batch, self._waiting = self._waiting, []
        events, self._count = self._count, 0
        self.is_full = False
        oldest = self._oldest
        if self._less is not None:
            self._less.set()
            self._less = None
        error = await self._commit(list(map(_write_of, batch)))
        if error is None:
            self.lag.add(perf_counter() - oldest)
            self.group_sizes.add(events)
            for write, committed, _ in batch:
                committed(write.events)
            return
        if isinstance(error, TasksRefused):
            for each in batch:
                self._settle([each], error.tasks.get(each[0].task_id))
            return
        if error.temporary:
            self._settle(batch, error)
            return
        # The store rejects something of one of the tasks: write each of them by itself.
        tasks: dict[str, list[_Write]] = {}
        for item in batch:
            tasks.setdefault(item[0].task_id, []).append(item)
        for items in tasks.values():
            refused = await self._commit(list(map(_write_of, items))) if len(tasks) > 1 else error
            self._settle(items, refused)

    def _settle(self, batch: list[_Write], error: StoreError | None) -> None:
        if error is not None:
            batch = batch + self._withdraw({write.task_id for write, _, _ in batch})
        for write, committed, failed in batch:
            if error is None:
                committed(write.events)
            else:
                failed(error)

    async def _commit(self, writes: list[TaskWrite]) -> StoreError | None:
        if self._failed is not None:
            return self._failed
        for delay in (*self._retry_delays, None):
            try:
                await self._store.commit(writes)
                self.trouble = None
                return None
            except StoreError as error:
                self._observer.commit_failed()
                if error.temporary:
                    self.trouble = error
                if self._hurried and error.temporary:
                    self._failed = error
                if delay is None or self._hurried or not error.temporary:
                    return error
            except Exception as error:  # the writer is one for all tasks: it survives what one of them holds
                logger.exception("the store failed in a way it does not know")
                return StoreError(f"cannot write to the store: {error}", temporary=False)
            await anyio.sleep(delay)
        return None

    def _withdraw(self, task_ids: set[str]) -> list[_Write]:
        """Take back what waits for tasks of which something was given up: their log would have a gap."""
        withdrawn = [item for item in self._waiting if item[0].task_id in task_ids]
        self._waiting = [item for item in self._waiting if item[0].task_id not in task_ids]
        self._count -= sum(len(write.events) for write, _, _ in withdrawn)
        self.is_full = self._count > self._max_waiting
        return withdrawn

    def _wake(self) -> None:
        """Resume `run` in the tick after the next.

        Until then others run: a turn that was just begun sends its request before its first event is written, and a
        store that commits in the event loop does not block it for long.
        """
        more, self._more = self._more, None
        if more is not None:
            more.get_loop().call_soon(_resolve, more)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

"""Grouped writes: one transaction for whatever many tasks have to keep, and nothing is shown before it is kept."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import perf_counter

import anyio
import anyio.lowlevel

from tailrace.server.observability import NO_OBSERVER, Observer
from tailrace.server.store import Store, TasksRefused, TaskWrite
from tailrace.streaming.task import Event
from tailrace.wrappers import StoreError

logger = logging.getLogger("tailrace.server")

Outcome = Callable[[Sequence[Event], StoreError | None], object]
"""Called once for each write, after it was kept (with None) or given up (with the error)."""


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
        observer: Told of transactions.

    Attributes:
        trouble: Why the last transaction, or the last trial since, was not kept; None when it was.
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
        self._observer = observer
        self._oldest = 0.0  # when the first of those that wait was handed over
        self._store = store
        self._max_waiting = max_waiting
        self._retry_delays = retry_delays
        self._drop_interval = drop_interval
        self._drop_pause = drop_pause
        self._trial_interval = trial_interval
        self._drop_due = False
        self._drop_more = False
        self._dropped = anyio.Event()
        self._waiting: list[tuple[TaskWrite, Outcome]] = []
        self._count = 0
        self._more: asyncio.Future[None] | None = None
        self._less: anyio.Event | None = None
        self._closing = False
        self._closed = False
        self._hurried = False
        self._failed: StoreError | None = None  # the last try, once there is no time for another

    def put(self, write: TaskWrite, outcome: Outcome) -> None:
        """Hand over something to be kept; returns at once, ``outcome`` tells when it was."""
        if self._closed:
            outcome(write.events, StoreError("the store is closed"))
            return
        if not self._waiting:
            self._oldest = perf_counter()
            self._wake()
        self._waiting.append((write, outcome))
        self._count += len(write.events)

    @property
    def waiting(self) -> int:
        """How many events wait to be written."""
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether too much is waiting to be written: whoever makes more is to wait for `room`."""
        return self._count > self._max_waiting

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
        self._closed = self._hurried = False
        self._failed = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._call_for_drops)
            while True:
                if self._waiting:
                    # Whoever is about to have something is let in: a turn that was just begun, for example, which will have
                    # asked its provider then. And a store that writes at once would let nobody else run.
                    await anyio.lowlevel.checkpoint()
                    await self._write_waiting()
                elif self._closing:
                    break
                elif not self._drop_due:
                    await self._wait_for_more()
                if self._drop_due:
                    await self._drop()
            group.cancel_scope.cancel()
        self._closed, self._closing = True, False

    async def _wait_for_more(self) -> None:
        more = self._more = asyncio.get_running_loop().create_future()  # a bare one, as in `TaskLog.change`
        if self.trouble is None:
            await more
            return
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
        """Say when it is time to drop something; `run` does it, as it alone writes."""
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
        oldest = self._oldest
        if self._less is not None:
            self._less.set()
            self._less = None
        error = await self._commit([write for write, _ in batch])
        if isinstance(error, TasksRefused):
            for each in batch:
                self._tell([each], error.tasks.get(each[0].task_id))
            return
        if error is None:
            self._observer.committed(events, perf_counter() - oldest)
        if error is None or error.temporary:
            self._tell(batch, error)
            return
        # One of the tasks has something that the store does not take: the others are not to suffer for it.
        tasks: dict[str, list[tuple[TaskWrite, Outcome]]] = {}
        for item in batch:
            tasks.setdefault(item[0].task_id, []).append(item)
        for items in tasks.values():
            self._tell(items, await self._commit([write for write, _ in items]) if len(tasks) > 1 else error)

    def _tell(self, batch: list[tuple[TaskWrite, Outcome]], error: StoreError | None) -> None:
        if error is not None:
            batch = batch + self._withdraw({write.task_id for write, _ in batch})
        for write, outcome in batch:
            outcome(write.events, error)

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

    def _withdraw(self, task_ids: set[str]) -> list[tuple[TaskWrite, Outcome]]:
        """Take back what waits for tasks of which something was given up: their log would have a gap."""
        withdrawn = [item for item in self._waiting if item[0].task_id in task_ids]
        self._waiting = [item for item in self._waiting if item[0].task_id not in task_ids]
        self._count -= sum(len(write.events) for write, _ in withdrawn)
        return withdrawn

    def _wake(self) -> None:
        more, self._more = self._more, None
        if more is not None and not more.done():
            more.set_result(None)

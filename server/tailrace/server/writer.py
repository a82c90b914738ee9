"""Grouped writes: one transaction for whatever many tasks have to keep, and nothing is shown before it is kept."""

import logging
from collections.abc import Callable, Sequence

import anyio

from tailrace.server.store import Store, TaskWrite
from tailrace.streaming.task import Event
from tailrace.wrappers import StoreError

logger = logging.getLogger("tailrace.server")

Outcome = Callable[[Sequence[Event], StoreError | None], object]
"""Called once for each write, after it was kept (with None) or given up (with the error)."""


class GroupWriter:
    """The only one who writes to the store.

    There is no timer: while one transaction is under way, what comes in gathers for the next. An idle store is
    written to at once; a busy one gets fewer, larger transactions.

    Args:
        store: Where to.
        max_waiting: Producers are held up (`room`) while more events than this wait to be written.
        retry_delays: Seconds between the tries of a transaction that fails; when all have failed, the writes
            are given up and their owners told.
    """

    def __init__(
        self,
        store: Store,
        *,
        max_waiting: int = 1_000,
        retry_delays: Sequence[float] = (0.05, 0.25, 1.0),
    ) -> None:
        self._store = store
        self._max_waiting = max_waiting
        self._retry_delays = retry_delays
        self._waiting: list[tuple[TaskWrite, Outcome]] = []
        self._count = 0
        self._more: anyio.Event | None = None
        self._less: anyio.Event | None = None
        self._closing = False
        self._closed = False

    def put(self, write: TaskWrite, outcome: Outcome) -> None:
        """Hand over something to be kept; returns at once, ``outcome`` tells when it was."""
        if self._closed:
            outcome(write.events, StoreError("the store is closed"))
            return
        self._waiting.append((write, outcome))
        self._count += len(write.events)
        self._wake()

    async def room(self) -> None:
        """Wait while too much is waiting to be written; returns at once otherwise."""
        while self._count > self._max_waiting:
            if self._less is None:
                self._less = anyio.Event()
            await self._less.wait()

    def close(self) -> None:
        """Let `run` return when everything handed over so far is dealt with."""
        self._closing = True
        self._wake()

    async def run(self) -> None:
        """Write until closed. Nothing is lost on a failing store that recovers within the retries."""
        self._closed = False
        while True:
            if self._waiting:
                await self._write_waiting()
            elif self._closing:
                break
            else:
                self._more = anyio.Event()
                await self._more.wait()
        self._closed, self._closing = True, False

    async def _write_waiting(self) -> None:
        batch, self._waiting = self._waiting, []
        self._count = 0
        if self._less is not None:
            self._less.set()
            self._less = None
        error = await self._commit([write for write, _ in batch])
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
        for delay in (*self._retry_delays, None):
            try:
                await self._store.commit(writes)
                return None
            except StoreError as error:
                if delay is None or not error.temporary:
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
        if self._more is not None:
            self._more.set()
            self._more = None

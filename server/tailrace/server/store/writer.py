"""The writer of the store: commits the writes of many tasks in one transaction, and then publishes their events."""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from time import perf_counter
from uuid import uuid4

import anyio
from sqlalchemy import Connection, delete, insert

from tailrace.server.store.database import Database
from tailrace.server.store.event_rows import Row
from tailrace.server.store.push_config_rows import PushConfigRows
from tailrace.server.store.records import Retention, TasksNotWrittenError, TaskWrite
from tailrace.server.store.retention import (
    delete_messages,
    delete_rows_of_tasks,
    drop_deleted,
    drop_expired,
    pending_deletion,
)
from tailrace.server.store.schema import claims, deletions, tasks
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.server.store.task_rows import Bodies, encoded_snapshot, has_all_events, write_tasks
from tailrace.streaming.a2a.event import Event
from tailrace.wrappers import StoreError
from tailrace.wrappers.concurrency.worker_thread import MAX_INLINE_COST, json_cost

logger = logging.getLogger("tailrace.server")

Committed = Callable[[Sequence[Event]], object]
"""A function that receives the events of a write after they are committed."""

Failed = Callable[[StoreError], object]
"""A function that receives the error if the events of a write cannot be persisted."""

LAG_BOUNDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
GROUP_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

_BYTES_OF_EVENT_COST = 512  # bytes of an encoded event that count as one unit of cost

_MAX_BATCH_COST = 4 * MAX_INLINE_COST
"""Maximum cost of a batch that is written in the event loop: at most 18 ms, because encoding takes 1 to 9 µs for each value."""

_has_large_event: Callable[[TaskWrite], bool] = attrgetter("has_large_event")

_Write = tuple[TaskWrite, Committed, Failed]
_write_of: Callable[[_Write], TaskWrite] = itemgetter(0)


class StoreWrites:
    """The part of `tailrace.server.store.store.Store` that writes tasks.

    Every method raises StoreError if the database is not available, or if the store is not open. If a method is cancelled, the
    write is still committed or rolled back completely.
    """

    def __init__(self, database: Database, retention: Retention) -> None:
        self._database = database
        self._retention = retention
        self._in_doubt = False
        self._has_deletions = False  # True if deleted tasks may still have events
        self._is_purged = False  # an earlier process may have ended before `purge`
        self._keys = SecretKeys()
        self._webhook_rows = PushConfigRows(self._keys)

    async def try_writing(self) -> None:
        """Test whether the store accepts writes: insert a row and delete it in one transaction.

        Raises:
            StoreError: The database accepts no writes, or only writes of another server.
        """
        row = {"owner": "", "name": f"trial:{uuid4().hex}"}
        condition = (claims.c.owner == row["owner"], claims.c.name == row["name"])

        def work(connection: Connection) -> None:
            connection.execute(insert(claims).values(**row, node=""))
            connection.execute(delete(claims).where(*condition))

        await self._database.write(work)

    async def commit(self, writes: Sequence[TaskWrite]) -> None:
        """Persist a batch of writes in one transaction. The writes are durable when this method returns.

        Raises:
            StoreError: The transaction was rolled back, or its result is unknown because the connection was lost.
        """
        try:
            await self._write(writes)
        except StoreError as error:
            # If the connection is lost during a commit, the result is unknown. If the next attempt fails because the events
            # exist, the first commit succeeded.
            was_in_doubt, self._in_doubt = self._in_doubt, error.temporary
            if error.temporary or not was_in_doubt:
                raise
            if not await self._database.read(lambda connection: has_all_events(connection, writes)):
                raise
        else:
            self._in_doubt = False

    async def _write(self, writes: Sequence[TaskWrite]) -> None:
        further = writes_beyond_events(writes)
        is_large = any(map(_has_large_event, writes))
        if further:
            tasks = {write.task_id for write in further}
            is_large = is_large or is_large_batch(further)
            bodies = await self._encoded(further, is_large=is_large)
            await self._database.append(
                rows_of(writes),
                lambda connection: write_tasks(connection, further, bodies, self._webhook_rows),
                tasks=tasks,
                is_large=is_large,
            )
        else:
            await self._database.append(rows_of(writes), is_large=is_large)

    async def _encoded(self, writes: Sequence[TaskWrite], *, is_large: bool) -> Bodies:
        """Encode the content of a transaction. Large content is encoded in a thread.

        In the thread of `run_bounded`, the write would wait for work on the requests of callers.
        """
        return await anyio.to_thread.run_sync(Bodies, writes) if is_large else Bodies(writes)

    async def drop_expired(self) -> bool:
        """Delete a small batch of expired rows, or of events of deleted tasks, and return whether there may be more.

        The snapshot of a task with expired events remains. Rows of running tasks, and events that a webhook has not received yet,
        are not deleted.
        """
        if self._has_deletions:
            self._has_deletions = await self._database.write(_drop_pending)
            self._is_purged = False
            return True
        if not self._is_purged:
            self._is_purged = await self._database.purge(is_patient=False)
        now = datetime.now(UTC)
        return await self._database.write(lambda connection: drop_expired(connection, self._retention, now))

    async def delete_task(self, task_id: str, owner: str) -> bool:
        """Delete a task with its events, webhooks and messages, and return whether the task existed.

        The calling code must ensure that no write of the task is running, and must call `purge` after the last deletion.

        The deletion consists of many short transactions. If it is interrupted while the task still exists, some messages may be
        missing, and the task can be deleted again. If it is interrupted later, `drop_expired` deletes the remaining events.
        """
        write, tasks = self._database.write, (task_id,)
        while await write(lambda connection: delete_messages(connection, task_id, owner)):
            pass
        if not await write(lambda connection: _delete_task(connection, task_id, owner), tasks=tasks):
            return False
        self._has_deletions = True
        while await write(lambda connection: drop_deleted(connection, task_id), tasks=tasks):
            pass
        return True

    async def purge(self) -> None:
        """Remove deleted content from the files and caches of the database.

        If a reader prevents the removal, `drop_expired` tries again.
        """
        self._is_purged = False
        self._is_purged = await self._database.purge()
        if not self._is_purged:
            logger.warning(
                "the log of the store has deleted content until the end of another program's read; it is emptied then"
            )


class Distribution:
    """A histogram for one thread, without locks.

    Attributes:
        bounds: The upper bounds of the buckets.
        counts: The number of values in each bucket. The last bucket contains the values above the last bound.
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
    """Writes the events of all tasks. No other code writes events.

    All writes that arrive during a transaction form the next transaction. An idle store commits a write immediately; a busy store
    commits fewer, larger transactions.

    Expired rows are deleted in small transactions with pauses. After a failed transaction, the store is tested at intervals, so
    that a server becomes ready again without a new message.

    Args:
        store: The store.
        max_waiting: The number of waiting events above which producers must wait for `wait_for_room`.
        retry_delays: Seconds between the attempts of a transaction that fails. After the last attempt, its writes fail.
        drop_interval: Seconds between two searches for expired rows.
        drop_pause: Seconds between two transactions that delete expired rows.
        trial_interval: Seconds between tests of a store that failed, if there are no writes.
        commit_failed: Called after each failed attempt to commit.

    Attributes:
        last_error: The last error of a store that is not available; None after a successful transaction or test.
        is_full: Whether too many events wait.
        lag: The distribution of the seconds between the arrival of the oldest event of a transaction and the commit.
        group_sizes: The distribution of the numbers of events in a transaction.
    """

    def __init__(
        self,
        store: StoreWrites,
        *,
        max_waiting: int = 1_000,
        retry_delays: Sequence[float] = (0.05, 0.25, 1.0),
        drop_interval: float = 60.0,
        drop_pause: float = 0.02,
        trial_interval: float = 1.0,
        commit_failed: Callable[[], object] = lambda: None,
    ) -> None:
        self.last_error: StoreError | None = None
        self.is_full = False
        self.lag = Distribution(LAG_BOUNDS)
        self.group_sizes = Distribution(GROUP_BOUNDS)
        self._store = store
        self._commit_failed = commit_failed
        self._oldest = 0.0  # the time when the oldest waiting write arrived
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
        self._write_arrived: asyncio.Future[None] | None = None
        self._room_available: anyio.Event | None = None
        self._closing = False
        self._closed = False
        self._no_retries = False
        self._failed: StoreError | None = None  # the error of the last attempt, if there are no more retries

    def add_write(self, write: TaskWrite, committed: Committed, failed: Failed) -> None:
        """Add a write to the next transaction, and return immediately.

        Args:
            write: The write.
            committed: Called after the write is committed.
            failed: Called if all attempts to commit the write failed.
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
        """Return the number of waiting events."""
        return self._count

    async def wait_for_room(self) -> None:
        """Wait until the number of waiting events is not above the maximum."""
        while self.is_full:
            if self._room_available is None:
                self._room_available = anyio.Event()
            await self._room_available.wait()

    def stop_retries(self) -> None:
        """Disable retries, because the server is stopping."""
        self._no_retries = True

    def close(self) -> None:
        """Let `run` return after all waiting writes are committed or have failed."""
        self._closing = True
        self._wake()

    async def run(self) -> None:
        """Write until `close` is called."""
        # Called once, because it makes a system call before CPython 3.12.
        loop = asyncio.get_running_loop()
        self._closed = self._no_retries = False
        self._failed = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._call_for_drops)
            while True:
                more = self._write_arrived = loop.create_future()
                if self._waiting or self._closing or self._drop_due:
                    self._wake()
                if self.last_error is None:
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
        """Wait for a write. If none arrives within the interval, test the store."""
        with anyio.move_on_after(self._trial_interval):
            await more
            return
        await self._try()

    async def _try(self) -> None:
        """Test whether the store works again."""
        try:
            await self._store.try_writing()
        except StoreError as error:
            self.last_error = error
        except Exception:  # the writer continues after any error
            logger.exception("the test of the store failed unexpectedly")
        else:
            logger.info("the store works again")
            self.last_error = None

    async def _call_for_drops(self) -> None:
        """Schedule the deletion of expired rows. `run` deletes them."""
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
            self._drop_more = False  # the next search finds the remaining rows
            logger.warning("expired rows cannot be deleted at present: %s", error)
        except Exception:  # the writer continues after any error
            self._drop_more = False
            logger.exception("the deletion of expired rows failed unexpectedly")
        self._drop_due = False
        self._dropped.set()

    async def _write_waiting(self) -> None:
        batch, self._waiting = self._waiting, []
        events, self._count = self._count, 0
        self.is_full = False
        oldest = self._oldest
        if self._room_available is not None:
            self._room_available.set()
            self._room_available = None
        error = await self._commit(list(map(_write_of, batch)))
        if error is None:
            self.lag.add(perf_counter() - oldest)
            self.group_sizes.add(events)
            for write, committed, _ in batch:
                committed(write.events)
            return
        if isinstance(error, TasksNotWrittenError):
            for each in batch:
                self._complete([each], error.tasks.get(each[0].task_id))
            return
        if error.temporary:
            self._complete(batch, error)
            return
        # The store rejects the write of at least one task. Commit each task separately.
        tasks: dict[str, list[_Write]] = {}
        for item in batch:
            tasks.setdefault(item[0].task_id, []).append(item)
        for items in tasks.values():
            refused = await self._commit(list(map(_write_of, items))) if len(tasks) > 1 else error
            self._complete(items, refused)

    def _complete(self, batch: list[_Write], error: StoreError | None) -> None:
        if error is not None:
            batch = batch + self._remove_waiting({write.task_id for write, _, _ in batch})
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
                self.last_error = None
                return None
            except StoreError as error:
                self._commit_failed()
                if error.temporary:
                    self.last_error = error
                if self._no_retries and error.temporary:
                    self._failed = error
                if delay is None or self._no_retries or not error.temporary:
                    return error
            except Exception as error:  # the writer continues, because all tasks share it
                logger.exception("the store raised an unexpected error")
                return StoreError(f"cannot write to the store: {error}", temporary=False)
            await anyio.sleep(delay)
        return None

    def _remove_waiting(self, task_ids: set[str]) -> list[_Write]:
        """Remove the waiting writes of tasks with a failed write. Their logs would otherwise have gaps."""
        removed = [item for item in self._waiting if item[0].task_id in task_ids]
        self._waiting = [item for item in self._waiting if item[0].task_id not in task_ids]
        self._count -= sum(len(write.events) for write, _, _ in removed)
        self.is_full = self._count > self._max_waiting
        return removed

    def _wake(self) -> None:
        """Resume `run` after other ready coroutines, so that a new turn sends its request before a commit blocks the event loop."""
        more, self._write_arrived = self._write_arrived, None
        if more is not None:
            more.get_loop().call_soon(_resolve, more)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def writes_beyond_events(writes: Sequence[TaskWrite]) -> list[TaskWrite]:
    """Return the writes that change more than the table of events."""
    further: list[TaskWrite] = []
    for write in writes:  # runs for every token, a comprehension would be a function call
        if (
            write.snapshot is not None
            or write.updated is not None
            or write.messages
            or write.webhooks
            or write.send_key is not None
            or write.completion is not None
            or write.usage
        ):
            further.append(write)  # noqa: PERF401 — as above
    return further


def rows_of(writes: Sequence[TaskWrite]) -> list[Row]:
    """Convert the events of writes to rows of the table of events."""
    rows: list[Row] = []
    for write in writes:
        task_id = write.task_id
        for event in write.events:
            state = event.state
            rows.append((task_id, event.number, event.body, None if state is None else state.value))
    return rows


def is_large_batch(writes: Sequence[TaskWrite]) -> bool:
    """Return whether encoding and writing a batch takes long."""
    total = 0
    for write in writes:
        size = 0
        for event in write.events:
            size += len(event.body)
        cost = json_cost(write.messages) + size // _BYTES_OF_EVENT_COST
        if write.snapshot is not None and not encoded_snapshot(write):
            cost += json_cost(write.snapshot)
        if cost > MAX_INLINE_COST:
            return True
        total += cost
    return total > _MAX_BATCH_COST


def _drop_pending(connection: Connection) -> bool:
    """Delete a batch of the events of a deleted task, and return whether there was such a task."""
    task_id = pending_deletion(connection)
    if task_id is not None:
        drop_deleted(connection, task_id)
    return task_id is not None


def _delete_task(connection: Connection, task_id: str, owner: str) -> bool:
    deleted = connection.execute(delete(tasks).where(tasks.c.id == task_id, tasks.c.owner == owner))
    if deleted.rowcount:
        delete_rows_of_tasks(connection, (task_id,))
        connection.execute(delete(deletions).where(deletions.c.task_id == task_id))
        connection.execute(insert(deletions).values(task_id=task_id))
    return bool(deleted.rowcount)

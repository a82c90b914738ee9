"""Grouped writes: persisted before they are published, in order, batched, and retried when the store fails."""

import sqlite3
from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest

from tailrace.server.store.store import Store, TaskWrite
from tailrace.server.store.writer import GroupWriter
from tailrace.streaming import Event
from tailrace.wrappers import StoreError


class FailingStore(Store):
    """A real store that counts its transactions and fails its next commits, as on a full disk."""

    def __init__(self, url: str, failures: int = 0) -> None:
        super().__init__(url)
        self.failures = failures
        self.batches: list[int] = []

    async def commit(self, writes: Sequence[TaskWrite]) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreError("cannot write to the store: database or disk is full")
        await super().commit(writes)
        self.batches.append(len(writes))


def write(task_id: str, number: int) -> TaskWrite:
    return TaskWrite(task_id, "me", "c", (Event(number, b"{}"),))


def unexpected(outcome: object) -> None:
    pytest.fail(f"not expected: {outcome}")


class Outcomes:
    """Records the outcome of each write, and the contents of the store at that moment."""

    def __init__(self) -> None:
        self.reported: list[tuple[int, StoreError | None]] = []

    def put(self, writer: GroupWriter, write: TaskWrite) -> None:
        """Enqueue a write and record its outcome."""
        writer.add_write(write, lambda _events: self.add(write, None), lambda error: self.add(write, error))

    def add(self, write: TaskWrite, error: StoreError | None) -> None:
        self.reported += [(event.number, error) for event in write.events]


@pytest.fixture
def outcomes() -> Outcomes:
    return Outcomes()


async def run_until_closed(store: Store, *writes: TaskWrite, outcomes: Outcomes) -> None:
    writer = GroupWriter(store, retry_delays=(0, 0))
    for each in writes:
        outcomes.put(writer, each)
    writer.close()
    await writer.run()


async def test_waiting_writes_are_one_transaction_reported_in_order(
    store_url: str, outcomes: Outcomes
) -> None:
    store = FailingStore(store_url)
    await store.open()
    await run_until_closed(store, *(write(f"t{n % 3}", n) for n in range(1, 10)), outcomes=outcomes)
    assert store.batches == [9]
    assert outcomes.reported == [(number, None) for number in range(1, 10)]
    await store.close()


async def test_nothing_is_reported_before_it_is_persisted(store_url: str) -> None:
    store = FailingStore(store_url)
    await store.open()
    writer = GroupWriter(store)
    kept: list[list[int]] = []
    done = anyio.Event()

    async def look() -> None:
        kept.append([event.number for event in await store.load_events("t", 0)])
        done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(writer.run)
        writer.add_write(write("t", 1), lambda _events: group.start_soon(look), unexpected)
        await done.wait()
        writer.close()
    assert kept == [[1]]
    await store.close()


async def test_a_store_that_fails_for_a_while_loses_nothing(store_url: str, outcomes: Outcomes) -> None:
    store = FailingStore(store_url, failures=2)
    await store.open()
    await run_until_closed(store, write("t", 1), write("t", 2), outcomes=outcomes)
    assert outcomes.reported == [(1, None), (2, None)]
    assert [event.number for event in await store.load_events("t", 0)] == [1, 2]
    await store.close()


async def test_writes_that_cannot_be_kept_are_given_up_and_later_ones_are_not(
    store_url: str, outcomes: Outcomes
) -> None:
    store = FailingStore(store_url, failures=3)
    await store.open()
    writer = GroupWriter(store, retry_delays=(0, 0))
    given_up = anyio.Event()

    def give_up(error: StoreError) -> None:
        outcomes.add(write("t", 1), error)
        given_up.set()

    async with anyio.create_task_group() as group:
        group.start_soon(writer.run)
        writer.add_write(write("t", 1), unexpected, give_up)
        await given_up.wait()
        outcomes.put(writer, write("u", 1))
        writer.close()
    (_, first), (_, second) = outcomes.reported
    assert "disk is full" in str(first)
    assert second is None
    await store.close()


class TriedStore(Store):
    """A real store that signals each attempt."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.tried = anyio.Event()

    async def try_writing(self) -> None:
        try:
            await super().try_writing()
        finally:
            self.tried.set()


async def test_a_failing_store_is_retried_without_further_writes(sqlite_url: str, outcomes: Outcomes) -> None:
    store = TriedStore(f"{sqlite_url}?timeout=0.01")
    await store.open()
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writer = GroupWriter(store, retry_delays=(), trial_interval=0.01)
    outcomes.put(writer, write("t", 1))
    async with anyio.create_task_group() as group:
        group.start_soon(writer.run)
        with anyio.fail_after(5):
            await store.tried.wait()
            assert "locked" in str(writer.last_error)
            other.execute("ROLLBACK")
            while writer.last_error is not None:
                await anyio.lowlevel.checkpoint()
        writer.close()
    [(_, error)] = outcomes.reported
    assert error is not None  # the write failed long before
    assert other.execute("SELECT count(*) FROM claims").fetchone() == (0,)
    other.close()
    await store.close()


async def test_producers_wait_while_too_much_is_waiting(store_url: str, outcomes: Outcomes) -> None:
    store = FailingStore(store_url)
    await store.open()
    writer = GroupWriter(store, max_waiting=2)
    for number in range(1, 5):
        outcomes.put(writer, write("t", number))
    passed: list[bool] = []

    async def produce() -> None:
        await writer.wait_for_room()
        passed.append(True)

    async with anyio.create_task_group() as group:
        group.start_soon(produce)
        await anyio.wait_all_tasks_blocked()
        assert not passed
        group.start_soon(writer.run)
        writer.close()
    assert passed
    await store.close()


async def test_a_writer_that_is_to_hurry_tries_once_more_and_then_gives_up_all_that_comes(
    store_url: str, outcomes: Outcomes
) -> None:
    store = FailingStore(store_url, failures=1)
    await store.open()
    writer = GroupWriter(store, retry_delays=(60, 60))
    failed = anyio.Event()

    def on_error(error: StoreError) -> None:
        outcomes.add(write("t", 1), error)
        if len(outcomes.reported) == 1:
            outcomes.put(writer, write("u", 1))  # the final events of a task that the store error ended
            failed.set()

    async with anyio.create_task_group() as group:
        group.start_soon(writer.run)
        await anyio.wait_all_tasks_blocked()
        writer.stop_retries()
        writer.add_write(write("t", 1), unexpected, on_error)
        with anyio.fail_after(10):
            await failed.wait()
            writer.close()
    assert [number for number, _ in outcomes.reported] == [1, 1]
    assert all(error is not None for _, error in outcomes.reported)
    assert store.batches == []
    await store.close()

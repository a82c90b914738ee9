"""Grouped writes: kept before told, in order, many at once, and a failing store is tried again."""

import sqlite3
from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest

from tailrace.server.store import Store, TaskWrite
from tailrace.server.writer import GroupWriter
from tailrace.streaming import Event
from tailrace.wrappers import StoreError


class FailingStore(Store):
    """A real store whose next commits fail, as on a full disk; and which counts its transactions."""

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


class Outcomes:
    """Remembers what it was told, and what the store held at that moment."""

    def __init__(self) -> None:
        self.told: list[tuple[int, StoreError | None]] = []

    def __call__(self, events: Sequence[Event], error: StoreError | None) -> None:
        self.told += [(event.number, error) for event in events]


@pytest.fixture
def outcomes() -> Outcomes:
    return Outcomes()


async def run_until_closed(store: Store, *writes: TaskWrite, outcomes: Outcomes) -> None:
    writer = GroupWriter(store, retry_delays=(0, 0))
    for each in writes:
        writer.put(each, outcomes)
    writer.close()
    await writer.run()


async def test_what_waits_is_one_transaction_told_in_order(store_url: str, outcomes: Outcomes) -> None:
    store = FailingStore(store_url)
    await store.open()
    await run_until_closed(store, *(write(f"t{n % 3}", n) for n in range(1, 10)), outcomes=outcomes)
    assert store.batches == [9]
    assert outcomes.told == [(number, None) for number in range(1, 10)]
    await store.close()


async def test_nothing_is_told_before_it_is_kept(store_url: str) -> None:
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
        writer.put(write("t", 1), lambda events, error: group.start_soon(look))
        await done.wait()
        writer.close()
    assert kept == [[1]]
    await store.close()


async def test_a_store_that_fails_for_a_while_loses_nothing(store_url: str, outcomes: Outcomes) -> None:
    store = FailingStore(store_url, failures=2)
    await store.open()
    await run_until_closed(store, write("t", 1), write("t", 2), outcomes=outcomes)
    assert outcomes.told == [(1, None), (2, None)]
    assert [event.number for event in await store.load_events("t", 0)] == [1, 2]
    await store.close()


async def test_writes_that_cannot_be_kept_are_given_up_and_later_ones_are_not(
    store_url: str, outcomes: Outcomes
) -> None:
    store = FailingStore(store_url, failures=3)
    await store.open()
    writer = GroupWriter(store, retry_delays=(0, 0))
    given_up = anyio.Event()

    def give_up(events: Sequence[Event], error: StoreError | None) -> None:
        outcomes(events, error)
        given_up.set()

    async with anyio.create_task_group() as group:
        group.start_soon(writer.run)
        writer.put(write("t", 1), give_up)
        await given_up.wait()
        writer.put(write("u", 1), outcomes)
        writer.close()
    (_, first), (_, second) = outcomes.told
    assert "disk is full" in str(first)
    assert second is None
    await store.close()


class TriedStore(Store):
    """A real store that says when it was tried."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.tried = anyio.Event()

    async def try_writing(self) -> None:
        try:
            await super().try_writing()
        finally:
            self.tried.set()


async def test_a_store_that_kept_nothing_is_tried_until_it_does_though_nobody_writes(
    sqlite_url: str, outcomes: Outcomes
) -> None:
    store = TriedStore(f"{sqlite_url}?timeout=0.01")
    await store.open()
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writer = GroupWriter(store, retry_delays=(), trial_interval=0.01)
    writer.put(write("t", 1), outcomes)
    async with anyio.create_task_group() as group:
        group.start_soon(writer.run)
        with anyio.fail_after(5):
            await store.tried.wait()
            assert "locked" in str(writer.trouble)
            other.execute("ROLLBACK")
            while writer.trouble is not None:
                await anyio.lowlevel.checkpoint()
        writer.close()
    [(_, error)] = outcomes.told
    assert error is not None  # it was given up long before
    assert other.execute("SELECT count(*) FROM claims").fetchone() == (0,)
    other.close()
    await store.close()


async def test_producers_wait_while_too_much_is_waiting(store_url: str, outcomes: Outcomes) -> None:
    store = FailingStore(store_url)
    await store.open()
    writer = GroupWriter(store, max_waiting=2)
    for number in range(1, 5):
        writer.put(write("t", number), outcomes)
    passed: list[bool] = []

    async def produce() -> None:
        await writer.room()
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

    def told(events: Sequence[Event], error: StoreError | None) -> None:
        outcomes(events, error)
        if len(outcomes.told) == 1:
            writer.put(write("u", 1), outcomes)  # what a task that is given up has still to say
            failed.set()

    async with anyio.create_task_group() as group:
        group.start_soon(writer.run)
        await anyio.wait_all_tasks_blocked()
        writer.hurry()
        writer.put(write("t", 1), told)
        with anyio.fail_after(10):
            await failed.wait()
            writer.close()
    assert [number for number, _ in outcomes.told] == [1, 1]
    assert all(error is not None for _, error in outcomes.told)
    assert store.batches == []
    await store.close()

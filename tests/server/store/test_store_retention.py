"""Retention: events expire some time after the end of their task, its snapshot stays."""

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event

from support.store_objects import LONG_AGO, first_kept, numbers_of, open_store, task, user_message, write
from tailrace.server.store.retention import BATCH
from tailrace.server.store.store import EventsDropped, PushConfig, Retention, Store, TaskFilter, TaskWrite
from tailrace.server.store.writer import GroupWriter
from tailrace.streaming import Event, TaskState
from tailrace.streaming.a2a.requests import TaskPushNotificationConfig
from tailrace.wrappers import StoreError

DONE = TaskState.COMPLETED


def webhook(delivered: int = 0) -> PushConfig:
    return PushConfig(
        "me", "1.0", TaskPushNotificationConfig(task_id="t", id="w", url="https://example.com/"), delivered
    )


def finished(task_id: str, events: int, updated: datetime = LONG_AGO) -> TaskWrite:
    return write(task_id, *range(1, events + 1), state=DONE, updated=updated)


async def drop_all(store: Store) -> None:
    while await store.drop_expired():
        pass


async def test_the_events_of_a_task_that_is_over_for_long_are_dropped_and_the_task_stays(
    store_url: str,
) -> None:
    async with open_store(store_url) as store:
        now = datetime.now(UTC)
        await store.commit([finished("t", 5), finished("u", 5, updated=now - timedelta(hours=23))])
        await store.commit([TaskWrite("t", "me", "c", (), messages=(user_message("one"),))])
        assert await first_kept(store, "t") == 1
        await drop_all(store)
        assert await first_kept(store, "t") == 6
        stored = await store.load_task("t", "me")
        assert stored is not None
        assert (stored.number, stored.task) == (5, task("t", DONE))
        assert await store.load_conversation("c", "me", 9) == [user_message("one")]
        # A subscriber with all events has missed none; others get the first number still available.
        assert await store.load_events("t", 5) == []
        for after in (0, 1, 4):
            for max_bytes in (None, 100):
                with pytest.raises(EventsDropped) as caught:
                    await store.load_events("t", after, max_bytes=max_bytes)
                assert caught.value.first == 6
        # Too recent to expire.
        assert await numbers_of(store, "u") == [1, 2, 3, 4, 5]
        assert await first_kept(store, "u") == 1


@pytest.mark.parametrize("state", [state for state in TaskState if not state.terminal])
async def test_nothing_is_dropped_of_a_task_that_is_not_over(store_url: str, state: TaskState) -> None:
    async with open_store(store_url, Retention(events=0, tasks=0)) as store:
        await store.commit([write("t", 1, 2, state=state)])
        await drop_all(store)
        assert await numbers_of(store, "t") == [1, 2]


async def test_events_that_a_webhook_has_yet_to_receive_are_not_dropped(store_url: str) -> None:
    async with open_store(store_url, Retention(events=0, tasks=0)) as store:
        await store.commit([finished("t", 3)])
        await store.put_push_config(webhook(delivered=2))
        await drop_all(store)
        assert await numbers_of(store, "t") == [1, 2, 3]
        await store.mark_delivered("t", "w", 3)
        await drop_all(store)
        assert await store.load_task("t", "me") is None


async def test_with_no_bound_everything_is_kept(store_url: str) -> None:
    async with open_store(store_url, Retention(events=None)) as store:
        await store.commit([finished("t", 3)])
        assert not await store.drop_expired()
        assert await numbers_of(store, "t") == [1, 2, 3]


async def test_a_task_is_dropped_with_all_of_its_messages(store_url: str) -> None:
    week = Retention(events=None, tasks=7 * 24 * 3600.0)
    async with open_store(store_url, week) as store:
        yesterday = datetime.now(UTC) - timedelta(days=1)
        await store.commit([finished("t", 3), finished("u", 3, updated=yesterday)])
        for name in "tu":
            await store.commit([TaskWrite(name, "me", "c", (), messages=(user_message(name),))])
        await store.put_push_config(webhook(delivered=3))
        await drop_all(store)
        assert [
            each.id for _, each in (await store.list_tasks("me", TaskFilter(), after=None, limit=9))[0]
        ] == ["u"]
        assert await store.load_events("t", 0) == []  # as for an unknown task
        assert await store.load_push_configs("t", "me") == []
        assert await store.load_conversation("c", "me", 9) == [user_message("u")]
        assert await numbers_of(store, "u") == [1, 2, 3]


async def test_a_long_task_is_dropped_in_small_transactions_the_oldest_events_first(store_url: str) -> None:
    async with open_store(store_url) as store:
        length = 2 * BATCH + 10
        await store.commit([finished("t", length)])
        assert await store.drop_expired()
        first = await first_kept(store, "t")
        assert first == BATCH + 1
        assert (await numbers_of(store, "t", first - 1))[0] == first
        with pytest.raises(EventsDropped) as caught:
            await store.load_events("t", first - 2)
        assert caught.value.first == first
        await drop_all(store)
        assert await first_kept(store, "t") == length + 1
        assert not await store.drop_expired()


async def test_what_a_snapshot_does_not_hold_is_not_dropped(store_url: str) -> None:
    async with open_store(store_url) as store:
        await store.commit([finished("t", 3)])
        await store.commit([write("t", 4)])
        await drop_all(store)
        assert await first_kept(store, "t") == 4
        assert await numbers_of(store, "t", 3) == [4]


async def test_a_task_that_is_kept_without_a_log_does_not_go_back_in_number(store_url: str) -> None:
    async with open_store(store_url) as store:
        await store.commit([finished("t", 3)])
        await drop_all(store)
        await store.commit([TaskWrite("t", "me", "c", (), task("t", DONE))])
        stored = await store.load_task("t", "me")
        assert stored is not None
        assert stored.number == 3


@given(lengths=st.lists(st.integers(0, 30), max_size=8), batch=st.integers(1, 40))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_the_batches_everything_is_dropped_and_no_reader_sees_a_gap(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], batch: int
) -> None:
    from tailrace.server.store import retention

    monkeypatch.setattr(retention.drop_expired, "__defaults__", (batch,))
    async with open_store("sqlite://") as store:
        for at, length in enumerate(lengths):
            await store.commit([finished(f"t{at}", length)])
        more = True
        while more:
            more = await store.drop_expired()
            for at, length in enumerate(lengths):
                first = await first_kept(store, f"t{at}")
                assert await numbers_of(store, f"t{at}", first - 1) == list(range(first, length + 1))
        assert [await first_kept(store, f"t{at}") for at in range(len(lengths))] == [n + 1 for n in lengths]


async def test_looking_for_what_is_to_be_dropped_does_not_look_at_every_task(sqlite_url: str) -> None:
    queries: list[tuple[str, Any]] = []

    def remember(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        queries.append((statement, values))

    async with open_store(sqlite_url, Retention(events=0, tasks=0)) as store:
        await store.drop_expired()  # the first one also empties the log
        event.listen(Engine, "before_cursor_execute", remember)
        try:
            assert not await store.drop_expired()
        finally:
            event.remove(Engine, "before_cursor_execute", remember)
    database = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    plans = [database.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall() for query, values in queries]
    database.close()
    # One for tasks, one for the events of tasks that have some.
    for plan, index in zip(plans, ("tasks_by_state_and_time", "tasks_with_events"), strict=True):
        assert any(f"SEARCH tasks USING INDEX {index} " in row[3] for row in plan)
        assert not any(row[3].startswith("SCAN") for row in plan)


class WatchedStore(Store):
    """A store that records the order of its writes, and signals when nothing is left to drop."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.transactions: list[str] = []
        self.dropped = anyio.Event()
        self.failures = 0

    async def commit(self, writes: Sequence[TaskWrite]) -> None:
        await super().commit(writes)
        self.transactions.append("write")

    async def drop_expired(self) -> bool:
        if self.failures:
            self.failures -= 1
            raise StoreError("cannot write to the store: the disk is full")
        more = await super().drop_expired()
        self.transactions.append("drop")
        if not more:
            self.dropped.set()
        return more


def unexpected(error: object) -> None:
    pytest.fail(f"not expected: {error}")


async def test_the_writer_drops_between_writes_while_others_write(store_url: str) -> None:
    store = WatchedStore(store_url)
    await store.open()
    await store.commit([finished("t", 3 * BATCH)])
    writer = GroupWriter(store, drop_pause=0)
    number = 0

    def write_on(_events: Sequence[Event]) -> None:
        """Write the next event as soon as one is persisted, so that the writer is never idle."""
        nonlocal number
        if not store.dropped.is_set():
            number += 1
            writer.add_write(write("u", number), write_on, unexpected)

    async with anyio.create_task_group() as group:
        group.start_soon(writer.run)
        write_on(())
        await store.dropped.wait()
        writer.close()
    assert await first_kept(store, "t") == 3 * BATCH + 1
    assert await numbers_of(store, "u") == list(range(1, number + 1))
    # Between any two drops, waiting writes are checked.
    assert ("drop", "drop") not in set(zip(store.transactions, store.transactions[1:], strict=False))
    await store.close()


async def test_a_store_in_trouble_drops_later_and_the_writer_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = WatchedStore("sqlite://")
    store.failures = 2
    await store.open()
    await store.commit([finished("t", 3)])
    async with anyio.create_task_group() as group:
        writer = GroupWriter(store, drop_interval=0, drop_pause=0)
        group.start_soon(writer.run)
        await store.dropped.wait()
        writer.close()
    assert await first_kept(store, "t") == 4
    assert (
        "expired rows cannot be deleted at present: cannot write to the store: the disk is full"
        in caplog.text
    )
    await store.close()

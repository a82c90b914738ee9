"""A task's log from the view of its subscribers: cursors, eviction, waiting and cancelling."""

from collections.abc import AsyncIterator

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.streaming.a2a.event import Event
from tailrace.streaming.task.event_log import EventsEvicted, TaskLog


def events(start: int, stop: int, size: int = 10) -> list[Event]:
    """Events with these numbers (the last included)."""
    return [Event(number, b"x" * size) for number in range(start, stop + 1)]


def numbers(read: list[Event]) -> list[int]:
    return [event.number for event in read]


def filled(count: int) -> TaskLog:
    log = TaskLog()
    log.publish(events(1, count))
    return log


async def follow(log: TaskLog, after: int) -> AsyncIterator[list[Event]]:
    """All events after a number, to the end of the log."""
    while batch := await log.read(after):
        after = batch[-1].number
        yield batch


# --- cursors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("after", "read"), [(0, [1, 2, 3]), (1, [2, 3]), (2, [3]), (3, []), (9, [])])
def test_a_reader_gets_what_comes_after_its_number(after: int, read: list[int]) -> None:
    assert numbers(filled(3).read_nowait(after)) == read


def test_reading_changes_nothing() -> None:
    log = filled(2)
    assert numbers(log.read_nowait(0)) == numbers(log.read_nowait(0)) == [1, 2]
    log.read_nowait(0).clear()
    assert numbers(log.read_nowait(0)) == [1, 2]


def test_a_log_goes_on_from_any_number() -> None:
    log = TaskLog(7)
    assert log.number == 7
    log.publish(events(8, 9))
    assert numbers(log.read_nowait(7)) == [8, 9]
    with pytest.raises(EventsEvicted) as raised:
        log.read_nowait(6)
    assert raised.value.first == 8


@pytest.mark.parametrize("number", [0, 1, 3, 9])
def test_a_number_that_is_missing_or_repeated_is_refused(number: int) -> None:
    log = filled(1)
    with pytest.raises(ValueError, match=f"event {number} cannot follow event 1"):
        log.publish(events(number, number))
    assert (log.number, numbers(log.read_nowait(0))) == (1, [1])


def test_a_batch_with_a_gap_is_refused_as_a_whole() -> None:
    log = filled(1)
    with pytest.raises(ValueError, match="cannot follow"):
        log.publish([*events(2, 3), *events(5, 5)])
    assert (log.number, numbers(log.read_nowait(0))) == (1, [1])
    log.publish(events(2, 2))
    assert numbers(log.read_nowait(0)) == [1, 2]


# --- eviction ---------------------------------------------------------------------------------------------------


def test_old_events_are_dropped_beyond_twice_the_bound() -> None:
    log = TaskLog(max_bytes=100, unread_bytes=0)
    log.publish(events(1, 20))
    assert numbers(log.read_nowait(0))[0] == 1
    log.publish(events(21, 21))
    with pytest.raises(EventsEvicted) as raised:
        log.read_nowait(0)
    assert raised.value.first == 12
    assert numbers(log.read_nowait(11)) == list(range(12, 22))


def test_the_newest_event_is_held_however_large_it_is() -> None:
    log = TaskLog(max_bytes=10, unread_bytes=0)
    log.publish(events(1, 1, 1000))
    log.publish(events(2, 2, 1000))
    assert numbers(log.read_nowait(1)) == [2]


async def test_what_a_reader_was_woken_for_is_held_until_it_has_read_on() -> None:
    log = TaskLog(max_bytes=10, unread_bytes=1000)
    seen: list[int] = []
    async with anyio.create_task_group() as group:

        async def reader() -> None:
            async for batch in follow(log, 0):
                seen.extend(numbers(batch))

        group.start_soon(reader)
        await anyio.wait_all_tasks_blocked()
        for number in range(1, 41):
            log.publish(events(number, number))
        await anyio.wait_all_tasks_blocked()
        assert seen == list(range(1, 41))
        log.publish(events(41, 42))
        with pytest.raises(EventsEvicted):
            log.read_nowait(0)
        await anyio.wait_all_tasks_blocked()
        log.publish(events(43, 43))
        with pytest.raises(EventsEvicted):
            log.read_nowait(39)
        log.end()
    assert seen == list(range(1, 44))


def test_unread_events_have_a_bound_of_their_own() -> None:
    log = TaskLog(max_bytes=10, unread_bytes=200)
    log.publish(events(1, 19))
    assert numbers(log.read_nowait(0))[0] == 1
    log.publish(events(20, 21))
    with pytest.raises(EventsEvicted):
        log.read_nowait(0)


def test_a_reader_that_has_everything_is_never_behind() -> None:
    log = TaskLog(max_bytes=10, unread_bytes=0)
    log.publish(events(1, 50))
    assert log.read_nowait(50) == []


@given(batches=st.lists(st.lists(st.integers(0, 40), max_size=5), max_size=20), bound=st.integers(1, 60))
@settings(deadline=None)
def test_what_is_held_has_no_gap_and_stays_within_its_bound(batches: list[list[int]], bound: int) -> None:
    log = TaskLog(max_bytes=bound, unread_bytes=0)
    for sizes in batches:
        log.publish([Event(log.number + at, b"x" * size) for at, size in enumerate(sizes, 1)])
        for after in range(log.number + 1):
            cursor = after
            try:
                read = log.read_nowait(after)
            except EventsEvicted as behind:
                cursor = behind.first - 1
                read = log.read_nowait(cursor)
            assert cursor >= after
            assert numbers(read) == list(range(cursor + 1, log.number + 1))
            assert sum(len(event.body) for event in read[:-1]) <= 2 * bound


# --- waiting ----------------------------------------------------------------------------------------------------


async def test_a_reader_that_waits_is_woken_by_the_next_event() -> None:
    log = filled(1)
    found: list[int] = []

    async def reader() -> None:
        found.extend(numbers(await log.read(1)))

    async with anyio.create_task_group() as group:
        group.start_soon(reader)
        await anyio.wait_all_tasks_blocked()
        assert found == []
        log.publish(events(2, 3))
    assert found == [2, 3]


async def test_a_reader_does_not_wait_for_what_is_there() -> None:
    log = filled(2)
    with anyio.fail_after(0):
        assert numbers(await log.read(0)) == [1, 2]


async def test_readers_at_different_numbers_wait_each_for_itself() -> None:
    log = filled(3)
    found: dict[int, list[int]] = {}

    async def reader(after: int) -> None:
        found[after] = [number async for batch in follow(log, after) for number in numbers(batch)]

    async with anyio.create_task_group() as group:
        for after in range(4):
            group.start_soon(reader, after)
        await anyio.wait_all_tasks_blocked()
        log.publish(events(4, 5))
        await anyio.wait_all_tasks_blocked()
        log.publish(events(6, 6))
        log.end()
    assert found == {after: list(range(after + 1, 7)) for after in range(4)}


async def test_the_end_wakes_waiting_readers_and_is_permanent() -> None:
    log = filled(1)
    found: list[list[Event]] = []

    async def reader() -> None:
        found.append(await log.read(1))

    async with anyio.create_task_group() as group:
        group.start_soon(reader)
        group.start_soon(reader)
        await anyio.wait_all_tasks_blocked()
        log.end()
    assert found == [[], []]
    assert log.ended
    assert await log.read(1) == []
    assert numbers(await log.read(0)) == [1]


async def test_a_waiting_reader_that_leaves_affects_no_other() -> None:
    log = filled(1)
    found: list[int] = []

    async def reader() -> None:
        found.extend(numbers(await log.read(1)))

    async with anyio.create_task_group() as group:
        group.start_soon(reader)
        async with anyio.create_task_group() as leavers:
            leavers.start_soon(log.read, 1)
            await anyio.wait_all_tasks_blocked()
            leavers.cancel_scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert found == []
        log.publish(events(2, 2))
    assert found == [2]
    assert numbers(await log.read(0)) == [1, 2]


async def test_writing_never_waits_for_a_reader() -> None:
    log = TaskLog(max_bytes=1000)
    waiting = anyio.Event()

    async def stalled() -> None:
        async for _ in follow(log, 0):
            waiting.set()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(stalled)
        log.publish(events(1, 1))
        await waiting.wait()
        log.publish(events(2, 10_000))
        assert log.number == 10_000
        group.cancel_scope.cancel()


async def test_every_reader_sees_every_event_once_and_in_order_while_it_is_written() -> None:
    log = TaskLog()
    found: list[list[int]] = [[] for _ in range(5)]

    async def reader(number: int) -> None:
        async for batch in follow(log, 0):
            found[number] += numbers(batch)
            for _ in range(number):
                await checkpoint()  # subscribers of different speed

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(reader, number)
        for number in range(1, 101):
            log.publish(events(number, number))
            await checkpoint()
        log.end()
    assert found == [list(range(1, 101))] * 5

"""A task's log as its readers see it: cursors, what is dropped, waiting and leaving."""

from collections import deque

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.streaming.log import Behind, TaskLog
from tailrace.streaming.task import Event


def events(start: int, stop: int, size: int = 10) -> list[Event]:
    """Events of these numbers (the last included)."""
    return [Event(number, b"x" * size) for number in range(start, stop + 1)]


def numbers(read: list[Event]) -> list[int]:
    return [event.number for event in read]


def filled(count: int) -> TaskLog:
    log = TaskLog()
    log.publish(events(1, count))
    return log


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
    with pytest.raises(Behind) as raised:
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


# --- what is dropped --------------------------------------------------------------------------------------------


def test_old_events_are_dropped_beyond_twice_the_bound() -> None:
    log = TaskLog(max_bytes=100, unread_bytes=0)
    log.publish(events(1, 20))
    assert numbers(log.read_nowait(0))[0] == 1
    log.publish(events(21, 21))
    with pytest.raises(Behind) as raised:
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
            async for batch in log.follow(0):
                seen.extend(numbers(batch))

        group.start_soon(reader)
        await anyio.wait_all_tasks_blocked()
        for number in range(1, 41):
            log.publish(events(number, number))
        await anyio.wait_all_tasks_blocked()
        assert seen == list(range(1, 41))
        log.publish(events(41, 42))
        with pytest.raises(Behind):
            log.read_nowait(0)
        await anyio.wait_all_tasks_blocked()
        log.publish(events(43, 43))
        with pytest.raises(Behind):
            log.read_nowait(39)
        log.end()
    assert seen == list(range(1, 44))


def test_what_nobody_has_read_is_held_within_a_bound_of_its_own() -> None:
    log = TaskLog(max_bytes=10, unread_bytes=200)
    log.publish(events(1, 19))
    assert numbers(log.read_nowait(0))[0] == 1
    log.publish(events(20, 21))
    with pytest.raises(Behind):
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
            except Behind as behind:
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
        found[after] = [number async for batch in log.follow(after) for number in numbers(batch)]

    async with anyio.create_task_group() as group:
        for after in range(4):
            group.start_soon(reader, after)
        await anyio.wait_all_tasks_blocked()
        log.publish(events(4, 5))
        await anyio.wait_all_tasks_blocked()
        log.publish(events(6, 6))
        log.end()
    assert found == {after: list(range(after + 1, 7)) for after in range(4)}


async def test_the_end_wakes_whoever_waits_and_stays() -> None:
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


async def test_following_ends_with_the_log_and_misses_nothing() -> None:
    log = filled(3)
    log.end()
    assert [numbers(batch) async for batch in log.follow(1)] == [[2, 3]]
    assert [batch async for batch in log.follow(3)] == []


async def test_a_follower_that_falls_behind_is_told() -> None:
    log = TaskLog(max_bytes=50, unread_bytes=0)
    log.publish(events(1, 2))
    follower = log.follow(0)
    assert numbers(await anext(follower)) == [1, 2]
    log.publish(events(3, 30))
    with pytest.raises(Behind) as raised:
        await anext(follower)
    assert numbers(log.read_nowait(raised.value.first - 1))[-1] == 30


async def test_a_waiting_reader_that_leaves_touches_nobody() -> None:
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
        async for _ in log.follow(0):
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
        async for batch in log.follow(0):
            found[number] += numbers(batch)
            for _ in range(number):
                await checkpoint()  # readers of different pace

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(reader, number)
        for number in range(1, 101):
            log.publish(events(number, number))
            await checkpoint()
        log.end()
    assert found == [list(range(1, 101))] * 5


# --- taking where it is shown -----------------------------------------------------------------------------------


class Taker:
    """Takes what is new in a log where it is shown, so many times.

    Attributes:
        after: The number of the last event that was taken.
        calls: How often it was asked.
        is_woken: It waits no more.
    """

    def __init__(self, log: TaskLog, times: int = 1_000_000) -> None:
        self.after = log.number
        self.calls = 0
        self.is_woken = False
        self._log = log
        self._times = times

    def take(self) -> bool:
        self.calls += 1
        events = self._log.newest(self.after)
        if not events or self._times == 0:
            return False
        self._times -= 1
        assert numbers(events) == list(range(self.after + 1, self._log.number + 1))
        self.after = self._log.number
        return True

    async def wait(self) -> None:
        await self._log.change(self.take)
        self.is_woken = True


async def test_who_takes_what_is_shown_waits_on() -> None:
    log = filled(2)
    taker = Taker(log)
    async with anyio.create_task_group() as group:
        group.start_soon(taker.wait)
        await anyio.wait_all_tasks_blocked()
        for number in (3, 4):
            log.publish(events(number, number))
            await checkpoint()
            assert taker.after == number
        log.publish(events(5, 9))
        await checkpoint()
        assert taker.after == 9
        await anyio.wait_all_tasks_blocked()
        assert not taker.is_woken
        assert taker.calls == 3
        group.cancel_scope.cancel()


async def test_what_is_shown_together_is_taken_together_and_held_until_then() -> None:
    log = TaskLog(max_bytes=10, unread_bytes=1000)
    taker = Taker(log)
    async with anyio.create_task_group() as group:
        group.start_soon(taker.wait)
        await anyio.wait_all_tasks_blocked()
        for number in range(1, 41):
            log.publish(events(number, number))
        await checkpoint()
        assert (taker.after, taker.calls) == (40, 1)
        group.cancel_scope.cancel()


async def test_who_takes_no_more_is_woken_and_finds_all_that_was_not_taken() -> None:
    log = filled(1)
    taker = Taker(log, 2)
    async with anyio.create_task_group() as group:
        group.start_soon(taker.wait)
        await anyio.wait_all_tasks_blocked()
        for number in range(2, 7):
            log.publish(events(number, number))
            await checkpoint()
    assert taker.is_woken
    assert taker.calls == 3  # not again, once it has refused
    assert taker.after == 3
    assert numbers(log.newest(taker.after) or []) == [4, 5, 6]


async def test_the_end_of_the_log_ends_the_wait_of_who_takes() -> None:
    log = filled(1)
    taker = Taker(log)
    async with anyio.create_task_group() as group:
        group.start_soon(taker.wait)
        await anyio.wait_all_tasks_blocked()
        log.publish(events(2, 3))
        log.end()
    assert taker.is_woken
    assert taker.after == 3
    assert log.newest(3) == []


async def test_who_takes_and_leaves_is_not_asked_again_and_touches_nobody() -> None:
    log = filled(1)
    stays, leaves, leaves_at_once = Taker(log), Taker(log), Taker(log)
    async with anyio.create_task_group() as group:
        group.start_soon(stays.wait)
        async with anyio.create_task_group() as leavers:
            leavers.start_soon(leaves.wait)
            await anyio.wait_all_tasks_blocked()
            log.publish(events(2, 2))
            await checkpoint()
            leavers.cancel_scope.cancel()
        async with anyio.create_task_group() as leavers:
            leavers.start_soon(leaves_at_once.wait)
            await anyio.wait_all_tasks_blocked()
            leavers.cancel_scope.cancel()
            log.publish(events(3, 3))  # before it has learned that it is to leave
        log.publish(events(4, 5))
        await checkpoint()
        assert (stays.after, stays.calls) == (5, 3)
        log.end()
    assert (leaves.after, leaves.calls) == (2, 1)
    assert leaves_at_once.calls == 0
    assert (stays.is_woken, leaves.is_woken, leaves_at_once.is_woken) == (True, False, False)


async def test_those_who_take_and_those_who_are_woken_each_have_everything() -> None:
    log = TaskLog()
    takers = [Taker(log), Taker(log, 3), Taker(log, 0), Taker(log)]
    read: list[list[int]] = [[], []]

    async def reader(at: int) -> None:
        async for batch in log.follow(0):
            read[at] += numbers(batch)

    async with anyio.create_task_group() as group:
        for at in range(2):
            group.start_soon(takers[at].wait)
            group.start_soon(reader, at)
            group.start_soon(takers[2 + at].wait)
        await anyio.wait_all_tasks_blocked()
        for number in range(1, 6):
            log.publish(events(number, number))
            await checkpoint()
            await anyio.wait_all_tasks_blocked()
        assert [taker.after for taker in takers] == [5, 3, 0, 5]
        assert [taker.is_woken for taker in takers] == [False, True, True, False]
        for taker in takers:
            assert numbers(log.read_nowait(taker.after)) == list(range(taker.after + 1, 6))
        log.end()
    assert read == [[1, 2, 3, 4, 5]] * 2
    assert all(taker.is_woken for taker in takers)


def first_held(log: TaskLog) -> int:
    """The number of the oldest event in memory."""
    try:
        log.read_nowait(0)
    except Behind as behind:
        return behind.first
    return 1


async def test_nothing_is_held_for_who_takes_at_once() -> None:
    log = TaskLog(max_bytes=10, unread_bytes=1000)
    taker = Taker(log)
    async with anyio.create_task_group() as group:
        group.start_soon(taker.wait)
        await anyio.wait_all_tasks_blocked()
        for number in range(1, 101):
            log.publish(events(number, number))
            await checkpoint()
            assert first_held(log) >= number - 2
        assert taker.after == 100
        group.cancel_scope.cancel()


async def test_what_was_refused_is_held_until_it_is_read_but_within_the_bound_of_what_is_unread() -> None:
    log = TaskLog(max_bytes=10, unread_bytes=200)
    taker = Taker(log, 50)
    async with anyio.create_task_group() as group:
        group.start_soon(taker.wait)
        await anyio.wait_all_tasks_blocked()
        for number in range(1, 51):
            log.publish(events(number, number))
            await checkpoint()
        assert taker.after == 50
        for number in range(51, 68):
            log.publish(events(number, number))
            await checkpoint()
            assert numbers(log.newest(50) or []) == list(range(51, number + 1))
        assert taker.after == 50
        for number in range(68, 201):
            log.publish(events(number, number))
            await checkpoint()
            assert number - first_held(log) <= 20
        assert log.newest(50) == []  # they are in the store
    assert taker.is_woken


@pytest.mark.no_cover
@given(
    steps=st.lists(st.sampled_from(["one", "three", "run", "leave"]), max_size=30),
    answers=st.lists(st.booleans(), max_size=30),
)
async def test_whatever_is_refused_everything_is_taken_or_found_once_and_in_order(
    steps: list[str], answers: list[bool]
) -> None:
    log, got, refusals, to_do = TaskLog(), list[int](), iter(answers), deque(steps)

    def take() -> bool:
        found = log.newest(got[-1] if got else 0)
        if not found or not next(refusals, True):
            return False
        got.extend(numbers(found))
        return True

    async def reader() -> None:
        while (found := log.newest(got[-1] if got else 0)) != []:
            if found is None:
                await log.change(take)
            else:
                got.extend(numbers(found))

    while to_do:
        async with anyio.create_task_group() as group:
            group.start_soon(reader)
            await anyio.wait_all_tasks_blocked()
            while to_do and (step := to_do.popleft()) != "leave":
                if step == "run":
                    await anyio.wait_all_tasks_blocked()
                    assert got == list(range(1, log.number + 1))
                else:
                    log.publish(events(log.number + 1, log.number + (1 if step == "one" else 3)))
            group.cancel_scope.cancel()
    log.end()
    await reader()
    assert got == list(range(1, log.number + 1))

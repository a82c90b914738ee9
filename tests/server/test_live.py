"""A reader of a task that has the newest events handed on where they are shown, and the others in batches."""

from collections.abc import Iterable, Sequence
from contextlib import aclosing

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.written import ASKED, MESSAGE, PIECE, WORKING, written
from tailrace.server.live import ends_turn
from tailrace.server.operations import EventStream
from tailrace.streaming import Event, TaskState
from tailrace.streaming.a2a.models import StreamResponse
from tailrace.streaming.log import TaskLog


class Reader:
    """Reads a stream, and takes at once what it is willing to.

    Attributes:
        got: All events, in the order in which they came.
        taken: Those that were taken at once.
        asked: How often something was to be taken.
        is_over: The stream has ended.
    """

    def __init__(self, stream: EventStream, answers: Iterable[bool] = ()) -> None:
        self.got: list[Event] = []
        self.taken: list[Event] = []
        self.asked = 0
        self.is_over = False
        self._answers = iter(answers)
        self._stream = stream
        self._has_batch = False
        self._come = anyio.Event()
        self._go_on = anyio.Event()
        self._go_on.set()
        stream.take_at_once(self._take)

    def stall(self) -> None:
        """Ask for nothing after the next batch."""
        if self._go_on.is_set():
            self._go_on = anyio.Event()

    def go_on(self) -> None:
        self._go_on.set()

    async def until(self, count: int) -> None:
        """Wait until so many events have come, and it waits for more."""
        while len(self.got) < count:
            await self._come.wait()
        await anyio.wait_all_tasks_blocked()

    async def read(self) -> None:
        async with aclosing(self._stream.batches()) as batches:
            async for batch in batches:
                self.got += batch
                self._come.set()
                self._come = anyio.Event()
                self._has_batch = True
                await self._go_on.wait()
                self._has_batch = False
        self.is_over = True

    def _take(self, events: Sequence[Event]) -> bool:
        assert events
        assert not self._has_batch, "something was handed on before the batch that came first"
        assert not self.is_over
        self.asked += 1
        if not next(self._answers, True):
            return False
        self.got += events
        self.taken += events
        return True


async def test_what_comes_while_it_waits_is_taken_and_no_batch_has_it() -> None:
    async with written() as task:
        reader = Reader(EventStream(task.subscription()), [True, False, True])
        async with anyio.create_task_group() as group:
            group.start_soon(reader.read)
            await reader.until(3)
            assert reader.got == task.events
            assert reader.taken == []
            await task.show(PIECE)
            assert reader.got == task.events  # before the reader ran
            await task.show_together(PIECE, PIECE)
            assert reader.got == task.events[:-2]
            await reader.until(6)
            await task.show_together(PIECE, PIECE, PIECE)
            assert reader.got == task.events
            await task.end()
        assert reader.is_over
        assert reader.got == task.events
        assert [event.number for event in reader.taken] == [4, *range(7, len(task.events) + 1)]


async def test_what_is_given_first_comes_before_what_is_taken() -> None:
    async with written() as task:
        first = Event(3, StreamResponse(task=task.record.snapshot()).to_json(), TaskState.WORKING)
        reader = Reader(EventStream(task.subscription(3, first)))
        reader.stall()
        async with anyio.create_task_group() as group:
            group.start_soon(reader.read)
            await task.show(PIECE)
            await reader.until(1)
            await task.show(PIECE)
            assert reader.got == [first]
            reader.go_on()
            await reader.until(3)
            await task.show(PIECE)
            assert reader.got == [first, *task.events[3:]]
            assert reader.taken == task.events[5:]
            await task.end()
        assert reader.got == [first, *task.events[3:]]


async def test_a_state_that_may_end_the_stream_is_for_the_batches() -> None:
    async with written() as task:
        reader = Reader(EventStream(task.subscription(), until_interrupted=True))
        async with anyio.create_task_group() as group:
            group.start_soon(reader.read)
            await reader.until(3)
            await task.show(PIECE)
            assert reader.asked == 1
            await task.show_together(PIECE, ASKED, PIECE)
        assert reader.asked == 1
        assert reader.got == task.events[:-1]
        assert reader.got[-1].state is TaskState.INPUT_REQUIRED
        await task.show(PIECE)
        await task.end()
        assert reader.asked == 1


async def test_a_state_that_does_not_end_the_stream_is_taken_where_it_goes_on_after_it() -> None:
    async with written() as task:
        reader = Reader(EventStream(task.subscription()))
        async with anyio.create_task_group() as group:
            group.start_soon(reader.read)
            await reader.until(3)
            await task.show(ASKED, WORKING, PIECE)
            assert reader.taken == task.events[-3:]
            await task.end()
            assert reader.got == task.events
        assert reader.is_over


@pytest.mark.parametrize("history_length", [0, 1])
async def test_nothing_is_taken_from_a_stream_whose_tasks_come_with_some_of_their_history(
    history_length: int,
) -> None:
    async with written() as task:
        reader = Reader(EventStream(task.subscription(), history_length=history_length))
        async with anyio.create_task_group() as group:
            group.start_soon(reader.read)
            for count in range(3, 6):
                await reader.until(count)
                await task.show(PIECE)
            await task.end()
        assert reader.asked == 0
        assert reader.got[1:] == task.events[1:]
        begun = StreamResponse.model_validate_json(reader.got[0].body).task
    assert begun is not None
    assert len(begun.history) == history_length


async def test_a_direct_answer_is_not_taken() -> None:
    reader = Reader(EventStream(MESSAGE))
    await reader.read()
    assert reader.asked == 0
    assert [event.number for event in reader.got] == [0]


async def test_a_reader_that_begins_behind_is_given_everything_and_then_takes() -> None:
    async with written(TaskLog(max_bytes=100, unread_bytes=0)) as task:
        await task.show(*[PIECE] * 50)
        reader = Reader(EventStream(task.subscription()))
        async with anyio.create_task_group() as group:
            group.start_soon(reader.read)
            await reader.until(53)
            assert reader.asked == 0
            await task.show(PIECE)
            assert reader.taken == task.events[-1:]
            await task.end()
        assert reader.got == task.events


async def test_what_is_too_much_to_be_held_is_read_from_the_store() -> None:
    async with written(TaskLog(max_bytes=100, unread_bytes=0)) as task:
        reader = Reader(EventStream(task.subscription()))
        async with anyio.create_task_group() as group:
            group.start_soon(reader.read)
            await reader.until(3)
            await task.show_together(*[PIECE] * 50)
            assert reader.asked == 0
            await reader.until(53)
            await task.show(PIECE)
            assert reader.taken == task.events[-1:]
            await task.end()
        assert reader.got == task.events


async def test_a_reader_that_leaves_takes_nothing_more_and_another_goes_on() -> None:
    async with written() as task:
        stays, leaves = Reader(EventStream(task.subscription())), Reader(EventStream(task.subscription()))
        async with anyio.create_task_group() as group:
            group.start_soon(stays.read)
            async with anyio.create_task_group() as leavers:
                leavers.start_soon(leaves.read)
                await stays.until(3)
                await leaves.until(3)
                await task.show(PIECE)
                leavers.cancel_scope.cancel()
            await task.show(PIECE)
            await task.end()
        assert stays.got == task.events
        assert leaves.taken == task.events[3:4]


STEPS = st.lists(
    st.sampled_from(["one", "three", "three together", "ask", "ask and go on", "run", "stall", "go on"]),
    max_size=40,
)


@pytest.mark.no_cover
@given(
    steps=STEPS,
    before=st.integers(0, 30),
    after=st.integers(0, 3),
    answers=st.lists(st.booleans(), max_size=40),
    until_interrupted=st.booleans(),
    held=st.sampled_from([1, 200, 100_000]),
)
async def test_whatever_is_refused_every_event_comes_once_and_in_order(
    steps: list[str], before: int, after: int, answers: list[bool], until_interrupted: bool, held: int
) -> None:
    async with written(TaskLog(max_bytes=held, unread_bytes=2 * held)) as task:
        await task.show(*[PIECE] * before)
        stream = EventStream(task.subscription(after), until_interrupted=until_interrupted)
        reader = Reader(stream, answers)
        async with anyio.create_task_group() as group:
            group.start_soon(reader.read)
            for step in steps:
                toggle = WORKING if task.record.state is TaskState.INPUT_REQUIRED else ASKED
                match step:
                    case "one":
                        await task.show(PIECE)
                    case "three":
                        await task.show(PIECE, PIECE, PIECE)
                    case "three together":
                        await task.show_together(PIECE, PIECE, PIECE)
                    case "ask":
                        await task.show(toggle)
                    case "ask and go on":
                        await task.show_together(PIECE, toggle, PIECE)
                    case "stall":
                        reader.stall()
                    case "go on":
                        reader.go_on()
                    case _:
                        await anyio.wait_all_tasks_blocked()
            await task.end()
            reader.go_on()
        expected = task.events[after:]
        if until_interrupted:
            last = next(at for at, event in enumerate(expected) if ends_turn(event.state))
            expected = expected[: last + 1]
            assert all(event.state is None for event in reader.taken)
        assert reader.is_over
        assert reader.got == expected

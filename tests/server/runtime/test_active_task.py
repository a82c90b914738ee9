"""Subscriptions: cursors into a task's log, independent of how much of it is in memory."""

from contextlib import aclosing

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.written_task import MESSAGE, PIECE, QUESTION, WORKING, written
from tailrace.server.runtime.active_task import ends_turn
from tailrace.server.runtime.event_stream import EventStream
from tailrace.streaming import Event, TaskState
from tailrace.streaming.a2a.models import StreamResponse
from tailrace.streaming.task.event_log import TaskLog


class Reader:
    """Reads a stream to its end.

    Attributes:
        got: All events, in order of arrival.
        is_over: Set when the stream has ended.
    """

    def __init__(self, stream: EventStream) -> None:
        self.got: list[Event] = []
        self.is_over = False
        self._stream = stream
        self._come = anyio.Event()
        self._resumed = anyio.Event()
        self._resumed.set()

    def stall(self) -> None:
        """Stop reading after the next batch."""
        if self._resumed.is_set():
            self._resumed = anyio.Event()

    def resume(self) -> None:
        self._resumed.set()

    async def until(self, count: int) -> None:
        """Wait until that many events have arrived and the reader is waiting for more."""
        while len(self.got) < count:
            await self._come.wait()
        await anyio.wait_all_tasks_blocked()

    async def read(self) -> None:
        async with aclosing(self._stream.batches()) as batches:
            async for batch in batches:
                self.got += batch
                self._come.set()
                self._come = anyio.Event()
                await self._resumed.wait()
        self.is_over = True


async def test_the_first_event_comes_before_those_after_it() -> None:
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
            reader.resume()
            await reader.until(3)
            await task.end()
        assert reader.got == [first, *task.events[3:]]


@pytest.mark.parametrize("history_length", [0, 1])
async def test_the_task_comes_with_so_much_of_its_history(history_length: int) -> None:
    async with written() as task:
        reader = Reader(EventStream(task.subscription(), history_length=history_length))
        async with anyio.create_task_group() as group:
            group.start_soon(reader.read)
            for count in range(3, 6):
                await reader.until(count)
                await task.show(PIECE)
            await task.end()
        assert reader.got[1:] == task.events[1:]
        begun = StreamResponse.model_validate_json(reader.got[0].body).task
    assert begun is not None
    assert len(begun.history) == history_length


async def test_a_direct_answer_is_one_event_without_a_number() -> None:
    reader = Reader(EventStream(MESSAGE))
    await reader.read()
    assert [event.number for event in reader.got] == [0]


async def test_a_reader_that_leaves_touches_no_other() -> None:
    async with written() as task:
        stays, leaves = Reader(EventStream(task.subscription())), Reader(EventStream(task.subscription()))
        async with anyio.create_task_group() as group:
            group.start_soon(stays.read)
            async with anyio.create_task_group() as leavers:
                leavers.start_soon(leaves.read)
                await stays.until(3)
                await leaves.until(3)
                await task.show(PIECE)
                await leaves.until(4)
                leavers.cancel_scope.cancel()
            await task.show(PIECE)
            await task.end()
        assert stays.got == task.events
        assert leaves.got == task.events[:4]


STEPS = st.lists(
    st.sampled_from(["one", "three", "three together", "ask", "ask and continue", "run", "stall", "resume"]),
    max_size=40,
)


LARGE = 100_000


@pytest.mark.no_cover
@example(
    steps=["run", "one", "run", "three together"], before=0, after=0, until_interrupted=False, held=LARGE
)
@example(steps=["run", "one", "ask and continue"], before=0, after=0, until_interrupted=True, held=LARGE)
@example(steps=["run", "ask", "ask", "one"], before=0, after=0, until_interrupted=False, held=LARGE)
@example(steps=["run", "one"], before=50, after=0, until_interrupted=False, held=1)
@example(steps=["run", *["three together"] * 17], before=0, after=0, until_interrupted=False, held=1)
@given(
    steps=STEPS,
    before=st.integers(0, 30),
    after=st.integers(0, 3),
    until_interrupted=st.booleans(),
    held=st.sampled_from([1, 200, LARGE]),
)
async def test_every_event_comes_once_and_in_order(
    steps: list[str], before: int, after: int, until_interrupted: bool, held: int
) -> None:
    async with written(TaskLog(max_bytes=held, unread_bytes=2 * held)) as task:
        await task.show(*[PIECE] * before)
        stream = EventStream(task.subscription(after), until_interrupted=until_interrupted)
        reader = Reader(stream)
        async with anyio.create_task_group() as group:
            group.start_soon(reader.read)
            for step in steps:
                toggle = WORKING if task.record.state is TaskState.INPUT_REQUIRED else QUESTION
                match step:
                    case "one":
                        await task.show(PIECE)
                    case "three":
                        await task.show(PIECE, PIECE, PIECE)
                    case "three together":
                        await task.show_together(PIECE, PIECE, PIECE)
                    case "ask":
                        await task.show(toggle)
                    case "ask and continue":
                        await task.show_together(PIECE, toggle, PIECE)
                    case "stall":
                        reader.stall()
                    case "resume":
                        reader.resume()
                    case _:
                        await anyio.wait_all_tasks_blocked()
            await task.end()
            reader.resume()
        expected = task.events[after:]
        if until_interrupted:
            last = next(at for at, event in enumerate(expected) if ends_turn(event.state))
            expected = expected[: last + 1]
        assert reader.is_over
        assert reader.got == expected

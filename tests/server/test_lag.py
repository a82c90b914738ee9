"""Lagging subscribers receive a snapshot of the task and continue from it."""

from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from support.engines import Updates, read, start, text_of
from support.nodes import RunEngine
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import FunctionHandler, Turn
from tailrace.server.store.store import Retention, Store
from tailrace.streaming import ArtifactUpdate, Event, StatusUpdate, TaskState, TextDelta
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role, StreamResponse, Task
from tailrace.streaming.task.task_record import TaskRecord

PIECE = "0123456789" * 20
COUNT = 10_000  # deltas: more than a task's log holds in memory
MESSAGE = Message(message_id="m", role=Role.USER, parts=(Part(text="hello"),))


def fold(events: list[Event]) -> Task:
    """Return the text of a client that applies events in order."""
    first = StreamResponse.model_validate_json(events[0].body).task
    assert first is not None
    record = TaskRecord(first, events[0].number)
    for event in events[1:]:
        # A snapshot of an artifact has no number of its own; the status event after it advances the number.
        if event.number:
            record.number = event.number - 1
        record.replay(Event(record.number + 1, event.body, event.state))
        if not event.number:
            record.number -= 1
    return record.snapshot()


class Writer:
    """A handler that writes a long text in two halves, after a signal."""

    def __init__(self) -> None:
        self.begin = anyio.Event()
        self.half = anyio.Event()
        self.go_on = anyio.Event()

    async def handle(self, turn: Turn) -> Updates:
        yield StatusUpdate(TaskState.WORKING)
        yield ArtifactUpdate(Artifact(artifact_id="text", name="Answer", parts=(Part(text=""),)), last=False)
        await self.begin.wait()
        for number in range(COUNT):
            if number == COUNT // 2:
                self.half.set()
                await self.go_on.wait()
            yield TextDelta("text", PIECE)


async def test_a_reader_that_falls_behind_is_given_the_task_as_it_stands_and_misses_nothing(
    run_engine: RunEngine,
) -> None:
    writer = Writer()
    async with run_engine(writer.handle, max_lag=1_000) as engine:
        started = await start(engine)
        seen: list[Event] = []
        async with aclosing(started.batches()) as batches:
            while len(seen) < 3:
                seen += await anext(batches)
            writer.begin.set()  # the subscriber is up to date and stops reading
            await writer.half.wait()
            other_reader = await engine.subscribe(started.task_id)  # before the task ends
            writer.go_on.set()
            await read(other_reader)
            async for batch in batches:
                seen += batch
        task = await engine.get_task(started.task_id)
        other = await read(await engine.subscribe(started.task_id, after=0))
    assert [event.number for event in other] == list(range(1, len(other) + 1))
    assert len(other) > COUNT
    assert len(seen) < COUNT // 2
    numbers = [event.number for event in seen if event.number]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == other[-1].number
    assert text_of(fold(seen)) == text_of(fold(other)) == text_of(task) == PIECE * COUNT
    assert fold(seen).status == task.status


async def test_what_was_left_out_may_be_had_by_its_numbers(run_engine: RunEngine) -> None:
    writer = Writer()
    writer.begin.set()
    writer.go_on.set()
    async with run_engine(writer.handle, max_lag=1_000) as engine:
        started = await start(engine)
        await read(started)
        again = await read(await engine.subscribe(started.task_id, after=0))
    assert [event.number for event in again] == list(range(1, len(again) + 1))
    assert text_of(fold(again)) == PIECE * COUNT


@pytest.mark.parametrize("after", [0, 1, 700])
async def test_a_reader_whose_events_are_no_longer_kept_is_given_the_task(tmp_path: Path, after: int) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    writer = Writer()
    writer.begin.set()
    writer.go_on.set()
    store = Store(url, Retention(events=1e-6))
    async with Engine(store, FunctionHandler(writer.handle)).running() as engine:
        started = await start(engine)
        await read(started)
        await anyio.wait_all_tasks_blocked()  # the task is no longer in memory
        while await store.drop_expired():
            pass
        events = await read(await engine.subscribe(started.task_id, after=after))
    assert 0 < len(events) < 10
    begun = TaskRecord.create(MESSAGE).submitted()
    assert text_of(fold([begun, *events])) == PIECE * COUNT
    assert events[-1].state is TaskState.COMPLETED

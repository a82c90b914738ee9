"""The engine: turns outlive requests, events are persisted before they are published, and no work is left over."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from support.engines import Updates, begin, engine_with, read, request, shown, start, text_of
from support.nodes import RunEngine
from tailrace.server.runtime.active_task import Subscription
from tailrace.server.runtime.handlers import Turn
from tailrace.server.store.store import Store, TaskFilter, TaskWrite
from tailrace.streaming import ArtifactUpdate, Event, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.errors import InvalidParamsError, TaskNotCancelableError, TaskNotFoundError
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role, StreamResponse
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.wrappers import StoreError


async def burst(turn: Turn) -> Updates:
    for update in begin():
        yield update
    for number in range(2_000):
        yield TextDelta("text", f"{number} ")


BURST = "".join(f"{number} " for number in range(2_000))


async def test_every_reader_gets_every_event_once_in_order_whenever_it_comes(run_engine: RunEngine) -> None:
    events: list[Event] = []
    results: dict[int, list[Event]] = {}
    go_on = anyio.Event()

    async def work(turn: Turn) -> Updates:
        for number, update in enumerate([update async for update in burst(turn)]):
            if number == 2:
                await go_on.wait()
            yield update

    async with run_engine(work) as engine:
        first = await start(engine)

        async def follow(name: int) -> None:
            results[name] = await read(await engine.subscribe(first.task_id, after=name))

        async with aclosing(first.batches()) as batches, anyio.create_task_group() as group:
            async for batch in batches:
                events += batch
                if batch[-1].number == 3:
                    for name in (0, 1, 2, 3):
                        group.start_soon(follow, name)
                    go_on.set()
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert shown(events) == BURST
    assert len(results) == 4
    for name, seen in results.items():
        assert seen == events[name:]


async def test_a_finished_task_is_one_part_in_the_store_and_not_in_memory(tmp_path: Path) -> None:
    async with engine_with(burst, f"sqlite:///{tmp_path}/t.db") as engine:
        task_id = (await start(engine)).task_id
        await read(await engine.subscribe(task_id, after=0))
        await anyio.wait_all_tasks_blocked()
        assert not engine._tasks.all_in_memory()  # pyright: ignore[reportPrivateUsage]
        task = await engine.get_task(task_id)
        [artifact] = task.artifacts
        assert [part.text for part in artifact.parts] == [BURST]
        # From the store: subscriptions long after the end, from the start and from the middle.
        assert shown(await read(await engine.subscribe(task_id, after=0))) == BURST
        assert shown(await read(await engine.subscribe(task_id, after=1_003))).startswith("1000 1001 ")


async def test_a_subscriber_that_leaves_or_never_reads_blocks_no_other(run_engine: RunEngine) -> None:
    async with run_engine(burst) as engine:
        reading = await start(engine)
        await engine.subscribe(reading.task_id, after=0)  # never read
        leaving = await engine.subscribe(reading.task_id, after=0)
        async for _ in leaving.batches():
            break
        assert shown(await read(reading)) == BURST


class ObservedStore(Store):
    """A real store with a gate for commits and optional failures."""

    def __init__(self, url: str = "sqlite://") -> None:
        super().__init__(url)
        self.before_commit: Callable[[Sequence[TaskWrite]], None] = lambda writes: None
        self.gate: anyio.Event | None = None

    async def commit(self, writes: Sequence[TaskWrite]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        self.before_commit(writes)
        await super().commit(writes)


async def test_nothing_is_shown_before_it_is_kept() -> None:
    store = ObservedStore()
    async with engine_with(burst, store) as engine:
        store.gate = anyio.Event()
        started = await start(engine)
        seen: list[Event] = []

        async def follow() -> None:
            async for batch in started.batches():
                seen.extend(batch)
                kept = await store.load_events(started.task_id, 0, limit=100_000)
                assert [event.number for event in seen] == [event.number for event in kept][: len(seen)]

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
            assert not seen
            store.gate.set()
            store.gate = None
    assert shown(seen) == BURST


async def test_a_task_that_cannot_be_kept_ends_its_streams_with_an_error_and_others_go_on() -> None:
    store = ObservedStore()

    def fail(writes: Sequence[TaskWrite]) -> None:
        raise StoreError("cannot write to the store: disk is full")

    async with engine_with(burst, store) as engine:
        engine.writer._retry_delays = (0, 0)  # pyright: ignore[reportPrivateUsage]
        store.before_commit = fail
        started = await start(engine)
        with pytest.raises(StoreError, match="disk is full"):
            await read(started)
        store.before_commit = lambda writes: None
        assert shown(await read(await start(engine))) == BURST
        with pytest.raises(TaskNotFoundError):
            await engine.get_task(started.task_id)


async def test_a_failed_task_ends_without_a_request_once_the_store_works() -> None:
    store = ObservedStore()
    broken, ended = False, anyio.Event()

    def fail(writes: Sequence[TaskWrite]) -> None:
        if broken:
            raise StoreError("full", temporary=False)
        if any(write.snapshot and write.snapshot.status.state.terminal for write in writes):
            ended.set()

    async def work(turn: Turn) -> Updates:
        for update in begin("half"):
            yield update
        await anyio.sleep_forever()

    store.before_commit = fail
    async with engine_with(work, store) as engine:
        started = await start(engine)
        async with aclosing(started.batches()) as batches:
            async for batch in batches:
                if shown(batch) == "half":
                    break
        broken = True
        with pytest.raises(StoreError, match="full"):
            await engine.cancel_task(started.task_id)
        broken = False
        with anyio.fail_after(20):
            await ended.wait()
        [task] = (await engine.list_tasks(TaskFilter(), limit=9)).tasks
    assert task.status.state is TaskState.FAILED
    assert text_of(task) == "half"


async def test_canceling_stops_the_work_completes_what_is_open_and_answers_with_the_task(
    run_engine: RunEngine,
) -> None:
    stopped = anyio.Event()

    async def work(turn: Turn) -> Updates:
        for update in begin("half"):
            yield update
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    async with run_engine(work) as engine:
        started = await start(engine)
        events: list[Event] = []
        async for batch in started.batches():
            events += batch
            if shown(events) == "half" and not stopped.is_set():
                canceled_task = await engine.cancel_task(started.task_id)
                assert canceled_task.status.state is TaskState.CANCELED
                assert stopped.is_set()
        *_, last_chunk, canceled = [StreamResponse.model_validate_json(event.body) for event in events]
        assert last_chunk.artifact_update is not None
        assert last_chunk.artifact_update.last_chunk
        assert canceled.status_update is not None
        assert canceled.status_update.status.state is TaskState.CANCELED
        assert (await engine.get_task(started.task_id)).status.state is TaskState.CANCELED
        with pytest.raises(TaskNotCancelableError):
            await engine.cancel_task(started.task_id)


async def test_of_two_cancellations_at_once_none_hangs() -> None:
    async def work(turn: Turn) -> Updates:
        yield StatusUpdate(TaskState.WORKING)
        await anyio.sleep_forever()

    async with engine_with(work) as engine:
        started = await start(engine)
        states: list[TaskState] = []

        async def cancel() -> None:
            states.append((await engine.cancel_task(started.task_id)).status.state)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(cancel)
                group.start_soon(cancel)
    assert states == [TaskState.CANCELED] * 2


async def test_tasks_of_others_do_not_exist(run_engine: RunEngine) -> None:
    async with run_engine(burst) as engine:
        mine = await engine.start(request(), "me")
        assert isinstance(mine, Subscription)
        for ask in (engine.get_task, engine.cancel_task, engine.subscribe):
            with pytest.raises(TaskNotFoundError) as foreign:
                await ask(mine.task_id, "you")
            with pytest.raises(TaskNotFoundError) as unknown:
                await ask("nothing", "you")
            assert type(foreign.value) is type(unknown.value)
            assert foreign.value.code == unknown.value.code
        with pytest.raises(TaskNotFoundError):
            await engine.start(request(task_id=mine.task_id), "you")
        await read(mine)
        with pytest.raises(TaskNotFoundError):
            await engine.get_task(mine.task_id, "you")


async def test_a_conversation_is_handed_to_every_later_turn_of_its_context_and_owner(
    run_engine: RunEngine,
) -> None:
    seen: list[list[tuple[str, str]]] = []

    async def answer(turn: Turn) -> Updates:
        seen.append([(str(message.role), message.text) for message in turn.history.conversation])
        artifact = Artifact(artifact_id="text", parts=(Part(text=f"answer {len(seen)}"),))
        yield ArtifactUpdate(artifact)

    async with run_engine(answer) as engine:
        await read(await start(engine, "one", context_id="c"))
        await read(await start(engine, "two", context_id="c"))
        await read(await start(engine, "three", context_id="d"))
        other = await engine.start(request("four", context_id="c"), "somebody else")
        assert isinstance(other, Subscription)
        await read(other)
    assert seen == [
        [("user", "one")],
        [("user", "one"), ("model", "answer 1"), ("user", "two")],
        [("user", "three")],
        [("user", "four")],
    ]


@pytest.mark.parametrize(
    "updates",
    [
        [TextDelta("nothing", "x")],
        [*begin("a"), TextDelta("text", "b", last=True), TextDelta("text", "c")],
        [*begin("a"), Message(message_id="m", role=Role.AGENT, parts=(Part(text="late"),))],
    ],
)
async def test_invalid_updates_fail_the_task_with_a_reason(updates: list[Update | Message]) -> None:
    async def work(turn: Turn) -> Updates:
        for update in updates:
            yield update

    async with engine_with(work) as engine:
        started = await start(engine)
        events = await read(started)
        task = await engine.get_task(started.task_id)
    assert events[-1].state is TaskState.FAILED
    assert task.status.message is not None
    assert "Invalid agent response" in (task.status.message.parts[0].text or "")


async def test_stopping_the_server_ends_its_tasks_with_what_they_had(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"

    async def work(turn: Turn) -> Updates:
        for update in begin("half"):
            yield update
        await anyio.sleep_forever()

    async with engine_with(work, url) as engine:
        started = await start(engine)
        async for batch in started.batches():
            if shown(batch) == "half":
                break
    async with engine_with(work, url) as engine:
        task = await engine.get_task(started.task_id)
        assert task.status.state is TaskState.FAILED
        assert task.status.message is not None
        assert "stopped" in (task.status.message.parts[0].text or "")
        assert text_of(task) == "half"


async def test_a_task_that_a_crash_left_working_is_ended_at_the_next_start(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    store = Store(url)
    await store.open()
    record = TaskRecord.create(request("hello").message)
    first = record.submitted()
    snapshot = record.snapshot()
    rest = [record.apply(update) for update in (*begin("one "), TextDelta("text", "two"))]
    await store.commit([TaskWrite(record.id, "", record.context_id, (first,), snapshot)])
    await store.commit([TaskWrite(record.id, "", record.context_id, rest)])
    await store.close()

    async with engine_with(burst, url) as engine:
        task = await engine.get_task(record.id)
        assert task.status.state is TaskState.FAILED
        assert text_of(task) == "one two"
        events = await read(await engine.subscribe(record.id, after=2))
        assert [event.number for event in events] == [3, 4, 5, 6]
        assert shown(events) == "one two"
        assert events[-1].state is TaskState.FAILED
        with pytest.raises(InvalidParamsError):
            await engine.subscribe(record.id, after=7)

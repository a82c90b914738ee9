"""Stress of the running parts: misbehaving handlers and races."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import cast

import anyio
import pytest

from support.engines import begin, read, read_until, start
from support.handler_engine import Updates, engine_with, question
from support.nodes import RunEngine
from tailrace.server import DirectHandler, Turn
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import HandlerFunction
from tailrace.server.runtime.identifier_bounds import MAX_ID_LENGTH
from tailrace.server.store.store import Store, TaskWrite
from tailrace.streaming import ArtifactUpdate, MessageAdded, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.errors import InternalError, InvalidParamsError, UnsupportedOperationError
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.wrappers import StoreError


class GatedStore(Store):
    """A real store whose reads of a conversation can be blocked, or fail."""

    def __init__(self, url: str = "sqlite://") -> None:
        super().__init__(url)
        self.requested = anyio.Event()
        self.gate: anyio.Event | None = None
        self.failure: StoreError | None = None

    async def load_conversation(self, context_id: str, owner: str, limit: int) -> list[Message]:
        self.requested.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return await super().load_conversation(context_id, owner, limit)

    async def load_history(
        self, context_id: str, owner: str, limit: int
    ) -> tuple[list[Message], frozenset[str]]:
        await self.load_conversation(context_id, owner, 1)
        return await super().load_history(context_id, owner, limit)


# --- handlers that misbehave ------------------------------------------------------------------------------------


async def let_a_cancellation_out(turn: Turn) -> Updates:
    yield StatusUpdate(TaskState.WORKING)
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    await cancelled


async def end_with_metadata_that_is_not_json(turn: Turn) -> Updates:
    yield StatusUpdate(TaskState.COMPLETED, metadata={"x": object()})


async def end_with_text_for_a_message(turn: Turn) -> Updates:
    yield StatusUpdate(TaskState.COMPLETED, message=cast("Message", "done"))


async def add_text_for_a_message(turn: Turn) -> Updates:
    yield MessageAdded(cast("Message", "done"))


async def add_a_number_to_a_text(turn: Turn) -> Updates:
    for update in begin():
        yield update
    yield TextDelta("text", cast("str", 5))


async def add_bytes_to_a_text(turn: Turn) -> Updates:
    for update in begin():
        yield update
    yield TextDelta("text", cast("str", b"five"))


@pytest.mark.parametrize(
    "bad",
    [
        let_a_cancellation_out,
        end_with_metadata_that_is_not_json,
        end_with_text_for_a_message,
        add_text_for_a_message,
        add_a_number_to_a_text,
        add_bytes_to_a_text,
    ],
)
async def test_a_bad_handler_fails_its_own_task_and_no_other(bad: HandlerFunction) -> None:
    go_on = anyio.Event()

    async def handle(turn: Turn) -> Updates:
        if turn.message.parts[0].text == "bad":
            async for update in bad(turn):
                yield update
            return
        for update in begin("good"):
            yield update
        await go_on.wait()

    async with engine_with(handle) as engine:
        good = await start(engine, "good")
        assert (await read(await start(engine, "bad")))[-1].state is TaskState.FAILED
        go_on.set()
        assert (await read(good))[-1].state is TaskState.COMPLETED


async def test_a_handler_that_swallows_its_cancellation_is_not_listened_to_any_more() -> None:
    async def stubborn(turn: Turn) -> Updates:
        for update in begin("x"):
            yield update
        for _ in range(100_000):
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                yield TextDelta("text", "y")

    async with engine_with(stubborn) as engine:
        started = await start(engine)
        await read_until(started, 3)
        task = await engine.cancel_task(started.task_id)
    assert task.status.state is TaskState.CANCELED
    assert task.artifacts[0].parts[0].text == "x"


async def test_a_handler_that_raises_when_it_is_called_fails_the_task_that_it_was_to_go_on_with() -> None:
    def handle(turn: Turn) -> Updates:
        if turn.number > 1:
            raise ValueError("at once")
        return ask(turn)

    async def ask(turn: Turn) -> Updates:
        yield StatusUpdate(TaskState.INPUT_REQUIRED)

    async with engine_with(handle) as engine:
        subscription = await start(engine)
        await read(subscription, until_interrupted=True)
        events = await read(await start(engine, task_id=subscription.task_id))
    assert events[-1].state is TaskState.FAILED


async def test_a_handler_may_be_an_iterator_that_cannot_be_closed() -> None:
    class Once:
        def __init__(self) -> None:
            self.updates = begin("x")

        def __aiter__(self) -> "Once":
            return self

        async def __anext__(self) -> Update | Message:
            if not self.updates:
                raise StopAsyncIteration
            return self.updates.pop(0)

    async with engine_with(lambda turn: Once()) as engine:
        assert (await read(await start(engine)))[-1].state is TaskState.COMPLETED


async def test_a_handler_that_may_answer_directly_may_hold_a_task_group_over_its_first_update() -> None:
    async def handle(turn: Turn) -> Updates:
        async with anyio.create_task_group():
            for update in begin("x"):
                yield update
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(10):
        async with Engine(Store("sqlite://"), DirectHandler(handle)).running() as engine:
            assert (await read(await start(engine)))[-1].state is TaskState.COMPLETED


async def test_a_burst_without_a_pause_leaves_room_for_others() -> None:
    """A handler that never waits is suspended after a bounded number of events."""
    seen = 0

    async def burst(turn: Turn) -> Updates:
        nonlocal seen
        for update in begin():
            yield update
        for seen in range(20_000):  # noqa: B007
            yield TextDelta("text", "x")

    async with engine_with(burst) as engine:
        started = await start(engine)
        last = steps = 0
        while last < 19_999 and steps < 1_000:
            await anyio.lowlevel.checkpoint()
            assert seen - last <= 2_100
            last, steps = seen, steps + 1
        assert (await read(started))[-1].state is TaskState.COMPLETED


# --- races ------------------------------------------------------------------------------------------------------


async def test_who_subscribed_but_reads_later_sees_what_a_follow_up_brings(run_engine: RunEngine) -> None:
    async with run_engine(question) as engine:
        subscription = await start(engine)
        await read(subscription, until_interrupted=True)
        late = await engine.subscribe(subscription.task_id)
        await engine.get_task(subscription.task_id)
        await read(await start(engine, task_id=subscription.task_id))
        assert (await read(late))[-1].state is TaskState.COMPLETED


async def test_a_reader_that_leaves_a_waiting_task_does_not_hide_the_turn_that_came_after(
    run_engine: RunEngine,
) -> None:
    async with run_engine(question) as engine:
        subscription = await start(engine)
        await read(subscription, until_interrupted=True)
        leaving = await engine.subscribe(subscription.task_id)
        await engine.get_task(subscription.task_id)
        answer = await start(engine, "work", task_id=subscription.task_id)
        await read_until(leaving, 0)
        assert (await engine.cancel_task(subscription.task_id)).status.state is TaskState.CANCELED
        assert (await read(answer))[-1].state is TaskState.CANCELED


async def test_a_follow_up_that_is_only_being_prepared_does_not_hold_up_a_cancellation() -> None:
    store = GatedStore()
    async with engine_with(question, store) as engine:
        subscription = await start(engine)
        await read(subscription, until_interrupted=True)
        store.gate, store.requested = anyio.Event(), anyio.Event()
        states: list[TaskState] = []

        async def cancel() -> None:
            states.append((await engine.cancel_task(subscription.task_id)).status.state)

        async def follow_up() -> None:
            with pytest.raises(UnsupportedOperationError, match="the task has ended"):
                await start(engine, "work", task_id=subscription.task_id)

        async with anyio.create_task_group() as group:
            group.start_soon(follow_up)
            await store.requested.wait()
            group.start_soon(cancel)
            await anyio.wait_all_tasks_blocked()
            store.gate.set()
        assert states == [TaskState.CANCELED]
        assert len((await engine.get_task(subscription.task_id)).history) == 1


@pytest.mark.parametrize("follow_up", [True, False])
async def test_a_message_that_is_being_prepared_when_the_server_stops_begins_nothing(follow_up: bool) -> None:
    store = GatedStore()
    refused: list[Exception] = []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group, engine_with(question, store) as engine:
            subscription = await start(engine)
            await read(subscription, until_interrupted=True)
            store.gate, store.requested = anyio.Event(), anyio.Event()

            async def prepare() -> None:
                task_id, context_id = (subscription.task_id, "") if follow_up else ("", "c")
                try:
                    await start(engine, "work", task_id, context_id)
                except InternalError as error:
                    refused.append(error)

            group.start_soon(prepare)
            await store.requested.wait()
            engine.stop()
            store.gate.set()
            await anyio.wait_all_tasks_blocked()
            assert (await engine.get_task(subscription.task_id)).status.state is TaskState.INPUT_REQUIRED
    assert len(refused) == 1


async def test_a_follow_up_that_cannot_be_begun_leaves_the_task_as_it_was() -> None:
    store = GatedStore()
    async with engine_with(question, store) as engine:
        subscription = await start(engine)
        await read(subscription, until_interrupted=True)
        before = await engine.get_task(subscription.task_id)
        store.failure = StoreError("gone")
        async with aclosing((await engine.subscribe(subscription.task_id)).batches()) as follower:
            await anext(follower)  # a subscriber keeps the task in memory
            with pytest.raises(StoreError, match="gone"):
                await start(engine, "again", task_id=subscription.task_id)
            assert await engine.get_task(subscription.task_id) == before
        store.failure = None
        await read(await start(engine, "again", task_id=subscription.task_id))
        history = (await engine.get_task(subscription.task_id)).history
    assert [entry.parts[0].text for entry in history if entry.role is Role.USER] == ["hello", "again"]


class HeldStore(Store):
    """A real store whose commits wait while it is blocked."""

    def __init__(self, url: str = "sqlite://") -> None:
        super().__init__(url)
        self.free = anyio.Event()
        self.free.set()

    async def commit(self, writes: Sequence[TaskWrite]) -> None:
        await self.free.wait()
        await super().commit(writes)


async def test_a_last_event_that_is_being_written_when_the_server_stops_is_still_shown() -> None:
    go_on = anyio.Event()

    async def work(turn: Turn) -> Updates:
        for update in begin("x"):
            yield update
        await go_on.wait()

    store = HeldStore()
    states: list[TaskState | None] = []
    async with engine_with(work, store) as engine:
        started = await start(engine)

        async def follow() -> None:
            states.extend(event.state for event in await read(started))

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await read_until(await engine.subscribe(started.task_id, after=0), 3)
            store.free = anyio.Event()
            go_on.set()
            await anyio.wait_all_tasks_blocked()
            engine.stop()
            store.free.set()
    assert states[-1] is TaskState.COMPLETED


# --- the conversation -------------------------------------------------------------------------------------------


async def test_a_turn_reports_its_own_output_and_not_that_of_an_earlier_turn() -> None:
    histories: list[list[str]] = []

    async def handle(turn: Turn) -> Updates:
        histories.append([entry.text for entry in turn.history.conversation])
        yield ArtifactUpdate(
            Artifact(artifact_id=f"a{len(histories)}", parts=(Part(text=f"{len(histories)}!"),))
        )
        yield StatusUpdate(TaskState.INPUT_REQUIRED)

    async with engine_with(handle) as engine:
        first = await start(engine, "1?", context_id="c")
        await read(first, until_interrupted=True)
        await read(await start(engine, "2?", task_id=first.task_id), until_interrupted=True)
        await engine.cancel_task(first.task_id)
        await read(await start(engine, "3?", context_id="c"), until_interrupted=True)
    assert histories[-1] == ["1?", "1!", "2?", "2!", "3?"]


async def test_the_reasoning_of_an_answer_that_was_cut_off_does_not_become_the_answer() -> None:
    histories: list[list[tuple[str, str]]] = []

    async def handle(turn: Turn) -> Updates:
        histories.append(
            [(str(part.type), entry.text) for entry in turn.history.conversation for part in entry.content]
        )
        facts = {EXTENSION_URI: {"channel": "reasoning"}}
        thought = Artifact(artifact_id="reasoning", parts=(Part(text="hm"),), metadata=facts)
        yield ArtifactUpdate(thought, last=False)
        yield begin("so")[1]
        if len(histories) == 1:
            await anyio.sleep_forever()

    async with engine_with(handle) as engine:
        first = await start(engine, "1?", context_id="c")
        await read_until(first, 3)
        await engine.cancel_task(first.task_id)
        await read(await start(engine, "2?", context_id="c"))
    assert histories[-1] == [("text", "1?"), ("reasoning", "so"), ("text", "so"), ("text", "2?")]


async def test_a_context_id_is_bounded() -> None:
    async with engine_with(question) as engine:
        with pytest.raises(InvalidParamsError, match="contextId"):
            await start(engine, context_id="c" * (MAX_ID_LENGTH + 1))

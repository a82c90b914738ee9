"""Shutdown of an engine: the remaining time of its tasks, and refusal of new messages."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import pytest

from support.agents import Scripted, Updates
from support.engines import engine_with, start, state_of, text_of
from tailrace.server import Engine, Store, Turn
from tailrace.server.runtime.active_task import Subscription
from tailrace.server.runtime.limits import OverloadedError
from tailrace.streaming import ArtifactUpdate, TaskState, TextDelta
from tailrace.streaming.a2a.models import Artifact, Part

# --- shutdown ---------------------------------------------------------------------------------------------------


async def held(engine: Engine) -> tuple[Subscription, AsyncIterator[Sequence[Any]]]:
    """Return a working task with the text "held", and a subscription to it."""
    task = await start(engine, "hold")
    batches = task.batches()
    text = ""
    while text != "held":
        text = "".join(
            str(part.text)
            for artifact in (await engine.get_task(task.task_id)).artifacts
            for part in artifact.parts
        )
        await anyio.lowlevel.checkpoint()
    return task, batches


async def test_tasks_finish_within_the_grace_time_and_nothing_new_is_taken() -> None:
    scripted = Scripted()
    async with engine_with(scripted, stop_grace=600) as engine:
        task, batches = await held(engine)
        question = await start(engine, "ask")
        assert (await state_of(engine, question))[0] is TaskState.INPUT_REQUIRED
        engine.stop_requested.set()
        async for _ in question.batches():
            pass  # subscribers of a task that only waits are disconnected
        with pytest.raises(OverloadedError, match="the server is stopping"):
            await start(engine, "river")
        scripted.go_on.set()
        states = [event.state async for events in batches for event in events]
        assert states[-1] is TaskState.COMPLETED
        assert (await engine.get_task(task.task_id)).status.state is TaskState.COMPLETED


async def test_the_engine_waits_no_longer_than_for_the_last_task(tmp_path: Any) -> None:
    scripted, store = Scripted(), f"sqlite:///{tmp_path}/t.db"
    with anyio.fail_after(30):
        async with engine_with(scripted, Store(store), stop_grace=600) as engine:
            task, _ = await held(engine)
            scripted.go_on.set()
        async with engine_with(scripted, Store(store), stop_grace=600) as engine:
            found = await engine.get_task(task.task_id)
            assert (found.status.state, found.artifacts[0].parts[0].text) == (TaskState.COMPLETED, "held")


async def test_what_is_left_after_the_grace_time_fails_with_what_it_has(tmp_path: Any) -> None:
    scripted, store = Scripted(), f"sqlite:///{tmp_path}/t.db"
    async with engine_with(scripted, Store(store), stop_grace=0.1) as engine:
        task, _ = await held(engine)
    assert scripted.stopped.is_set()
    async with engine_with(scripted, Store(store)) as engine:
        found = await engine.get_task(task.task_id)
        assert (found.status.state, found.artifacts[0].parts[0].text) == (TaskState.FAILED, "held")
        assert "the server was stopped before the response was complete" in str(found.status.message)


async def test_a_turn_that_the_next_engine_can_continue_is_suspended(tmp_path: Any) -> None:
    """Its stream ends without a last status, and its task is not changed. With a store in memory, the task fails."""
    scripted, store = Scripted(), f"sqlite:///{tmp_path}/t.db"
    async with engine_with(scripted, Store(store), restart_interrupted=True) as engine:
        task, batches = await held(engine)
        engine.stop_requested.set()
        events = [event async for batch in batches for event in batch]
        assert events[-1].state is TaskState.WORKING
        assert text_of(await engine.get_task(task.task_id)) == "held"
    assert scripted.stopped.is_set()
    scripted.go_on.set()
    async with engine_with(scripted, Store(store), restart_interrupted=True) as engine:
        reader = await engine.subscribe(task.task_id, after=events[-1].number)
        assert (await state_of(engine, reader))[0] is TaskState.COMPLETED
        assert [turn.message.parts[0].text for turn in scripted.turns] == ["hold", "hold"]
    scripted = Scripted()
    async with engine_with(scripted, restart_interrupted=True) as engine:
        task, batches = await held(engine)
        engine.stop_requested.set()
        assert (await state_of(engine, task))[0] is TaskState.FAILED


async def test_a_turn_whose_handler_ignores_the_stop_is_suspended(tmp_path: Any) -> None:
    """The handler returns without a status, with a part of its response."""
    scripted, store = Scripted(), f"sqlite:///{tmp_path}/t.db"

    async def returns(turn: Turn) -> Updates:
        try:
            async for update in scripted(turn):
                yield update
        except anyio.get_cancelled_exc_class():
            pass

    async with engine_with(returns, Store(store), restart_interrupted=True) as engine:
        task, _ = await held(engine)
        engine.stop_requested.set()
        assert (await state_of(engine, task))[0] is TaskState.WORKING
    scripted.go_on.set()
    async with engine_with(returns, Store(store), restart_interrupted=True) as engine:
        reader = await engine.subscribe(task.task_id, after=0)
        assert (await state_of(engine, reader))[0] is TaskState.COMPLETED
        assert [turn.message.parts[0].text for turn in scripted.turns] == ["hold", "hold"]


async def test_a_message_that_waits_is_answered_after_a_stop(tmp_path: Any) -> None:
    scripted, store = Scripted(), f"sqlite:///{tmp_path}/t.db"
    async with engine_with(scripted, Store(store), restart_interrupted=True) as engine:
        task, _ = await held(engine)
        await (await start(engine, "river", task_id=task.task_id)).wait_for_start()
    scripted.go_on.set()
    async with engine_with(scripted, Store(store), restart_interrupted=True) as engine:
        reader = await engine.subscribe(task.task_id, after=0)
        assert (await state_of(engine, reader))[0] is TaskState.COMPLETED
    assert [turn.message.parts[0].text for turn in scripted.turns] == ["hold", "hold", "river"]


async def test_an_engine_that_is_left_by_an_error_gives_no_time() -> None:
    scripted = Scripted()
    with anyio.fail_after(30), pytest.raises(BaseException) as raised:  # noqa: PT011, PT012
        async with engine_with(scripted, stop_grace=600) as engine:
            await held(engine)
            raise RuntimeError("the application failed")
    assert "the application failed" in repr(raised.value)
    assert scripted.stopped.is_set()


async def test_messages_that_wait_are_answered_within_the_grace_time() -> None:
    scripted = Scripted()

    async def work(turn: Turn) -> Updates:
        if turn.number == 1:
            async for update in scripted(turn):
                yield update
        else:
            yield ArtifactUpdate(Artifact(artifact_id="more", parts=(Part(text=""),)), last=False)
            yield TextDelta("more", "and more", last=True)

    async with engine_with(work, stop_grace=600) as engine:
        task, _ = await held(engine)
        more = await start(engine, "more", task_id=task.task_id)
        engine.stop_requested.set()
        scripted.go_on.set()
        assert (await state_of(engine, more))[0] is TaskState.COMPLETED
        assert (await engine.get_task(task.task_id)).artifacts[-1].parts[0].text == "and more"

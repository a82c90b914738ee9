"""Tasks that a crash interrupted, after the next start of the server."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio

from support.crashes import copied_as_after_a_crash
from support.engines import Turns, engine_with, start
from tailrace.server.runtime.active_task import Subscription
from tailrace.streaming import Event, TaskState


async def last_event(subscription: Subscription, *, until_interrupted: bool = False) -> Event:
    with anyio.fail_after(30):
        return [
            event
            async for batch in subscription.batches(until_interrupted=until_interrupted)
            for event in batch
        ][-1]


async def test_crashes_in_different_turns_do_not_fail_a_task(tmp_path: Path) -> None:
    """A task is continued after a crash in each of its turns, but not after every crash in the same turn."""
    path, task_id, address = tmp_path / "tasks.db", "", f"sqlite:///{tmp_path / 'tasks.db'}"
    states: list[TaskState] = []
    messages = ["a?", "b?", "c?", "d?"]
    for message in messages:
        crashed, recovered = Turns(), Turns()
        recovered.end(message)
        async with engine_with(crashed, address, restart_interrupted=True) as engine:
            started = await start(engine, message, task_id=task_id)
            task_id = started.task_id
            await crashed.begun(message)
            await started.wait_for_start()
            folder = tmp_path / message.strip("?")
            address = copied_as_after_a_crash(path, folder)
            path = folder / path.name
            crashed.end(message)
        async with engine_with(recovered, address, restart_interrupted=True) as engine:
            ended = await last_event(
                await engine.subscribe(task_id, after=started.after), until_interrupted=True
            )
            assert ended.state is not None
            states.append(ended.state)
    assert states == [TaskState.INPUT_REQUIRED] * len(messages)


async def test_the_turns_of_a_conversation_run_in_their_order_after_a_crash(tmp_path: Path) -> None:
    before, after = Turns(), Turns()
    before.end("ask?")
    after.end("one", "two", "more", "three")
    path = tmp_path / "tasks.db"
    async with engine_with(before, f"sqlite:///{path}") as engine:
        asking = await start(engine, "ask?", context_id="c")
        assert (await last_event(asking, until_interrupted=True)).state is TaskState.INPUT_REQUIRED
        running = await start(engine, "one", context_id="c")
        await before.begun("one")
        waiting = [running]
        for text, ids in (
            ("two", {"context_id": "c"}),
            ("more", {"task_id": asking.task_id}),  # working, though its turn has not begun
            ("three", {"context_id": "c"}),
        ):
            now = datetime.now(UTC)
            while datetime.now(UTC) < now + timedelta(milliseconds=1):
                pass  # messages of the same millisecond have no order
            waiting.append(await start(engine, text, **ids))
        for each in waiting:
            await each.wait_for_start()
        copy = copied_as_after_a_crash(path, tmp_path / "copy")
        before.end("one", "two", "more", "three")
    async with engine_with(after, copy, restart_interrupted=True) as engine:
        for each in waiting:
            ended = await last_event(await engine.subscribe(each.task_id, after=0))
            assert ended.state is TaskState.COMPLETED
    assert list(after.histories) == ["one", "two", "more", "three"]
    answered = [f"{prefix}{text}" for text in ("ask?", "one", "two", "more") for prefix in ("", "re ")]
    assert after.histories["three"] == [*answered, "three"]

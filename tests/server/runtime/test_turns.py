"""Turn order: messages to a working task wait; turns of one conversation run one after the other."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from support.engines import Updates, engine_with, read, request, start
from support.nodes import RunEngine
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import FunctionHandler, Turn
from tailrace.server.runtime.limits import RateLimitError
from tailrace.server.runtime.message_intake import MAX_WAITING
from tailrace.server.runtime.operations import Operations
from tailrace.server.runtime.recovery import MAX_RESTARTS
from tailrace.server.store.store import Store
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState
from tailrace.streaming.a2a.models import Artifact, Part, Role, StreamResponse, Task
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.streaming.task.task_record import agent_message
from tailrace.wrappers import History


def callers(task: Task) -> list[str]:
    """Return the ids of the user messages of a task."""
    return [message.message_id for message in task.history if message.role is Role.USER]


def outline(history: History) -> list[str]:
    """Return the role and text of each message of a conversation."""
    return [f"{message.role.value}: {message.text}" for message in history.conversation]


class Desk:
    """A handler that completes each turn on a signal.

    Attributes:
        turns: The texts of the turns that began, in order.
    """

    def __init__(self, *endings: StatusUpdate) -> None:
        self.turns: list[Turn] = []
        self._endings = list(endings)
        self._begun = anyio.Event()
        self._release: dict[str, anyio.Event] = {}

    async def handle(self, turn: Turn) -> Updates:
        self.turns.append(turn)
        self._begun.set()
        self._begun = anyio.Event()
        text = turn.message.parts[0].text or ""
        yield StatusUpdate(TaskState.WORKING)
        answer = Artifact(artifact_id=f"{turn.number}", parts=(Part(text=f"to {text}"),))
        yield ArtifactUpdate(answer, last=False)
        await self._gate(text).wait()
        if self._endings:
            yield self._endings.pop(0)

    def answer(self, text: str) -> None:
        self._gate(text).set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._begun.wait()

    def _gate(self, text: str) -> anyio.Event:
        return self._release.setdefault(text, anyio.Event())


@pytest.mark.parametrize("state", [TaskState.COMPLETED, TaskState.INPUT_REQUIRED])
async def test_a_message_to_a_task_at_work_waits_for_its_turn(
    state: TaskState, run_engine: RunEngine
) -> None:
    desk = Desk(StatusUpdate(state, agent_message("well?")))
    async with run_engine(desk.handle) as engine:
        first = await start(engine, "one")
        task_id = first.task_id
        await desk.until(lambda: len(desk.turns) == 1)
        second = await start(engine, "two", task_id=task_id)
        third = await start(engine, "three", task_id=task_id)
        task = await engine.get_task(task_id)
        assert callers(task) == ["one", "two", "three"]
        assert task.status.state is TaskState.WORKING
        desk.answer("one")
        await desk.until(lambda: len(desk.turns) == 2)
        desk.answer("two")
        desk.answer("three")
        events = await read(first)
        received = [await read(second), await read(third)]
        task = await engine.get_task(task_id)
    assert [turn.number for turn in desk.turns] == [1, 2, 3]
    assert outline(desk.turns[2].history) == [
        "user: one",
        "model: to one",
        "user: two",
        "model: to two",
        "user: three",
    ]
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    states = [event.state for event in events if event.state is not None]
    assert set(states) == {TaskState.SUBMITTED, TaskState.WORKING, TaskState.COMPLETED}
    assert states.index(TaskState.COMPLETED) == len(states) - 1
    for seen in received:
        # A snapshot that includes the new message, then the events after it.
        snapshot = StreamResponse.model_validate_json(seen[0].body).task
        assert snapshot is not None
        assert seen[1:] == events[seen[0].number :]
    assert [artifact.parts[0].text for artifact in task.artifacts] == ["to one", "to two", "to three"]
    assert [message.parts[0].text for message in task.history] == [
        "one",
        "to one",
        "two",
        "to two",
        "three",
        "well?",
        "to three",
    ]


@pytest.mark.parametrize("how", ["failed", "canceled"])
async def test_what_waits_ends_with_the_task_and_is_not_forgotten(how: str, run_engine: RunEngine) -> None:
    desk = Desk(StatusUpdate(TaskState.FAILED))
    async with run_engine(desk.handle) as engine:
        first = await start(engine, "one")
        await desk.until(lambda: len(desk.turns) == 1)
        second = await start(engine, "two", task_id=first.task_id)
        if how == "failed":
            desk.answer("one")
        else:
            await engine.cancel_task(first.task_id)
        assert (await read(first))[-1].state is (await read(second))[-1].state
        task = await engine.get_task(first.task_id)
        assert task.status.state.value == f"TASK_STATE_{how.upper()}"
        desk.answer("three")
        await read(await start(engine, "three", context_id=task.context_id))
    assert len(desk.turns) == 2
    assert outline(desk.turns[1].history) == ["user: one", "model: to one", "user: two", "user: three"]


async def test_a_cancellation_reaches_every_turn_of_a_task(run_engine: RunEngine) -> None:
    desk = Desk()
    async with run_engine(desk.handle) as engine:
        first = await start(engine, "one")
        await desk.until(lambda: len(desk.turns) == 1)
        await start(engine, "two", task_id=first.task_id)
        desk.answer("one")
        await desk.until(lambda: len(desk.turns) == 2)
        assert (await engine.cancel_task(first.task_id)).status.state is TaskState.CANCELED
        assert (await read(first))[-1].state is TaskState.CANCELED


async def test_no_more_than_so_many_messages_wait(run_engine: RunEngine) -> None:
    desk = Desk()
    async with run_engine(desk.handle) as engine:
        first = await start(engine, "one")
        await desk.until(lambda: len(desk.turns) == 1)
        for number in range(MAX_WAITING):
            await start(engine, f"more {number}", task_id=first.task_id)
        with pytest.raises(RateLimitError, match=f"{MAX_WAITING} messages"):
            await start(engine, "too many", task_id=first.task_id)
        task = await engine.get_task(first.task_id)
        assert len(task.history) == 1 + MAX_WAITING
        await engine.cancel_task(first.task_id)


async def interrupted(url: str) -> Task:
    """Leave a task in the store as after a crash, with one message half answered and another one waiting."""
    desk, store = Desk(), Store(url)
    async with Engine(store, FunctionHandler(desk.handle)).running() as engine:
        first = await start(engine, "one")
        await desk.until(lambda: len(desk.turns) == 1)
        await start(engine, "two", task_id=first.task_id)
        task = await engine.get_task(first.task_id)
        await store.close()  # no more writes reach the store
    return task


async def test_what_waited_when_the_process_ended_is_in_the_task_and_in_the_conversation(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    left = await interrupted(url)
    desk = Desk()
    async with engine_with(desk.handle, url) as engine:
        task = await engine.get_task(left.id)
        assert task.status.state is TaskState.FAILED
        assert callers(task) == ["one", "two"]
        desk.answer("three")
        await read(await start(engine, "three", context_id=left.context_id))
    assert outline(desk.turns[0].history) == ["user: one", "model: to one", "user: two", "user: three"]


async def test_an_interrupted_task_is_begun_again_where_that_is_wanted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    left = await interrupted(url)
    desk = Desk()
    desk.answer("one")
    desk.answer("two")
    async with engine_with(desk.handle, url, restart_interrupted=True) as engine:
        events = await read(await engine.subscribe(left.id, after=0))
        task = await engine.get_task(left.id)
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert [outline(turn.history) for turn in desk.turns] == [
        ["user: one"],
        ["user: one", "model: to one", "user: two"],
    ]
    assert [turn.number for turn in desk.turns] == [1, 2]
    assert task.status.state is TaskState.COMPLETED
    assert [artifact.parts[0].text for artifact in task.artifacts] == ["to one", "to two"]
    assert callers(task) == ["one", "two"]
    assert task.metadata[EXTENSION_URI]["restarts"] == 1


async def test_a_task_that_is_interrupted_again_and_again_is_given_up(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    left = await interrupted(url)
    for _ in range(MAX_RESTARTS):
        desk, store = Desk(), Store(url)
        engine = Engine(store, FunctionHandler(desk.handle), restart_interrupted=True)
        async with engine.running():
            await desk.until(lambda desk=desk: len(desk.turns) == 1)
            await engine.get_task(left.id)
            await store.close()
    async with engine_with(Desk().handle, url, restart_interrupted=True) as engine:
        task = await engine.get_task(left.id)
    assert task.status.state is TaskState.FAILED
    assert callers(task) == ["one", "two"]


async def test_turns_of_one_conversation_come_one_after_the_other_and_others_beside_them(
    run_engine: RunEngine,
) -> None:
    desk = Desk()
    async with run_engine(desk.handle) as engine:
        first = await start(engine, "one", context_id="c")
        second = await start(engine, "two", context_id="c")
        await desk.until(lambda: len(desk.turns) == 1)
        other = await start(engine, "elsewhere", context_id="d")
        await desk.until(lambda: len(desk.turns) == 2)
        assert [turn.message.message_id for turn in desk.turns] == ["one", "elsewhere"]
        assert (await engine.get_task(second.task_id)).status.state is TaskState.SUBMITTED
        for text in ("elsewhere", "two", "one"):
            desk.answer(text)
        for subscription in (first, second, other):
            assert (await read(subscription))[-1].state is TaskState.COMPLETED
    assert outline(desk.turns[2].history) == ["user: one", "model: to one", "user: two"]


async def test_a_task_that_waits_for_the_one_before_it_can_be_canceled(run_engine: RunEngine) -> None:
    desk = Desk()
    async with run_engine(desk.handle) as engine:
        first = await start(engine, "one", context_id="c")
        await desk.until(lambda: len(desk.turns) == 1)
        second = await start(engine, "two", context_id="c")
        assert (await engine.cancel_task(second.task_id)).status.state is TaskState.CANCELED
        desk.answer("one")
        assert (await read(first))[-1].state is TaskState.COMPLETED
        desk.answer("three")
        await read(await start(engine, "three", context_id="c"))
    assert [turn.message.message_id for turn in desk.turns] == ["one", "three"]


class Hasty(Engine):
    """An engine that receives another message just before the task of the first answer is loaded."""

    async def get_task(self, task_id: str, owner: str = "", history_length: int | None = None) -> Task:
        await self.start(request("and more", task_id))
        return await super().get_task(task_id, owner, history_length)


async def test_the_answer_to_a_message_has_the_status_that_ended_its_turn() -> None:
    desk = Desk(StatusUpdate(TaskState.INPUT_REQUIRED, agent_message("well?")))
    desk.answer("one")
    async with Hasty(Store("sqlite://"), FunctionHandler(desk.handle)).running() as engine:
        task = await Operations(engine).answer(Operation.SEND_MESSAGE, request("one"), Caller())
        assert isinstance(task, Task)
        assert task.status.state is TaskState.INPUT_REQUIRED
        assert task.status.message is not None
        assert task.status.message.parts[0].text == "well?"
        await engine.cancel_task(task.id)

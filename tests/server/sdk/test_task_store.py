"""Our database under a server built with the official SDK."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from a2a.server.context import ServerCallContext
from a2a.types import (
    Artifact,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import InternalError, InvalidAgentResponseError, InvalidParamsError, TaskNotFoundError

from support.agents import Scripted
from support.sdk import kinds, send, state, text_of
from support.sdk_server import context_of, sdk_server
from tailrace.server import Engine, FunctionHandler, Store
from tailrace.server.sdk import AgentExecutor, TaskStore, to_sdk
from tailrace.server.store.store import ConversationFilter, TaskWrite
from tailrace.streaming import ArtifactUpdate, TextDelta
from tailrace.streaming.a2a import Artifact as OurArtifact
from tailrace.streaming.a2a import Message as OurMessage
from tailrace.streaming.a2a import Part as OurPart
from tailrace.streaming.a2a import Role as OurRole
from tailrace.streaming.a2a import SendMessageRequest
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.wrappers import StoreError

ALICE, BOB = context_of("alice"), context_of("bob")
START = datetime(2026, 1, 1, tzinfo=UTC)


def task(
    task_id: str = "t1",
    *,
    context_id: str = "c1",
    at: TaskState = TaskState.TASK_STATE_WORKING,
    text: str = "",
    minutes: int = 0,
) -> Task:
    made = Task(id=task_id, context_id=context_id, status=TaskStatus(state=at))
    made.status.timestamp.FromDatetime(START + timedelta(minutes=minutes))
    message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="hi")])
    made.history.append(message)
    made.metadata.update({"count": 1, "nested": {"list": [1.5, None]}})
    if text:
        made.artifacts.append(Artifact(artifact_id="a", parts=[Part(text=text)]))
    return made


@asynccontextmanager
async def store_in(folder: Path) -> AsyncGenerator[TaskStore]:
    async with TaskStore(f"sqlite:///{folder}/t.db").running() as store:
        yield store


async def test_tasks_of_the_sdk_are_in_the_list_of_conversations_of_a_server(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/t.db")

    async def listed() -> list[tuple[str, str]]:
        page = await store.conversations.page("alice", ConversationFilter(), after=None, limit=9)
        return [(each.context_id, each.title) for each in page.conversations]

    async with TaskStore(store).running() as tasks:
        await tasks.save(task(), ALICE)
        await tasks.save(task("t2", context_id="c2"), ALICE)
        await tasks.save(task(text="more", at=TaskState.TASK_STATE_COMPLETED), ALICE)
        assert await listed() == [("c2", "hi"), ("c1", "hi")]
        await tasks.delete("t1", ALICE)
        assert await listed() == [("c2", "hi")]


async def test_a_task_is_kept_replaced_and_forgotten(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        assert await store.get("t1", ALICE) is None
        await store.save(task(), ALICE)
        assert await store.get("t1", ALICE) == task()
        await store.save(task(text="more", at=TaskState.TASK_STATE_COMPLETED), ALICE)
        kept = await store.get("t1", ALICE)
        assert kept is not None
        assert (state(kept), text_of(kept)) == ("completed", "more")
        assert await store.delete("t1", ALICE)
        assert await store.get("t1", ALICE) is None
        assert not await store.delete("t1", ALICE)


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    done = task(text="answer", at=TaskState.TASK_STATE_COMPLETED)
    waiting = task("t2", at=TaskState.TASK_STATE_INPUT_REQUIRED)
    async with store_in(tmp_path) as store:
        await store.save(done, ALICE)
        await store.save(waiting, ALICE)
    async with store_in(tmp_path) as store:
        assert await store.get("t1", ALICE) == done
        assert await store.get("t2", ALICE) == waiting


async def test_what_a_crash_interrupted_has_failed_with_what_it_had(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.save(task(text="half an ans"), ALICE)
    async with store_in(tmp_path) as store:
        kept = await store.get("t1", ALICE)
    assert kept is not None
    assert (state(kept), text_of(kept)) == ("failed", "half an ans")
    assert "stopped unexpectedly" in kept.status.message.parts[0].text


async def test_what_a_crash_of_our_own_server_interrupted_has_failed_with_what_was_shown(
    tmp_path: Path,
) -> None:
    """Its events are stored beside the task, which was last saved when its turn began."""
    url = f"sqlite:///{tmp_path}/t.db"
    message = OurMessage(message_id="m", role=OurRole.USER, parts=(OurPart(text="hi"),))
    record = TaskRecord.create(message)
    artifact = OurArtifact(artifact_id="text", parts=(OurPart(text="half "),))
    begun = TaskWrite(record.id, "", record.context_id, (record.submitted(),), record.snapshot())
    updates = (ArtifactUpdate(artifact, last=False), TextDelta("text", "an ans"))
    shown = TaskWrite(record.id, "", record.context_id, tuple(map(record.apply, updates)))
    crashed = Store(url)
    await crashed.open()
    await crashed.commit([begun, shown])
    await crashed.close()
    async with TaskStore(url).running() as store:
        kept = await store.get(record.id)
    assert kept is not None
    assert (state(kept), text_of(kept)) == ("failed", "half an ans")
    async with Engine(Store(url), FunctionHandler(Scripted())).running() as engine:
        assert text_of(to_sdk(await engine.get_task(record.id), Task)) == "half an ans"


async def test_the_older_verbs_create_and_update_what_is_new_and_what_is_there() -> None:
    async with TaskStore("sqlite://").running() as store:
        assert await store.create(task()) == task()
        with pytest.raises(InvalidParamsError, match="already"):
            await store.create(task())
        changed = task(text="more")
        assert await store.update(changed) == changed
        assert await store.get("t1") == changed
        with pytest.raises(TaskNotFoundError):
            await store.update(task("t2"))
        assert [each.id for each in (await store.list()).tasks] == ["t1"]
        assert await store.delete("t1")


async def test_a_task_is_its_callers_alone() -> None:
    strangers = (BOB, ServerCallContext(), context_of("alice", tenant="acme"))
    async with TaskStore("sqlite://").running() as store:
        await store.save(task(text="hers"), ALICE)
        for stranger in strangers:
            assert await store.get("t1", stranger) is None
            assert not (await store.list(ListTasksRequest(), stranger)).tasks
            assert not await store.delete("t1", stranger)
            with pytest.raises(InternalError):
                await store.save(task(text="stolen"), stranger)
            with pytest.raises(InvalidParamsError):
                await store.create(task(), stranger)
        kept = await store.get("t1", ALICE)
    assert kept is not None
    assert text_of(kept) == "hers"


async def test_tasks_are_listed_newest_first_by_filter_and_page() -> None:
    async with TaskStore("sqlite://").running() as store:
        for number in range(5):
            at = TaskState.TASK_STATE_COMPLETED if number % 2 else TaskState.TASK_STATE_INPUT_REQUIRED
            made = task(f"t{number}", context_id=f"c{number // 3}", at=at, minutes=number)
            await store.save(made, ALICE)

        async def ids(**wanted: object) -> list[str]:
            return [each.id for each in (await store.list(ListTasksRequest(**wanted), ALICE)).tasks]  # pyright: ignore[reportArgumentType] — fields by name

        assert await ids() == ["t4", "t3", "t2", "t1", "t0"]
        assert await ids(context_id="c1") == ["t4", "t3"]
        assert await ids(status=TaskState.TASK_STATE_COMPLETED) == ["t3", "t1"]
        assert await ids(status_timestamp_after=START + timedelta(minutes=3)) == ["t4", "t3"]
        first = await store.list(ListTasksRequest(page_size=2), ALICE)
        assert (first.page_size, first.total_size) == (2, 5)
        second = await store.list(ListTasksRequest(page_size=2, page_token=first.next_page_token), ALICE)
        third = await store.list(ListTasksRequest(page_size=2, page_token=second.next_page_token), ALICE)
        pages = [[each.id for each in page.tasks] for page in (first, second, third)]
        assert pages == [["t4", "t3"], ["t2", "t1"], ["t0"]]
        assert third.next_page_token == ""
        for wrong in (ListTasksRequest(page_token="x"), ListTasksRequest(page_size=1000)):
            with pytest.raises(InvalidParamsError):
                await store.list(wrong, ALICE)


async def test_a_task_that_the_protocol_does_not_allow_is_the_agents_fault() -> None:
    async with TaskStore("sqlite://").running() as store:
        wrong = task()
        wrong.artifacts.append(Artifact(artifact_id="a"))
        with pytest.raises(InvalidAgentResponseError, match=r"artifacts\[0\]\.parts"):
            await store.save(wrong, ALICE)
        assert await store.get("t1", ALICE) is None


async def test_a_store_that_does_not_work_is_an_internal_error() -> None:
    store = TaskStore("sqlite://")
    with pytest.raises(InternalError, match="task store does not work"):
        await store.get("t1", ALICE)
    with pytest.raises(InternalError):
        await store.list(ListTasksRequest(), ALICE)
    with pytest.raises(InternalError):
        await store.delete("t1", ALICE)
    async with store.running():
        pass
    with pytest.raises(InternalError):
        await store.save(task(), ALICE)


async def test_one_process_has_the_file(tmp_path: Path) -> None:
    async with store_in(tmp_path):
        with pytest.raises(StoreError, match="in use"):
            async with store_in(tmp_path):
                raise AssertionError("opened twice")


async def test_many_tasks_are_saved_at_a_time_each_in_its_order(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:

        async def run(number: int) -> None:
            for length in range(1, 20):
                await store.save(task(f"t{number}", text="x" * length), ALICE)

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(run, number)
        for number in range(20):
            kept = await store.get(f"t{number}", ALICE)
            assert kept is not None
            assert text_of(kept) == "x" * 19


# --- a complete server over it ----------------------------------------------------------------------------------


async def test_a_server_made_with_the_sdk_survives_a_restart(tmp_path: Path) -> None:
    scripted = Scripted()
    async with store_in(tmp_path) as store:
        executor = AgentExecutor(Scripted(), conversations=store)
        async with sdk_server(executor, store) as server:
            events = [event async for event in server.client.send_message(send("river"))]
            done = events[0].task
            question_events = [event async for event in server.client.send_message(send("ask"))]
            asking = question_events[0].task
    async with store_in(tmp_path) as store:
        async with sdk_server(AgentExecutor(scripted, conversations=store), store) as server:
            kept = await server.client.get_task(GetTaskRequest(id=done.id))
            assert (state(kept), text_of(kept)) == ("completed", "river")
            listed = (await server.client.list_tasks(ListTasksRequest())).tasks
            assert {each.id for each in listed} == {done.id, asking.id}
            answer = send("that one", task_id=asking.id, context_id=asking.context_id)
            again = [event async for event in server.client.send_message(answer)]
            assert kinds(again)[-1] == "completed"
            more = send("and now", context_id=done.context_id)
            _ = [event async for event in server.client.send_message(more)]
    texts = [[item.text for item in turn.history.conversation] for turn in scripted.turns]
    assert texts == [["ask", "that one"], ["river", "river", "and now"]]


async def test_our_own_server_goes_on_with_the_same_file(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store, sdk_server(AgentExecutor(Scripted()), store) as server:
        question_events = [event async for event in server.client.send_message(send("ask"))]
        theirs = question_events[0].task
    scripted = Scripted()
    async with Engine(Store(f"sqlite:///{tmp_path}/t.db"), FunctionHandler(scripted)).running() as engine:
        kept = await engine.get_task(theirs.id)
        assert kept.status.state == "TASK_STATE_INPUT_REQUIRED"
        message = OurMessage(
            message_id="m2", role=OurRole.USER, parts=(OurPart(text="that one"),), task_id=theirs.id
        )
        started = await engine.start(SendMessageRequest(message=message))
        assert not isinstance(started, OurMessage)
        events = [event async for batch in started.batches() for event in batch]
        assert events[-1].number == len(events)
        assert (await engine.get_task(theirs.id)).status.state == "TASK_STATE_COMPLETED"
    async with store_in(tmp_path) as store:
        kept = await store.get(theirs.id)
        assert kept is not None
        assert (state(kept), text_of(kept)) == ("completed", "that one")
        # The saved task includes every event of the other server.
        kept.metadata.update({"seen": True})
        await store.save(kept)
    async with Engine(Store(f"sqlite:///{tmp_path}/t.db"), FunctionHandler(scripted)).running() as engine:
        assert (await engine.get_task(theirs.id)).metadata["seen"] is True

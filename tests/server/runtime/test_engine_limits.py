"""Limits of the engine: concurrent tasks, duration, message size, and tasks at shutdown."""

import anyio
import pytest

from support.agents import Scripted, Updates
from support.engines import engine_with, start, state_of
from support.live_server import serving
from support.rounds import answer, model_at
from support.rpc import Rpc, message, text_of
from support.upstream import ScriptedUpstream
from tailrace.server import AgentHandler, Settings, Turn, create_app
from tailrace.server.runtime.limits import Limits, OverloadedError, RateLimitError
from tailrace.server.settings import Bounds
from tailrace.streaming import Agent, ArtifactUpdate, StatusUpdate, TaskState, TextDelta
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.task_record import agent_message

ALICE, BOB = {"X-API-Key": "k1"}, {"X-API-Key": "k2"}


# --- concurrent tasks -------------------------------------------------------------------------------------------


async def test_a_caller_has_so_many_tasks_worked_on_and_what_is_beyond_is_refused_without_effect() -> None:
    limits, scripted = Limits(max_tasks=3, max_caller_tasks=2), Scripted()
    async with engine_with(scripted, running_tasks=limits.tasks) as engine:
        held = [await start(engine, "hold", owner="alice") for _ in range(2)]
        with pytest.raises(RateLimitError, match=r"you have 2 running tasks.*cancel a task"):
            await start(engine, "river", owner="alice")
        bobs = await start(engine, "hold", owner="bob")
        with pytest.raises(OverloadedError, match="there are 3 running tasks"):
            await start(engine, "river", owner="carol")
        # A message to a working task needs no additional permit.
        await start(engine, "river", owner="bob", task_id=bobs.task_id)
        await engine.cancel_task(held[0].task_id, "alice")
        while limits.tasks.used == 3:
            await anyio.lowlevel.checkpoint()
        again = await start(engine, "river", owner="alice")
        scripted.go_on.set()
        for task, owner in ((again, "alice"), (held[1], "alice"), (bobs, "bob")):
            assert (await state_of(engine, task, owner))[0] is TaskState.COMPLETED
    assert (limits.tasks.used, limits.tasks.callers) == (0, 0)


async def test_a_task_that_waits_for_its_caller_takes_no_place_until_it_goes_on() -> None:
    limits, scripted = Limits(max_tasks=1), Scripted()
    async with engine_with(scripted, running_tasks=limits.tasks) as engine:
        question = await start(engine, "ask")
        assert (await state_of(engine, question))[0] is TaskState.INPUT_REQUIRED
        while limits.tasks.used:
            await anyio.lowlevel.checkpoint()
        await start(engine, "hold")
        with pytest.raises(OverloadedError):
            await start(engine, "river", task_id=question.task_id)
        # The refused message is not in the history.
        assert len((await engine.get_task(question.task_id)).history) == 1
        scripted.go_on.set()
        while limits.tasks.used:
            await anyio.lowlevel.checkpoint()
        more = await start(engine, "river", task_id=question.task_id)
        assert (await state_of(engine, more))[0] is TaskState.COMPLETED


@pytest.mark.parametrize("failing", ["fail", "crash"])
async def test_a_task_that_fails_gives_its_place_back(failing: str) -> None:
    limits = Limits(max_tasks=1)
    async with engine_with(Scripted(), running_tasks=limits.tasks) as engine:
        for _ in range(3):
            assert (await state_of(engine, await start(engine, failing)))[0] is TaskState.FAILED
            while limits.tasks.used:
                await anyio.lowlevel.checkpoint()


async def test_the_refusal_has_its_form_on_the_wire() -> None:
    settings = {
        "store": "sqlite://",
        "caller_keys": "alice:k1,bob:k2",
        "bounds": {"max_caller_tasks": 1, "max_tasks": 2},
    }
    scripted = Scripted()
    async with (
        serving(create_app(Settings.model_validate(settings), handler=scripted)) as url,
        Rpc(url) as rpc,
    ):
        at_once = message("hold") | {"configuration": {"returnImmediately": True}}
        await rpc.call("SendMessage", at_once, ALICE)
        error = await rpc.error("SendMessage", message("river"), ALICE)
        assert (error["code"], error["data"][0]["reason"]) == (-32010, "RATE_LIMIT_EXCEEDED")
        assert error["data"][0]["metadata"] == {
            "limit": "max_caller_tasks",
            "allowed": "1",
            "retryAfter": "2",
        }
        body = message("river")
        async with rpc.http.post(f"{url}/message:stream", json=body, headers=ALICE) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "2")
        answer = await rpc.call("SendMessage", message("river"), BOB)
        assert text_of(answer["result"]["task"]) == "river"
        scripted.go_on.set()
        while "error" in await rpc.call("SendMessage", message("river"), ALICE):
            pass


# --- duration and size ------------------------------------------------------------------------------------------


async def test_an_answer_that_takes_too_long_fails_with_what_it_has() -> None:
    scripted = Scripted()
    async with engine_with(scripted, max_turn_seconds=1) as engine:
        task = await start(engine, "hold")
        state, words = await state_of(engine, task)
        assert (state, words) == (TaskState.FAILED, "the response took longer than the maximum of 1 seconds")
        await scripted.stopped.wait()
        assert (await engine.get_task(task.task_id)).artifacts[0].parts[0].text == "held"
        assert (await state_of(engine, await start(engine, "river")))[0] is TaskState.COMPLETED


async def test_waiting_for_another_turn_of_the_conversation_is_not_counted() -> None:
    scripted = Scripted()
    async with engine_with(scripted, max_turn_seconds=1) as engine:
        first = await start(engine, "hold", context_id="c")
        second = await start(engine, "hold", context_id="c")
        assert (await state_of(engine, first))[0] is TaskState.FAILED
        while len(scripted.turns) < 2:
            await anyio.lowlevel.checkpoint()
        scripted.go_on.set()
        assert (await state_of(engine, second))[0] is TaskState.COMPLETED


async def test_one_read_creates_as_many_events_as_the_size_of_an_event_requires() -> None:
    words = [f"word {number}, " for number in range(40)]
    async with ScriptedUpstream([b"".join(answer(*words))]) as upstream:
        app = create_app(
            Settings(store="sqlite://", bounds=Bounds(max_event_bytes=100)),
            handler=AgentHandler(Agent(model_at(upstream))),
        )
        async with serving(app) as url, Rpc(url) as rpc:
            events = await rpc.stream("SendStreamingMessage", message("Go"))
            task = await rpc.result("GetTask", {"id": events[0][1]["task"]["id"]})
    texts = [
        event["artifactUpdate"]["artifact"]["parts"][0]["text"]
        for _, event in events
        if "artifactUpdate" in event
    ]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert "".join(texts) == text_of(task) == "".join(words)
    assert 1 < len(texts) < len(words)
    assert max(map(len, texts)) <= 100


@pytest.mark.parametrize("large", ["artifact", "status", "text"])
async def test_an_update_that_is_too_large_for_an_event_fails_the_task_with_what_it_has(large: str) -> None:
    async def work(_: Turn) -> Updates:
        yield ArtifactUpdate(Artifact(artifact_id="a", parts=(Part(text="x" * 100),)))
        part = Part(data="y" * 101)
        if large == "artifact":
            yield ArtifactUpdate(Artifact(artifact_id="b", parts=(part,)))
        elif large == "text":
            yield ArtifactUpdate(Artifact(artifact_id="a", parts=(Part(text="x" * 60),)), last=False)
            yield TextDelta("a", "é" * 20)
            yield TextDelta("a", "é" * 51)
        else:
            yield StatusUpdate(TaskState.WORKING, agent_message("y" * 101))

    async with engine_with(work, max_event_bytes=100) as engine:
        task = await start(engine, "go")
        state, words = await state_of(engine, task)
        assert state is TaskState.FAILED
        assert "the maximum for an event is 100" in words
        assert [each.artifact_id for each in (await engine.get_task(task.task_id)).artifacts] == ["a"]

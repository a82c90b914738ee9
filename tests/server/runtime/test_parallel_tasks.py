"""Tasks of one context that run in parallel, and the limit of waiting for one that does not end."""

from typing import Any

import anyio
import pytest

from support.engines import Turns
from support.live_server import serving
from support.nodes import RunEngine
from support.rpc import Rpc, message
from tailrace.server import Settings, create_app
from tailrace.server.runtime.active_task import Subscription
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import FunctionHandler
from tailrace.server.runtime.messages import history_of, in_turns
from tailrace.server.settings import Bounds
from tailrace.server.store.store import Store
from tailrace.streaming import Event, TaskState
from tailrace.streaming.a2a.models import Message, Part, Role, StreamResponse
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI

PARALLEL = {EXTENSION_URI: {"parallel": True}}
IN_ORDER = {EXTENSION_URI: {"parallel": False}}


def request(
    text: str, metadata: dict[str, Any] | None = None, *, context_id: str = "c", task_id: str = ""
) -> SendMessageRequest:
    message = Message(
        message_id=text, role=Role.USER, parts=(Part(text=text),), context_id=context_id, task_id=task_id
    )
    return SendMessageRequest(message=message, metadata=metadata or {})


async def start(engine: Engine, send_request: SendMessageRequest) -> Subscription:
    started = await engine.start(send_request)
    assert isinstance(started, Subscription)
    await started.wait_for_start()
    return started


async def ended(subscription: Subscription) -> Event:
    with anyio.fail_after(30):
        return [event async for batch in subscription.batches(until_interrupted=True) for event in batch][-1]


def reason(event: Event) -> str:
    update = StreamResponse.from_json(event.body).status_update
    assert update is not None
    assert update.status.message is not None
    return update.status.message.parts[0].text or ""


async def test_a_task_runs_in_parallel_if_its_request_has_the_option(run_engine: RunEngine) -> None:
    turns = Turns()
    async with run_engine(turns) as engine:
        first = await start(engine, request("one"))
        await turns.begun("one")
        second = await start(engine, request("two", PARALLEL))
        await turns.begun("two")
        third = await start(engine, request("three", PARALLEL))
        await turns.begun("three")
        turns.end("three")
        await ended(third)
        fourth = await start(engine, request("four", PARALLEL))
        await turns.begun("four")
        turns.end("one", "two", "four")
        for each in (first, second, fourth):
            assert (await ended(each)).state is TaskState.COMPLETED
        last = await start(engine, request("last"))
        turns.end("last")
        await ended(last)
        conversation = await engine.conversation("c", "", 100)
    assert turns.histories["two"] == ["two"]
    assert turns.histories["three"] == ["three"]
    assert turns.histories["four"] == ["three", "re three", "four"]
    whole = ["one", "re one", "two", "re two", "three", "re three", "four", "re four", "last"]
    assert turns.histories["last"] == whole
    assert [entry.parts[0].text for entry in conversation] == [*whole, "re last"]


async def test_a_setting_runs_them_in_parallel_and_a_request_in_order(run_engine: RunEngine) -> None:
    turns = Turns()
    async with run_engine(turns, parallel_tasks=True) as engine:
        first = await start(engine, request("one", IN_ORDER))
        second = await start(engine, request("two"))
        await turns.begun("one")
        await turns.begun("two")
        third = await start(engine, request("three", IN_ORDER))
        turns.end("two")
        await ended(second)
        assert "three" not in turns.histories
        turns.end("one", "three")
        await ended(first)
        await ended(third)
    assert turns.histories["three"] == ["one", "re one", "two", "re two", "three"]


async def test_the_option_holds_for_further_messages_of_the_task(run_engine: RunEngine) -> None:
    turns = Turns()
    async with run_engine(turns) as engine:
        turns.end("two?")
        first = await start(engine, request("one"))
        await turns.begun("one")
        second = await start(engine, request("two?", PARALLEL))
        assert (await ended(second)).state is TaskState.INPUT_REQUIRED
        turns.end("more")
        more = await start(engine, request("more", task_id=second.task_id))
        assert (await ended(more)).state is TaskState.COMPLETED
        assert turns.histories["more"] == ["two?", "re two?", "more"]
        turns.end("one")
        assert (await ended(first)).state is TaskState.COMPLETED


async def test_a_hanging_task_blocks_its_context_for_a_limited_time(run_engine: RunEngine) -> None:
    turns = Turns()
    async with run_engine(turns, max_context_wait=0.1) as engine:
        first = await start(engine, request("one", context_id=""))
        await turns.begun("one")
        context_id = (await engine.get_task(first.task_id)).context_id
        failed = await ended(await start(engine, request("two", context_id=context_id)))
        assert failed.state is TaskState.FAILED
        assert reason(failed) == (
            "Rate limit exceeded: earlier tasks of the conversation did not end within 0.1 s (TAILRACE_BOUNDS: "
            "max_context_wait); wait for their end or cancel them, then send the message again"
        )
        beside = await start(engine, request("three", PARALLEL, context_id=context_id))
        turns.end("three", "one")
        assert (await ended(beside)).state is TaskState.COMPLETED
        assert (await ended(first)).state is TaskState.COMPLETED
    assert "two" not in turns.histories


async def test_other_contexts_do_not_wait(run_engine: RunEngine) -> None:
    turns = Turns()
    async with run_engine(turns) as engine:
        first = await start(engine, request("one"))
        await turns.begun("one")
        turns.end("two")
        assert (await ended(await start(engine, request("two", context_id="d")))).state is TaskState.COMPLETED
        turns.end("one")
        await ended(first)


async def test_the_settings_reach_the_engine() -> None:
    turns = Turns()
    settings = Settings(store="sqlite://", bounds=Bounds(max_context_wait=0.1), parallel_tasks=True)
    async with serving(create_app(settings, handler=turns)) as url, Rpc(url) as rpc:
        turns.end("two")
        wanted = {"configuration": {"returnImmediately": True}}
        await rpc.result("SendMessage", {**message("one", contextId="c"), **wanted})
        await turns.begun("one")
        task = (await rpc.result("SendMessage", message("two", contextId="c")))["task"]
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        in_order = {**message("three", contextId="c"), "metadata": IN_ORDER}
        await rpc.result("SendMessage", {**in_order, **wanted})
        await turns.begun("three")
        in_order = {**message("four", contextId="c"), "metadata": IN_ORDER}
        task = (await rpc.result("SendMessage", in_order))["task"]
        assert task["status"]["state"] == "TASK_STATE_FAILED"
        refused = await rpc.error("SendMessage", {**in_order, "metadata": {EXTENSION_URI: {"parallel": 3}}})
        assert "parallel" in refused["message"]
        turns.end("one", "three")


def text_message(task_id: str, text: str, role: Role = Role.USER) -> Message:
    return Message(message_id=text, role=role, parts=(Part(text=text),), task_id=task_id, context_id="c")


def answered(task_id: str, text: str) -> Message:
    return text_message(task_id, text, Role.AGENT)


def test_turns_that_were_mixed_are_ordered_by_their_beginning() -> None:
    mixed = [
        text_message("a", "1"),
        text_message("b", "2"),
        answered("b", "re 2"),
        answered("a", "re 1"),
        text_message("b", "3"),
    ]
    assert [each.message_id for each in in_turns(mixed)] == ["1", "re 1", "2", "re 2", "3"]


@pytest.mark.parametrize(
    ("running", "task_id", "is_resumed", "expected"),
    [
        ((), "new", False, ["1", "re 1", "2", "re 2", "3"]),
        (("b",), "new", False, ["1", "re 1", "2", "re 2"]),  # the first turn of b has ended
        (("a", "b"), "b", False, ["1", "re 1", "2", "re 2", "3"]),
        (("b",), "b", True, ["1", "re 1", "2", "re 2", "3"]),
        (("a",), "a", True, ["2", "re 2", "3", "1", "re 1"]),
    ],
)
def test_a_history_has_the_turns_that_have_ended(
    running: tuple[str, ...], task_id: str, is_resumed: bool, expected: list[str]
) -> None:
    mixed = [
        text_message("a", "1"),
        text_message("b", "2"),
        answered("b", "re 2"),
        answered("a", "re 1"),
        text_message("b", "3"),
    ]
    history = history_of(mixed, running, task_id, is_resumed=is_resumed)
    assert [each.message_id for each in history] == expected


async def test_a_turn_that_waits_is_canceled_without_releasing_the_context() -> None:
    turns = Turns()
    async with Engine(Store("sqlite://"), FunctionHandler(turns)).running() as engine:
        first = await start(engine, request("one"))
        await turns.begun("one")
        second = await start(engine, request("two"))
        await engine.cancel_task(second.task_id)
        third = await start(engine, request("three"))
        turns.end("one", "three")
        await ended(first)
        await ended(third)
    assert turns.histories["three"] == ["one", "re one", "three"]  # the turn of "two" has not begun

"""Idempotent sends: a message with an id is accepted once, however often it is sent."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.http_json import HttpJson
from support.live_server import serving
from support.rpc import Rpc, message
from tailrace.server import Settings, Turn, create_app
from tailrace.server.runtime.active_task import CallContext, Subscription
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import FunctionHandler
from tailrace.server.store.store import Retention, Store
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI


class Asker:
    """A handler that asks for input once, then completes. Counts its turns."""

    def __init__(self) -> None:
        self.turns = 0

    async def handle(self, turn: Turn) -> AsyncIterator[Update | Message]:
        self.turns += 1
        yield StatusUpdate(TaskState.WORKING)
        yield ArtifactUpdate(Artifact(artifact_id=f"{turn.number}", parts=(Part(text="hm"),)))
        if turn.number == 1:
            yield StatusUpdate(TaskState.INPUT_REQUIRED)


def request(text: str = "hello", task_id: str = "") -> SendMessageRequest:
    return SendMessageRequest(
        message=Message(message_id="m", role=Role.USER, parts=(Part(text=text),), task_id=task_id)
    )


async def send(engine: Engine, send_request: SendMessageRequest, key: str, owner: str = "") -> Subscription:
    started = await engine.start(send_request, owner, CallContext(send_key=key))
    assert isinstance(started, Subscription)
    async for _ in started.batches(until_interrupted=True):
        pass
    return started


async def test_a_message_of_one_name_is_taken_once() -> None:
    asker = Asker()
    async with Engine(Store("sqlite://"), FunctionHandler(asker.handle)).running() as engine:
        ids: set[str] = set()

        async def once() -> None:
            ids.add((await send(engine, request(), "k")).task_id)

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(once)
        [task_id] = ids
        for _ in range(2):  # a further message of the task, and a late repeat of the first one
            assert (await send(engine, request("more", task_id), "k2")).task_id == task_id
            assert (await send(engine, request(), "k")).task_id == task_id
        task = await engine.get_task(task_id)
        assert asker.turns == 2
        assert [entry.parts[0].text for entry in task.history] == ["hello", "hm", "more", "hm"]
        assert task.status.state is TaskState.COMPLETED
        for other in (request("something else"), request("more", task_id)):
            with pytest.raises(InvalidParamsError, match="idempotency key was used for another message"):
                await engine.start(other, call=CallContext(send_key="k"))
        # Message ids are scoped to their owner; a message without an id is always new.
        assert (await send(engine, request(), "k", owner="else")).task_id != task_id
        assert len({(await send(engine, request(), "")).task_id for _ in range(2)} | ids) == 3


async def test_names_are_kept_over_a_restart_and_as_long_as_the_task(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"

    async def work(turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.COMPLETED)

    async with Engine(Store(url), FunctionHandler(work)).running() as engine:
        task_id = (await send(engine, request(), "k")).task_id
    async with Engine(Store(url), FunctionHandler(work)).running() as engine:
        assert (await send(engine, request(), "k")).task_id == task_id
    store = Store(url, Retention(tasks=1e-6))
    async with Engine(store, FunctionHandler(work)).running() as engine:
        while await store.drop_expired():
            pass
        assert (await send(engine, request(), "k")).task_id != task_id


@pytest.mark.parametrize("how", ["header", "fact"])
async def test_the_name_is_a_header_or_a_fact_of_the_message(how: str) -> None:
    headers = {"Idempotency-Key": "k"} if how == "header" else {}
    facts: dict[str, Any] = {} if headers else {"metadata": {EXTENSION_URI: {"idempotencyKey": "k"}}}
    async with (
        serving(create_app(Settings(store="sqlite://"), handler=Asker().handle)) as url,
        Rpc(url) as rpc,
    ):
        params = {**message(), **facts}
        first = (await rpc.call("SendMessage", params, headers))["result"]["task"]
        events = await rpc.stream("SendStreamingMessage", params, headers)
        assert [event for _, event in events] == [{"task": first}]
        status, again = await HttpJson(rpc).ask("POST", "/message:send", params, headers)
        assert (status, again["task"]) == (200, first)
        error = await rpc.error("SendMessage", {**message("other"), **facts}, headers)
        assert error["code"] == -32602
        error = await rpc.error("SendMessage", message(), {"Idempotency-Key": "k" * 300})
        assert "256 characters" in error["message"]


def legacy(task_id: str, text: str = "hi") -> dict[str, Any]:
    return {"id": task_id, "message": {"role": "user", "parts": [{"type": "text", "text": text}]}}


async def test_a_named_message_may_name_its_task_too() -> None:
    """Before 0.2 the client chooses the task id and messages have none, so a message id may equal a task id."""
    async with (
        serving(create_app(Settings(store="sqlite://"), handler=Asker().handle)) as url,
        Rpc(url) as rpc,
    ):
        answers: list[Any] = []

        async def send_named(task_id: str, key: str) -> None:
            answers.append(await rpc.call("tasks/send", legacy(task_id), {"Idempotency-Key": key}))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for task_id, key in (("a", "b"), ("b", "a"), ("c", "c")):
                    group.start_soon(send_named, task_id, key)
        first = {answer["result"]["id"]: answer["result"] for answer in answers}
        assert set(first) == {"a", "b", "c"}
        again = await rpc.call("tasks/send", legacy("c"), {"Idempotency-Key": "c"})
        assert again["result"] == first["c"]


async def test_a_key_as_a_header_and_as_a_fact_names_the_same_message() -> None:
    asker = Asker()
    app = create_app(Settings(store="sqlite://"), handler=asker.handle)
    async with serving(app) as url, Rpc(url) as rpc:
        params = message("hello")
        first = await rpc.call("SendMessage", params, {"Idempotency-Key": "k"})
        named = {**params, "metadata": {EXTENSION_URI: {"idempotencyKey": "k"}}}
        second = await rpc.call("SendMessage", named)
    assert second["result"]["task"]["id"] == first["result"]["task"]["id"]
    assert asker.turns == 1

"""Calls to the provider are shared between callers, so that none of them can stop the others."""

import json
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from pydantic import SecretStr

from support.live_server import serving
from support.threaded_client import JSON, post
from support.upstream import Received, ScriptedUpstream, Step, Wait, openai_stream
from tailrace.server import Bounds, Settings, create_app
from tailrace.server.runtime.limits import OverloadedError, RateLimitError
from tailrace.server.runtime.upstream_gate import UpstreamGate, share_of


class Calls:
    """Calls through a gate, each until it is ended.

    Attributes:
        begun: The names of the calls that have begun, in order.
    """

    def __init__(self, gate: UpstreamGate, group: TaskGroup) -> None:
        self.begun: list[str] = []
        self._gate = gate
        self._group = group
        self._ends: dict[str, anyio.Event] = {}

    async def start(self, owner: str, *names: str) -> None:
        for name in names:
            self._ends[name] = anyio.Event()
            self._group.start_soon(self._call, owner, name)
            await anyio.wait_all_tasks_blocked()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await anyio.wait_all_tasks_blocked()

    async def _call(self, owner: str, name: str) -> None:
        async with self._gate.call(owner):
            self.begun.append(name)
            await self._ends[name].wait()


@pytest.mark.parametrize(("total", "share"), [(0, 0), (1, 1), (3, 3), (4, 3), (8, 6), (1000, 750)])
def test_the_share_of_a_caller_is_three_quarters(total: int, share: int) -> None:
    assert share_of(total) == share


async def test_callers_with_waiting_calls_take_turns() -> None:
    gate = UpstreamGate(1, 10)
    async with anyio.create_task_group() as group:
        calls = Calls(gate, group)
        await calls.start("a", "a1", "a2", "a3")
        await calls.start("b", "b1", "b2")
        await calls.start(json.dumps(["tenant", "a"]), "a4")
        order = ["a1", "a2", "b1", "a3", "b2", "a4"]
        for at, name in enumerate(order):
            assert calls.begun == order[: at + 1]
            await calls.end(name)
    assert (gate.waiting, gate.running_calls) == (0, 0)


async def test_a_caller_has_its_share_of_the_calls_and_waits_for_more() -> None:
    async with anyio.create_task_group() as group:
        gate = UpstreamGate(4, 4)
        calls = Calls(gate, group)
        await calls.start("a", "a1", "a2", "a3", "a4")
        assert calls.begun == ["a1", "a2", "a3"]
        await calls.start("b", "b1")
        assert calls.begun[3:] == ["b1"]
        for name in ("b1", "a1", "a4", "a2", "a3"):
            await calls.end(name)
        assert calls.begun[4:] == ["a4"]


async def test_the_waiting_calls_of_a_caller_are_bounded_too() -> None:
    async with anyio.create_task_group() as group:
        gate = UpstreamGate(1, 4)
        calls = Calls(gate, group)
        await calls.start("a", *"1234")
        with pytest.raises(RateLimitError, match="3 of your calls to the model wait"):
            gate.check("a")
        gate.check("b")
        await calls.start("b", "5")
        with pytest.raises(OverloadedError):
            gate.check("c")
        for name in "12534":
            await calls.end(name)
        assert calls.begun == list("12534")


async def test_anonymous_callers_have_no_share() -> None:
    async with anyio.create_task_group() as group:
        gate = UpstreamGate(4, 4)
        calls = Calls(gate, group)
        await calls.start("", *"12345678")
        assert calls.begun == list("1234")
        with pytest.raises(OverloadedError):
            gate.check("")
        for name in "12345678":
            await calls.end(name)


async def test_a_call_that_is_cancelled_as_it_begins_gives_its_permit_to_the_next() -> None:
    gate = UpstreamGate(1, 4)
    scope = anyio.CancelScope()

    async def cancelled() -> None:
        with scope:
            async with gate.call("a"):
                await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        calls = Calls(gate, group)
        await gate.enter("a")
        group.start_soon(cancelled)
        await anyio.wait_all_tasks_blocked()
        await calls.start("b", "b1")
        gate.leave("a")  # the cancelled call has the permit, and has not run yet
        assert gate.running_calls == 1
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert calls.begun == ["b1"]
        await calls.end("b1")
    assert (gate.waiting, gate.running_calls) == (0, 0)


async def test_slow_tasks_of_one_caller_do_not_stop_another_one() -> None:
    go_on = anyio.Event()

    def answered(request: Received) -> list[Step]:
        is_slow = "slow" in request.body.decode()
        return [*([Wait(go_on)] if is_slow else []), *openai_stream(["Hello"])]

    async with ScriptedUpstream(answered) as upstream:
        settings = Settings(
            model="openai:m",
            base_url=upstream.base_url,
            api_key=SecretStr("none"),
            store="sqlite://",
            caller_keys="alice:k1,bob:k2",  # pyright: ignore[reportArgumentType]
            bounds=Bounds(max_upstream_calls=4),
        )
        async with serving(create_app(settings)) as url:

            async def send(key: str, text: str, **members: Any) -> dict[str, Any]:
                message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
                body = json.dumps({"message": message, **members}).encode()
                found = await post(f"{url}/message:send", body, {**JSON, "x-api-key": key})
                return json.loads(found.body)["task"]

            for _ in range(6):
                await send("k1", "slow", configuration={"returnImmediately": True})
            await upstream.received(2)
            with anyio.fail_after(30):  # it never returned
                task = await send("k2", "quick")
            assert task["status"]["state"] == "TASK_STATE_COMPLETED"
            go_on.set()

"""Tool calls that were running when the server's process was killed: which of them run again, and approvals to run others again."""

import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from support.postgres import running_postgres
from support.processes import Served, served
from support.rounds import answer, sent
from support.rpc import Rpc, message
from support.upstream import ScriptedUpstream
from support.valkey import running_valkey

TOOLS = """
import os, socket
from tailrace.streaming.tools.tools import tool

def visit(name):
    with socket.create_connection(("127.0.0.1", int(os.environ["OFFICE"]))) as connection:
        connection.sendall(name.encode())
        return connection.recv(100).decode()

def pay(amount: int) -> str:
    "Pay."
    return visit("pay")

@tool(idempotent=True)
def look(city: str) -> str:
    "Look."
    return visit("look")

ALL = [pay, look]
"""
PAY, LOOK = ("c1", "pay", {"amount": 3}), ("c2", "look", {"city": "Rome"})
LOST = "the server stopped before the tool returned a result; the tool may have had an effect"


class Office:
    """A place that the tools visit. Visitors wait there until it opens; later ones get an answer at once.

    Attributes:
        visits: The number of visits of each tool.
        port: The listening port.
    """

    def __init__(self) -> None:
        self.visits: Counter[str] = Counter()
        self.is_open = anyio.Event()
        self.port = 0
        self._visited = anyio.Condition()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Office"]:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.port = listener.extra(SocketAttribute.local_port)
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, self._receive)
            yield self
            group.cancel_scope.cancel()

    async def wait_for(self, count: int) -> None:
        """Wait for a number of visits."""
        async with self._visited:
            while self.visits.total() < count:
                await self._visited.wait()

    async def _receive(self, stream: SocketStream) -> None:
        async with stream:
            name = (await stream.receive()).decode()
            async with self._visited:
                self.visits[name] += 1
                self._visited.notify_all()
            await self.is_open.wait()
            try:
                await stream.send(f"result of {name}".encode())
            except anyio.BrokenResourceError:
                pass  # the process of this visitor was killed


@asynccontextmanager
async def after_a_kill(
    upstream: ScriptedUpstream, folder: Path, *options: str, approved: bool = False, nodes: bool = False
) -> AsyncGenerator[tuple[Rpc, str, Office]]:
    """A server whose tools ran when it was killed: the client of its successor, the id of the task, and the place of the tools.

    The successor is the same server, which has started again, or another node.
    """
    (folder / "office_tools.py").write_text(TOOLS)
    async with Office().running() as office, AsyncExitStack() as stack:
        environment = {"PYTHONPATH": str(folder), "OFFICE": str(office.port)}
        store = ["--store", f"sqlite:///{folder}/t.db"]
        if nodes:
            postgres = stack.enter_context(running_postgres())
            valkey = stack.enter_context(running_valkey())
            store = ["--store", await postgres.empty_database("nodes"), "--events", valkey.url()]
            environment["TAILRACE_BOUNDS"] = '{"node_ttl": 2.0}'

        async def start(name: str) -> Served:
            arguments = [
                "--model",
                "openai:m",
                "--base-url",
                upstream.base_url,
                "--tools",
                "office_tools:ALL",
            ]
            process = served(folder / f"{name}.log", *arguments, *store, *options, **environment)
            started = stack.enter_context(process)
            await started.ready()
            return started

        first = await start("first")
        second = await start("second") if nodes else None
        async with Rpc(first.url) as rpc:
            params = {**message("Go."), "configuration": {"returnImmediately": True}}
            task = (await rpc.result("SendMessage", params))["task"]
            with anyio.fail_after(30):
                if approved:
                    task = await ended(rpc, task["id"])
                    params = decisions(task, "approve")
                    params["configuration"] = {"returnImmediately": True}
                    await rpc.result("SendMessage", params)
                await office.wait_for(2)
        first.kill()
        office.is_open.set()
        async with Rpc((second or await start("second")).url) as rpc:
            yield rpc, task["id"], office


async def ended(rpc: Rpc, task_id: str) -> dict[str, Any]:
    """The task at the end of its turn."""
    with anyio.fail_after(30):
        while state_of(task := await rpc.result("GetTask", {"id": task_id})) in ("SUBMITTED", "WORKING"):
            pass
    return task


def state_of(task: dict[str, Any]) -> str:
    return task["status"]["state"].removeprefix("TASK_STATE_")


def requests_of(task: dict[str, Any]) -> list[dict[str, Any]]:
    parts = task["status"]["message"]["parts"]
    return [entry for part in parts for entry in part.get("data", {}).get("approval_requests", ())]


def decisions(task: dict[str, Any], decision: str) -> dict[str, Any]:
    """The parameters of a send that decides about all calls that wait."""
    entries = [{"digest": request["digest"], "decision": decision} for request in requests_of(task)]
    members = {"taskId": task["id"], "parts": [{"data": {"approval_responses": entries}}]}
    return {"message": {**message()["message"], **members}}


def results_in(request: Any) -> dict[str, str]:
    """The results in the request of a model, by the ids of the calls."""
    return {each["tool_call_id"]: each["content"] for each in sent(request) if each["role"] == "tool"}


@pytest.mark.parametrize("approved", [False, True])
@pytest.mark.parametrize("nodes", [False, True])
async def test_an_idempotent_tool_runs_again_and_the_result_of_another_is_an_error(
    tmp_path: Path, approved: bool, nodes: bool
) -> None:
    options = ["--approve", "*"] if approved else []
    async with ScriptedUpstream(answer(calls=[PAY, LOOK]), answer("Done.")) as upstream:
        killed = after_a_kill(upstream, tmp_path, *options, approved=approved, nodes=nodes)
        async with killed as (rpc, task_id, office):
            task = await ended(rpc, task_id)
        second = await upstream.received(1)
    assert state_of(task) == "COMPLETED"
    assert office.visits == {"pay": 1, "look": 2}
    assert results_in(second) == {"c1": json.dumps({"error": LOST}), "c2": "result of look"}


@pytest.mark.parametrize(("decision", "approved"), [("approve", True), ("reject", False)])
async def test_the_caller_decides_whether_a_call_runs_again(
    tmp_path: Path, decision: str, approved: bool
) -> None:
    options = ["--on-lost-result", "ask", *(["--approve", "pay"] if approved else [])]
    calls = [PAY, ("c3", "pay", {"amount": 4})]
    async with ScriptedUpstream(answer(calls=calls), answer("Done.")) as upstream:
        async with after_a_kill(upstream, tmp_path, *options, approved=approved) as (rpc, task_id, office):
            task = await ended(rpc, task_id)
            assert state_of(task) == "INPUT_REQUIRED"
            assert [(each["name"], each["reason"]) for each in requests_of(task)] == [("pay", LOST)] * 2
            assert f"Approval required: pay ({LOST})" in str(task["status"]["message"])
            assert office.visits == {"pay": 2}
            task = (await rpc.result("SendMessage", decisions(task, decision)))["task"]
        second = await upstream.received(1)
    assert state_of(task) == "COMPLETED"
    results = list(results_in(second).values())
    if decision == "approve":
        assert office.visits == {"pay": 4}
        assert results == ["result of pay"] * 2
    else:
        assert office.visits == {"pay": 2}
        error = f"the user rejected the call; {LOST}; it did not run again"
        assert results == [json.dumps({"error": error})] * 2


async def test_an_idempotent_tool_runs_again_while_another_waits_for_its_approval(tmp_path: Path) -> None:
    async with ScriptedUpstream(answer(calls=[PAY, LOOK]), answer("Done.")) as upstream:
        async with after_a_kill(upstream, tmp_path, "--on-lost-result", "ask") as (rpc, task_id, office):
            task = await ended(rpc, task_id)
            assert [each["call_id"] for each in requests_of(task)] == ["c1"]
            assert office.visits == {"pay": 1, "look": 2}
            task = (await rpc.result("SendMessage", decisions(task, "approve")))["task"]
        second = await upstream.received(1)
    assert state_of(task) == "COMPLETED"
    assert office.visits == {"pay": 2, "look": 2}
    assert results_in(second) == {"c1": "result of pay", "c2": "result of look"}


async def test_the_task_fails_if_the_setting_requires_it(tmp_path: Path) -> None:
    async with ScriptedUpstream(answer(calls=[PAY, LOOK]), answer("Done.")) as upstream:
        async with after_a_kill(upstream, tmp_path, "--on-lost-result", "fail") as (rpc, task_id, office):
            task = await ended(rpc, task_id)
    assert state_of(task) == "FAILED"
    assert task["status"]["message"]["parts"][0]["text"] == f"pay: {LOST}"
    assert office.visits == {"pay": 1, "look": 1}
    assert len(upstream.requests) == 1

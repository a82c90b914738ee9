"""Tasks of one conversation that wait for their caller at the same time."""

from typing import Any
from uuid import uuid4

import pytest

from support.approval_server import serving_approvals
from support.live_server import serving
from support.rounds import answer, model_at, sent
from support.rpc import Rpc, message
from support.upstream import ScriptedUpstream
from tailrace.server import AgentHandler, Settings, create_app
from tailrace.streaming import Agent
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI

MAIL = answer(calls=[("c1", "send_mail", {"to": "ann@example.com"})])
"""The same call in each task: only the id of the task tells them apart."""


async def reply(rpc: Rpc, task: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    fields = {"messageId": str(uuid4()), "role": "ROLE_USER", "taskId": task["id"], "parts": [{"data": data}]}
    return (await rpc.result("SendMessage", {"message": fields}))["task"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_calls_of_two_tasks_run_when_each_is_approved(order: tuple[int, int]) -> None:
    async with (
        serving_approvals(MAIL, MAIL, answer("One."), answer("Two.")) as server,
        Rpc(server.url) as rpc,
    ):
        tasks = [(await rpc.result("SendMessage", message(text, contextId="c")))["task"] for text in "ab"]
        for count, (index, text) in enumerate(zip(order, ("One.", "Two."), strict=True), 1):
            [request] = tasks[index]["status"]["message"]["parts"][-1]["data"]["approval_requests"]
            decision = {"digest": request["digest"], "decision": "approve"}
            task = await reply(rpc, tasks[index], {"approval_responses": [decision]})
            assert task["status"]["state"] == "TASK_STATE_COMPLETED"
            assert server.ran == ["ann@example.com"] * count
            assert task["artifacts"][-1]["parts"][0]["text"] == text
            # The model receives the call of this task, and its result, last.
            *_, question, call, result = sent(await server.upstream.received(1 + count))
            assert question["content"] == "ab"[index]
            assert call["tool_calls"][0]["id"] == result["tool_call_id"]
            assert result["content"] == "sent to ann@example.com"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_results_of_the_callers_tools_belong_to_the_calls_of_their_task(order: tuple[int, int]) -> None:
    declared: dict[str, Any] = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    options: dict[str, Any] = {"metadata": {EXTENSION_URI: {"tools": [declared]}}}
    calls = [answer(calls=[(f"c{number}", "look", {})]) for number in range(2)]
    async with ScriptedUpstream(*calls, answer("One."), answer("Two.")) as upstream:
        app = create_app(Settings(store="sqlite://"), handler=AgentHandler(Agent(model_at(upstream))))
        async with serving(app) as url, Rpc(url) as rpc:
            tasks = [
                (await rpc.result("SendMessage", {**message(text, contextId="c"), **options}))["task"]
                for text in "ab"
            ]
            for count, index in enumerate(order, 1):
                result = {"call_id": f"c{index}", "output": f"seen {index}"}
                task = await reply(rpc, tasks[index], {"tool_results": [result]})
                assert task["status"]["state"] == "TASK_STATE_COMPLETED"
                *_, question, call, answered = sent(await upstream.received(1 + count))
                assert question["content"] == "ab"[index]
                assert call["tool_calls"][0]["id"] == answered["tool_call_id"] == f"c{index}"
                assert answered["content"] == f"seen {index}"

"""Approvals in the official clients of the AI SDK and of AG-UI: a server whose tool requires an approval."""

from collections.abc import AsyncGenerator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from e2e.clients.agent import ANSWER, Agent, serving_agent
from e2e.clients.programs import TESTS, Client, running_client
from e2e.ui_streams.conftest import program
from support.fixture_contexts import in_own_task
from support.rpc import tasks_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

Fields = dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Agent]:
    environment = {
        "TAILRACE_TOOLS": "support.approval_tools:buy",
        "TAILRACE_APPROVALS": "buy",
        "PYTHONPATH": str(TESTS),
    }
    folder = tmp_path_factory.mktemp("approvals")
    async with in_own_task(serving_agent(folder, **environment)) as agent:
        yield agent


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["7", "6"])
async def ai_sdk(request: pytest.FixtureRequest, agent: Agent) -> AsyncGenerator[Client]:
    async with in_own_task(running_client(program("ai_sdk", request.param), agent.url)) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ag_ui(agent: Agent) -> AsyncGenerator[Client]:
    async with in_own_task(running_client(program("ag_ui"), agent.url)) as client:
        yield client


def calls(message: Fields) -> list[Fields]:
    return [part for part in message["parts"] if part["type"] == "dynamic-tool"]


def text(message: Fields) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


@pytest.mark.parametrize("is_loaded", [False, True], ids=["same page", "loaded page"])
@pytest.mark.parametrize("approved", [True, False], ids=["approved", "rejected"])
async def test_a_chat_of_the_ai_sdk_decides_about_a_call(
    agent: Agent, ai_sdk: Client, approved: bool, is_loaded: bool
) -> None:
    chat = f"chat-{uuid4()}"
    waiting = await ai_sdk.ask("send", chat=chat, text="buy")
    if is_loaded:
        waiting = await ai_sdk.ask("load", chat=chat)
    assert (waiting["status"], waiting["errors"]) == ("ready", [])
    [call] = calls(waiting["messages"][-1])
    assert (call["toolName"], call["state"], call["input"]) == ("buy", "approval-requested", {"amount": 500})
    decision = {"approved": approved} if approved else {"approved": False, "reason": "too expensive"}
    decided = await ai_sdk.ask("decide", chat=chat, approval=call["approval"]["id"], **decision)
    assert (decided["status"], decided["errors"]) == ("ready", [])
    [call] = calls(decided["messages"][-1])
    if approved:
        assert (call["state"], call["output"]) == ("output-available", "bought for 500")
    else:
        assert call["state"] == "output-denied"
        assert call["approval"]["reason"] == "too expensive"
    expected = "bought for 500" if approved else "too expensive"
    assert expected in text(decided["messages"][-1])  # the model has the result
    assert [message["role"] for message in decided["messages"]] == ["user", "assistant"]
    [task] = await tasks_of(agent.url, chat)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    on = await ai_sdk.ask("send", chat=chat, text="Thanks")
    assert on["errors"] == []
    assert len(await tasks_of(agent.url, chat)) == 2  # no branch


RESPONSES = {
    "approved": ({"approved": True}, "bought for 500"),
    "edited": ({"approved": True, "editedArgs": {"amount": 7}}, "bought for 7"),
    "rejected": ({"approved": False, "reason": "too expensive"}, "too expensive"),
}


@pytest.mark.parametrize("is_joined", [False, True], ids=["same client", "joined"])
@pytest.mark.parametrize("name", RESPONSES)
async def test_a_thread_of_ag_ui_decides_about_a_call(
    agent: Agent, ag_ui: Client, name: str, is_joined: bool
) -> None:
    thread = f"thread-{uuid4()}"
    payload, expected = RESPONSES[name]
    waiting = await ag_ui.ask("send", thread=thread, text="buy")
    if is_joined:
        waiting = await ag_ui.ask("join", thread=thread)
    [interrupt] = waiting["interrupts"]
    [call] = waiting["messages"][-1]["toolCalls"]
    assert (interrupt["reason"], interrupt["toolCallId"]) == ("tool_call", call["id"])
    assert call["function"] == {"name": "buy", "arguments": '{"amount": 500}'}
    responses = {interrupt["id"]: {"status": "resolved", "payload": payload}}
    resumed = await ag_ui.ask("resume", thread=thread, responses=responses)
    assert resumed["interrupts"] == []
    assert resumed["events"][-1]["outcome"] == {"type": "success"}
    assert [message["role"] for message in resumed["newMessages"]] == ["tool", "assistant"]
    assert all(expected in message["content"] for message in resumed["newMessages"])
    [task] = await tasks_of(agent.url, thread)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    on = await ag_ui.ask("send", thread=thread, text="Thanks")
    assert [message["content"] for message in on["newMessages"]] == [ANSWER]
    assert len(await tasks_of(agent.url, thread)) == 2


async def test_an_interrupt_that_is_cancelled_rejects_the_call(agent: Agent, ag_ui: Client) -> None:
    thread = f"thread-{uuid4()}"
    waiting = await ag_ui.ask("send", thread=thread, text="buy")
    [interrupt] = waiting["interrupts"]
    resumed = await ag_ui.ask("resume", thread=thread, responses={interrupt["id"]: {"status": "cancelled"}})
    assert "rejected the call" in resumed["newMessages"][0]["content"]
    [task] = await tasks_of(agent.url, thread)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"

"""Threads of AG-UI's official client, which validates every stream."""

from typing import Any
from uuid import uuid4

import pytest

from e2e.clients.agent import ANSWER, FIRST_HALF, REASONING, Agent
from e2e.clients.programs import Client, RefusedError
from support.rpc import tasks_of, text_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

Fields = dict[str, Any]


def thread_id() -> str:
    return f"thread-{uuid4()}"


def outline(messages: list[Fields]) -> list[tuple[str, str]]:
    return [(message["role"], message.get("content", "")) for message in messages]


async def test_a_conversation_of_two_runs(agent: Agent, ag_ui: Client) -> None:
    thread = thread_id()
    first = await ag_ui.ask("send", thread=thread, text="think")
    assert outline(first["messages"]) == [("user", "think"), ("reasoning", REASONING), ("assistant", ANSWER)]
    started, *_, finished = first["events"]
    assert (started["type"], started["protocolVersion"]) == ("RUN_STARTED", "1.0")
    assert (finished["type"], finished["outcome"]) == ("RUN_FINISHED", {"type": "success"})
    second = await ag_ui.ask("send", thread=thread, text="And now?")
    assert outline(second["newMessages"]) == [("assistant", ANSWER)]
    counts = {"inputTokens": 7, "outputTokens": 8, "totalTokens": 15}
    [usage] = second["events"][-1]["usage"]
    assert usage.items() >= counts.items()
    assert [text_of(task) for task in await tasks_of(agent.url, thread)] == [ANSWER, ANSWER]


async def test_the_clients_own_tool_is_called_and_answered(agent: Agent, ag_ui: Client) -> None:
    thread = thread_id()
    waiting = await ag_ui.ask("send", thread=thread, text="weather")
    [message] = waiting["newMessages"]
    [call] = message["toolCalls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Zürich"}'}
    assert waiting["events"][-1]["outcome"] == {"type": "success", "pendingToolCallIds": [call["id"]]}
    answered = await ag_ui.ask("answer", thread=thread, call=call["id"], content="sunny")
    assert outline(answered["newMessages"]) == [("assistant", "The tool says: sunny.")]
    assert [message["role"] for message in answered["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert len(await tasks_of(agent.url, thread)) == 1
    on = await ag_ui.ask("send", thread=thread, text="Thanks")
    assert outline(on["newMessages"]) == [("assistant", ANSWER)]
    assert len(await tasks_of(agent.url, thread)) == 2


async def test_a_client_that_leaves_can_return_to_the_full_conversation(agent: Agent, ag_ui: Client) -> None:
    thread, pause = thread_id(), agent.model.pause()
    await ag_ui.ask("send", thread=thread, text="think")
    sending = await ag_ui.stream("send", thread=thread, text=pause.prompt)
    await pause.reached.wait()
    await ag_ui.ask("reach", thread=thread, text="four")
    await ag_ui.ask("leave_run", thread=thread)
    async for _ in sending:
        pass
    assert outline(sending.result["newMessages"]) == [("assistant", FIRST_HALF)]
    [task] = [task for task in await tasks_of(agent.url, thread) if "WORKING" in task["status"]["state"]]
    assert text_of(task) == FIRST_HALF
    # A client without messages receives the history and follows the running task.
    joining = await ag_ui.stream("join", thread=thread)
    await ag_ui.ask("reach", thread=thread, text="four")
    pause.go_on.set()
    async for _ in joining:
        pass
    expected = [("user", "think"), ("reasoning", REASONING), ("assistant", ANSWER)]
    assert outline(joining.result["messages"]) == [*expected, ("user", pause.prompt), ("assistant", ANSWER)]
    again = await ag_ui.ask("join", thread=thread)
    assert outline(again["messages"]) == outline(joining.result["messages"])
    # It can continue the conversation.
    on = await ag_ui.ask("send", thread=thread, text="Thanks")
    assert outline(on["newMessages"]) == [("assistant", ANSWER)]
    assert len(await tasks_of(agent.url, thread)) == 3


async def test_an_error_of_the_provider_ends_the_run(ag_ui: Client) -> None:
    seen = await ag_ui.ask("send", thread=thread_id(), text="fail")
    failed = seen["events"][-1]
    assert failed["type"] == "RUN_ERROR"
    assert "the model is not there" in failed["message"]


async def test_a_rejected_request_has_a_reason(ag_ui: Client) -> None:
    with pytest.raises(RefusedError, match=r"HTTP 400.*at most 200 printable ASCII characters"):
        await ag_ui.ask("send", thread="x" * 201, text="Hello")

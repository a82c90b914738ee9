"""Chats of the official AI SDK: the class behind `useChat`, with its own transport and only our URL."""

from typing import Any
from uuid import uuid4

import anyio
import pytest

from e2e.clients.agent import ANSWER, FIRST_HALF, REASONING, Agent
from e2e.clients.programs import Client
from support.rpc import Rpc, tasks_of, text_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

Fields = dict[str, Any]


def chat_id() -> str:
    return f"chat-{uuid4()}"


def parts(message: Fields, kind: str) -> list[Fields]:
    return [part for part in message["parts"] if part["type"] == kind]


def text(message: Fields) -> str:
    return "".join(part["text"] for part in parts(message, "text"))


async def test_a_conversation_of_two_turns(agent: Agent, ai_sdk: Client) -> None:
    chat = chat_id()
    first = await ai_sdk.ask("send", chat=chat, text="think")
    assert first["status"] == "ready"
    assert first["error"] is None
    assert first["errors"] == []
    assert first["responses"] == [[200, "v1"]]
    question, answer = first["messages"]
    assert text(question) == "think"
    assert [part["text"] for part in parts(answer, "reasoning")] == [REASONING]
    assert text(answer) == ANSWER
    assert {part.get("state") for part in answer["parts"] if "text" in part} == {"done"}
    second = await ai_sdk.ask("send", chat=chat, text="And now?")
    assert [message["role"] for message in second["messages"]] == ["user", "assistant"] * 2
    assert text(second["messages"][-1]) == ANSWER
    assert second["messages"][-1]["metadata"]["usage"]["totalTokens"] == 15
    # Only new messages were forwarded: both belong to one conversation, named after the chat.
    tasks = await tasks_of(agent.url, chat)
    assert [text_of(task) for task in tasks] == [ANSWER, ANSWER]
    assert second["messages"][-1]["metadata"]["taskId"] in {task["id"] for task in tasks}


async def test_the_clients_own_tool_is_called_and_answered(agent: Agent, ai_sdk: Client) -> None:
    chat = chat_id()
    seen = await ai_sdk.ask("send", chat=chat, text="weather")
    assert seen["errors"] == []
    question, answer = seen["messages"]
    assert text(question) == "weather"
    [call] = parts(answer, "tool-get_weather")
    assert (call["state"], call["input"], call["output"]) == (
        "output-available",
        {"city": "Zürich"},
        "sunny in Zürich",
    )
    assert text(answer) == "The tool says: sunny in Zürich."
    [task] = await tasks_of(agent.url, chat)
    assert text_of(task, "text-turn-2") == text(answer)


async def test_a_tool_that_failed_at_the_client_is_reported(ai_sdk: Client) -> None:
    seen = await ai_sdk.ask("send", chat=chat_id(), text="weather", broken=True)
    assert "no such city" in text(seen["messages"][-1])


async def test_a_tool_that_the_client_has_not_declared_waits_for_it_all_the_same(ai_sdk: Client) -> None:
    seen = await ai_sdk.ask("send", chat=chat_id(), text="weather", tools=False)
    [call] = parts(seen["messages"][-1], "dynamic-tool")
    assert (call["state"], call["toolName"], call["output"]) == (
        "output-available",
        "get_weather",
        "sunny in Zürich",
    )
    assert text(seen["messages"][-1]) == "The tool says: sunny in Zürich."


async def test_another_answer_takes_the_place_of_the_first(agent: Agent, ai_sdk: Client) -> None:
    chat = chat_id()
    first = await ai_sdk.ask("send", chat=chat, text="Hello")
    again = await ai_sdk.ask("regenerate", chat=chat)
    assert [message["role"] for message in again["messages"]] == ["user", "assistant"]
    assert again["messages"][-1]["id"] != first["messages"][-1]["id"]
    # The other answer is a branch.
    assert len(await tasks_of(agent.url, chat)) == len(await tasks_of(agent.url, f"{chat}~2")) == 1
    on = await ai_sdk.ask("send", chat=chat, text="And?")
    assert on["errors"] == []
    assert len(on["messages"]) == 4


async def test_a_client_that_leaves_can_return_to_the_full_response(agent: Agent, ai_sdk: Client) -> None:
    chat, pause = chat_id(), agent.model.pause()
    sending = await ai_sdk.stream("send", chat=chat, text=pause.prompt)
    await pause.reached.wait()
    await ai_sdk.ask("reach", chat=chat, text="four")
    left = await ai_sdk.ask("stop", chat=chat)
    assert text(left["messages"][-1]) == FIRST_HALF
    async for _ in sending:
        pass
    [task] = await tasks_of(agent.url, chat)
    assert task["status"]["state"] == "TASK_STATE_WORKING"  # disconnecting does not cancel
    # A reloaded page with its stored messages. Version 6 cannot be sent a message of which it has no part.
    kept = left["messages"] if ai_sdk.kind.binding == "7" else left["messages"][:1]
    back = await ai_sdk.stream("reload", chat=chat, messages=kept)
    await ai_sdk.ask("connect", chat=chat)
    pause.go_on.set()
    async for _ in back:
        pass
    messages = back.result["messages"]
    assert back.result["errors"] == []
    assert [text(message) for message in messages] == [pause.prompt, ANSWER]
    assert messages[-1]["id"] == left["messages"][-1]["id"]
    again = await ai_sdk.ask("reload", chat=chat, messages=messages)
    assert again["responses"] == [[204, None]]
    assert again["messages"] == messages


async def test_an_answer_is_stopped_by_the_address_that_does(agent: Agent, ai_sdk: Client) -> None:
    chat, pause = chat_id(), agent.model.pause()
    sending = await ai_sdk.stream("send", chat=chat, text=pause.prompt)
    await pause.reached.wait()
    await ai_sdk.ask("reach", chat=chat, text="four")
    async with Rpc(agent.url) as rpc, rpc.http.delete(f"{agent.url}/ai-sdk/{chat}/stream") as response:
        assert response.status == 204
    async for _ in sending:
        pass
    assert text(sending.result["messages"][-1]) == FIRST_HALF
    [task] = await tasks_of(agent.url, chat)
    assert task["status"]["state"] == "TASK_STATE_CANCELED"
    assert pause.request is not None
    with anyio.fail_after(5):
        await pause.request.client_left.wait()


async def test_an_error_of_the_provider_reaches_the_chat(ai_sdk: Client) -> None:
    seen = await ai_sdk.ask("send", chat=chat_id(), text="fail")
    assert seen["status"] == "error"
    assert "the model is not there" in seen["error"]


async def test_a_rejected_request_has_a_readable_reason(ai_sdk: Client) -> None:
    seen = await ai_sdk.ask("send", chat="x" * 201, text="Hello")
    assert seen["status"] == "error"
    assert seen["error"] == "a conversation's id is text of at most 200 printable ASCII characters"


async def test_a_page_that_is_loaded_again_gets_the_conversation_from_the_server(
    agent: Agent, ai_sdk: Client
) -> None:
    chat = chat_id()
    await ai_sdk.ask("send", chat=chat, text="fail")
    await ai_sdk.ask("send", chat=chat, text="think")
    before = await ai_sdk.ask("send", chat=chat, text="weather")
    loaded = await ai_sdk.ask("load", chat=chat)
    assert loaded["errors"] == []
    roles = ["user", "user", "assistant", "user", "assistant"]
    assert [message["role"] for message in loaded["messages"]] == roles
    # The page itself has an empty message for the response that failed.
    shown = [message for message in before["messages"] if message["role"] == "user" or text(message)]
    assert [text(message) for message in loaded["messages"]] == [text(message) for message in shown]
    replies = [message["id"] for message in shown if message["role"] == "assistant"]
    assert [message["id"] for message in loaded["messages"] if message["role"] == "assistant"] == replies
    [call] = parts(loaded["messages"][-1], "tool-get_weather")
    assert (call["state"], call["input"], call["output"]) == (
        "output-available",
        {"city": "Zürich"},
        "sunny in Zürich",
    )
    on = await ai_sdk.ask("send", chat=chat, text="And?")
    assert on["errors"] == []
    assert text(on["messages"][-1]) == ANSWER
    assert len(await tasks_of(agent.url, chat)) == 4  # no branch


async def test_a_page_that_is_loaded_during_a_response_gets_the_rest_from_the_stream(
    agent: Agent, ai_sdk: Client
) -> None:
    chat, pause = chat_id(), agent.model.pause()
    await ai_sdk.ask("send", chat=chat, text="hello")
    sending = await ai_sdk.stream("send", chat=chat, text=pause.prompt)
    await pause.reached.wait()
    await ai_sdk.ask("reach", chat=chat, text="four")
    await ai_sdk.ask("stop", chat=chat)
    async for _ in sending:
        pass
    loading = await ai_sdk.stream("load", chat=chat)
    await ai_sdk.ask("connect", chat=chat)
    pause.go_on.set()
    async for _ in loading:
        pass
    messages = loading.result["messages"]
    assert [text(message) for message in messages] == ["hello", ANSWER, pause.prompt, ANSWER]

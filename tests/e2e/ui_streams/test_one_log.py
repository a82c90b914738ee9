"""One server and one conversation: clients of every protocol take part, and follow one another's tasks."""

from typing import Any
from uuid import uuid4

import pytest

from e2e.clients.agent import ANSWER, Agent
from e2e.clients.heard import fold, read_event, state_of, streamed_text
from e2e.clients.kinds import CARD_PATH, HERE, Kind
from e2e.clients.programs import Client, running_client
from e2e.ui_streams.node import NODE

pytestmark = pytest.mark.asyncio(loop_scope="session")

Fields = dict[str, Any]

WEATHER_CALLED = "The tool says: sunny in Zürich."


def texts(messages: list[Fields]) -> list[str]:
    return ["".join(part.get("text", "") for part in message["parts"]) for message in messages]


async def test_a_plain_event_source_reads_the_answer_to_a_chat(
    agent: Agent, ai_sdk: Client, event_source: Client
) -> None:
    seen = await ai_sdk.ask("send", chat=f"chat-{uuid4()}", text="weather")
    assert texts(seen["messages"])[-1] == WEATHER_CALLED
    task_id = seen["messages"][-1]["metadata"]["taskId"]
    whole = await event_source.ask("follow", task=task_id, after=0)
    assert [number for number, _ in whole] == list(range(1, len(whole) + 1))
    # Disconnected in the middle, and resumed.
    half = await event_source.ask("follow", task=task_id, after=0, until=len(whole) // 2)
    rest = await event_source.ask("follow", task=task_id, after=half[-1][0])
    assert half + rest == whole
    events = [read_event(event) for _, event in whole]
    assert fold(events)["text-turn-2"] == WEATHER_CALLED
    assert state_of(events[-1].fields) == "completed"


@pytest.mark.node
async def test_clients_of_three_protocols_hold_one_conversation(
    agent: Agent, ai_sdk: Client, ag_ui: Client
) -> None:
    conversation = f"conversation-{uuid4()}"
    program = (NODE, str(HERE / "javascript/sdk_1_3.mjs"))
    async with running_client(Kind("a2a", program, "1.0", "JSONRPC"), agent.url, CARD_PATH) as a2a:
        first = await ai_sdk.ask("send", chat=conversation, text="Hello")
        assert texts(first["messages"]) == ["Hello", ANSWER]
        # A page of AG-UI joins, receives the history, and calls a tool.
        joined = await ag_ui.ask("join", thread=conversation)
        assert [message["content"] for message in joined["messages"]] == ["Hello", ANSWER]
        waiting = await ag_ui.ask("send", thread=conversation, text="weather")
        [call] = waiting["newMessages"][-1]["toolCalls"]
        answered = await ag_ui.ask("answer", thread=conversation, call=call["id"], content="sunny in Zürich")
        assert answered["newMessages"][-1]["content"] == WEATHER_CALLED
        # An A2A agent joins.
        events = await a2a.events("stream", text="And?", context_id=conversation)
        assert streamed_text([event for event in events if event.kind != "folded"]) == ANSWER
        listed = await a2a.ask("list", context_id=conversation)
        assert [state_of(task) for task in listed["tasks"]] == ["completed"] * 3
    messages = agent.upstream.requests[-1].json["messages"]
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]

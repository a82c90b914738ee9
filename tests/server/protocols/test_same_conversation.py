"""One conversation with tools stores the same history from OpenAI's client and from A2A's."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import openai
from a2a.client import Client
from a2a.types import Message, Part, Role, SendMessageRequest, StreamResponse, Task, TaskState
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct, Value

from support.openai_api import WEATHER, facade_over
from support.rounds import answer
from support.rpc import Rpc
from support.sdk_server import client_at
from support.upstream import ScriptedUpstream
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.conversion.message_conversion import to_common_message
from tailrace.wrappers import Message as CommonMessage
from tailrace.wrappers import Role as Speaker

QUESTION = "Which of Paris, Rome and Oslo is the warmest?"
ROUNDS = (
    answer(
        "Let me see.",
        calls=[("a", "get_weather", {"city": "Paris"}), ("b", "get_weather", {"city": "Rome"})],
        reasoning="Three cities.",
    ),
    answer(calls=[("c", "get_weather", {"city": "Oslo"})]),
    answer("Ro", "me."),
)
DEGREES = {"Paris": "18", "Rome": "24", "Oslo": "9"}


async def kept(url: str, context_id: str) -> list[CommonMessage]:
    """Return the stored conversation."""
    async with Rpc(url) as rpc:
        recorded = (await rpc.result("GetConversation", {"contextId": context_id}))["messages"]
    # Options sent with a message are not part of its text, and the two clients encode them differently.
    return [
        each.model_copy(
            update={"metadata": {key: value for key, value in each.metadata.items() if key != EXTENSION_URI}}
        )
        for each in map(to_common_message, recorded)
    ]


async def by_openai(client: openai.AsyncOpenAI) -> tuple[str, str]:
    """Run the conversation with OpenAI's stream helper; return its id and the last answer."""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    headers: dict[str, str] = {}
    while True:
        tools: Any = [WEATHER]
        async with client.chat.completions.stream(
            model="scripted", messages=messages, tools=tools, extra_headers=headers
        ) as stream:
            async for _ in stream:
                pass
            choice = (await stream.get_final_completion()).choices[0]
            headers = {"x-conversation-id": stream._response.headers["x-conversation-id"]}  # pyright: ignore[reportPrivateUsage]
        messages.append(
            choice.message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
        )
        if choice.finish_reason != "tool_calls":
            return headers["x-conversation-id"], choice.message.content or ""
        for call in choice.message.tool_calls or ():
            city = json.loads(call.function.arguments)["city"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": DEGREES[city]})


async def by_a2a(client: Client) -> tuple[str, str]:
    """Run it with the official A2A client, which executes the tools; return the context's id and the answer."""
    definition = WEATHER["function"]
    tools = [{name: definition[name] for name in ("name", "description", "parameters")}]
    metadata = ParseDict({EXTENSION_URI: {"tools": tools}}, Struct())
    parts = [Part(text=QUESTION)]
    context_id = task_id = ""
    while True:
        message = Message(
            message_id=str(uuid4()), role=Role.ROLE_USER, parts=parts, context_id=context_id, task_id=task_id
        )
        request = SendMessageRequest(message=message, metadata=metadata)
        events = [event async for event in client.send_message(request)]
        task = task_of(events)
        context_id, task_id = task.context_id or context_id, task.id or task_id
        status = events[-1].status_update.status
        if status.state == TaskState.TASK_STATE_COMPLETED:
            return context_id, text_of(events)
        assert status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        calls = [
            call for part in MessageToDict(status.message)["parts"] for call in part["data"]["tool_calls"]
        ]
        results = [
            {"call_id": call["call_id"], "output": DEGREES[call["arguments"]["city"]]} for call in calls
        ]
        parts = [Part(data=ParseDict({"tool_results": results}, Value()))]


def task_of(events: Sequence[StreamResponse]) -> Task:
    return events[0].task


def text_of(events: Sequence[StreamResponse]) -> str:
    """Return the text of the artifacts."""
    return "".join(
        part.text
        for event in events
        if event.HasField("artifact_update") and event.artifact_update.artifact.artifact_id.startswith("text")
        for part in event.artifact_update.artifact.parts
    )


async def test_three_rounds_of_tools_are_kept_alike_whichever_client_runs_them() -> None:
    async with ScriptedUpstream(*ROUNDS, *ROUNDS) as upstream, facade_over(upstream) as facade:
        first, answer_first = await by_openai(facade.client)
        async with client_at(facade.url) as client:
            second, answer_second = await by_a2a(client)
        requests = [request.json for request in upstream.requests]
        one, other = await kept(facade.url, first), await kept(facade.url, second)
    assert (answer_first, answer_second) == ("Rome.", "Rome.")
    assert first != second
    assert requests[:3] == requests[3:]  # the provider's requests are identical
    assert one == other
    assert [each.role for each in one] == [
        Speaker.USER,
        Speaker.MODEL,
        Speaker.TOOL,
        Speaker.MODEL,
        Speaker.TOOL,
        Speaker.MODEL,
    ]
    assert [call.id for each in one for call in each.tool_calls] == ["a", "b", "c"]
    assert [result.output for each in one for result in each.tool_results] == ["18", "24", "9"]
    assert one[1].reasoning == "Three cities."

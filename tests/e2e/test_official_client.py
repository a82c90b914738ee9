"""The official A2A client (a2a-sdk 1.x) against our server: card resolution, streaming, and the other methods."""

from collections.abc import AsyncGenerator
from uuid import uuid4

import anyio
import httpx
import pytest
from a2a.client import A2ACardResolver, Client, ClientConfig, create_client
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import A2AError, TaskNotFoundError, UnsupportedOperationError
from google.protobuf.json_format import MessageToDict

from support.serving import serving
from support.upstream import ScriptedUpstream, Tell, Wait, openai_stream
from tailrace.server import Settings, create_app

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
# What the official client's line splitter would cut an event at, were it sent raw.
TRICKY = ["one\u2028two", "\u2029three\u0085four", " · fünf 😀"]


def settings(upstream: ScriptedUpstream) -> Settings:
    values = {"model": "openai:scripted", "base_url": upstream.base_url, "api_key": "none"}
    return Settings.model_validate({**values, "store": "sqlite://"})


def request(text: str) -> SendMessageRequest:
    message = Message(message_id=str(uuid4()), role=Role.ROLE_USER, parts=[Part(text=text)])
    return SendMessageRequest(message=message, configuration=SendMessageConfiguration())


def texts(events: list[StreamResponse]) -> str:
    return "".join(
        part.text
        for event in events
        if event.HasField("artifact_update")
        for part in event.artifact_update.artifact.parts
    )


@pytest.fixture
async def answering() -> AsyncGenerator[str]:
    async with ScriptedUpstream(openai_stream(TRICKY, usage=USAGE)) as upstream:
        async with serving(create_app(settings(upstream))) as url:
            yield url


async def client_for(url: str, *, streaming: bool = True) -> Client:
    return await create_client(url, ClientConfig(streaming=streaming))


async def test_the_card_is_resolved_and_says_what_the_server_can_do(answering: str) -> None:
    async with httpx.AsyncClient() as http:
        card = await A2ACardResolver(http, answering).get_agent_card()
    assert card.capabilities.streaming
    assert [(each.protocol_binding, each.protocol_version) for each in card.supported_interfaces] == [
        ("JSONRPC", "1.0")
    ]


async def test_a_stream_begins_with_the_task_and_ends_with_its_last_status(answering: str) -> None:
    async with await client_for(answering) as client:
        events = [event async for event in client.send_message(request("hello"))]
    assert events[0].HasField("task")
    assert events[0].task.status.state == TaskState.TASK_STATE_SUBMITTED
    assert events[1].status_update.status.state == TaskState.TASK_STATE_WORKING
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    assert texts(events) == "".join(TRICKY)
    updates = [event.artifact_update for event in events if event.HasField("artifact_update")]
    assert [update.append for update in updates] == [False] + [True] * (len(updates) - 1)
    assert [update.last_chunk for update in updates] == [False] * (len(updates) - 1) + [True]


async def test_a_blocking_send_gives_the_whole_task(answering: str) -> None:
    async with await client_for(answering, streaming=False) as client:
        [event] = [event async for event in client.send_message(request("hello"))]
    assert event.task.status.state == TaskState.TASK_STATE_COMPLETED
    [artifact] = event.task.artifacts
    assert [part.text for part in artifact.parts] == ["".join(TRICKY)]
    facts = MessageToDict(event.task.metadata)["urn:tailrace:ext:stream:v1"]
    assert facts["usage"]["totalTokens"] == 10


async def test_a_finished_task_can_be_fetched_again(answering: str) -> None:
    async with await client_for(answering) as client:
        events = [event async for event in client.send_message(request("hello"))]
        task = await client.get_task(GetTaskRequest(id=events[0].task.id))
        short = await client.get_task(GetTaskRequest(id=events[0].task.id, history_length=0))
    assert task.status.state == TaskState.TASK_STATE_COMPLETED
    assert task.artifacts[0].parts[0].text == "".join(TRICKY)
    assert [message.parts[0].text for message in task.history] == ["hello"]
    assert not short.history


async def test_an_unknown_task_and_a_finished_one_are_refused_by_the_right_errors(answering: str) -> None:
    async with await client_for(answering) as client:
        with pytest.raises(TaskNotFoundError):
            await client.get_task(GetTaskRequest(id="nobody"))
        events = [event async for event in client.send_message(request("hello"))]
        with pytest.raises(UnsupportedOperationError):
            _ = [event async for event in client.subscribe(SubscribeToTaskRequest(id=events[0].task.id))]
        with pytest.raises(A2AError):
            await client.cancel_task(CancelTaskRequest(id=events[0].task.id))


async def test_a_second_client_subscribes_while_the_first_one_reads() -> None:
    go_on, half = anyio.Event(), anyio.Event()
    *start, last, finish, done = openai_stream(["a", "b", "c", "d"])
    async with ScriptedUpstream([*start, Tell(half), Wait(go_on), last, finish, done]) as upstream:
        async with serving(create_app(settings(upstream))) as url, await client_for(url) as client:
            first: list[StreamResponse] = []
            second: list[StreamResponse] = []

            async def subscribe(task_id: str) -> None:
                async with await client_for(url) as other:
                    async for event in other.subscribe(SubscribeToTaskRequest(id=task_id)):
                        second.append(event)
                        go_on.set()

            async with anyio.create_task_group() as group:
                async for event in client.send_message(request("hello")):
                    first.append(event)
                    if texts(first) == "abc" and not go_on.is_set():
                        group.start_soon(subscribe, first[0].task.id)
    assert texts(first) == "abcd"
    assert second[0].task.artifacts[0].parts[0].text + texts(second) == "abcd"
    assert second[-1] == first[-1]


async def test_canceling_ends_the_task_and_closes_the_connection_to_the_provider() -> None:
    never = anyio.Event()
    *start, _, _ = openai_stream(["a", "b"])
    async with ScriptedUpstream([*start, Wait(never)]) as upstream:
        async with serving(create_app(settings(upstream))) as url, await client_for(url) as client:
            events: list[StreamResponse] = []
            async for event in client.send_message(request("hello")):
                events.append(event)
                if texts(events) == "ab" and not upstream_left(upstream):
                    asked = anyio.current_time()
                    async with await client_for(url) as other:
                        task = await other.cancel_task(CancelTaskRequest(id=events[0].task.id))
                    received = await upstream.received()
                    with anyio.fail_after(5):
                        await received.client_left.wait()
                    assert received.left_at is not None
                    assert received.left_at - asked < 1.0
                    assert task.status.state == TaskState.TASK_STATE_CANCELED
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_CANCELED
    assert [event.artifact_update.last_chunk for event in events if event.HasField("artifact_update")][-1]


def upstream_left(upstream: ScriptedUpstream) -> bool:
    return any(request.client_left.is_set() for request in upstream.requests)


async def test_a_conversation_goes_on_in_its_context() -> None:
    scripts = (openai_stream(["Paris"]), openai_stream(["Rome"]))
    async with ScriptedUpstream(*scripts) as upstream:
        async with serving(create_app(settings(upstream))) as url, await client_for(url) as client:
            events = [event async for event in client.send_message(request("Capital of France?"))]
            follow_up = request("And of Italy?")
            follow_up.message.context_id = events[0].task.context_id
            again = [event async for event in client.send_message(follow_up)]
        second = await upstream.received(1)
    assert again[0].task.context_id == events[0].task.context_id
    assert again[0].task.id != events[0].task.id
    said = [(message["role"], message["content"]) for message in second.json["messages"]]
    assert [role for role, _ in said] == ["user", "assistant", "user"]
    assert "Paris" in str(said[1])

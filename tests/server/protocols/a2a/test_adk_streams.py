"""Google ADK stores the event with ``lastChunk`` alone: its tasks have the complete text there, on every path.

The requests are those of google-adk 2.13 (``RemoteA2aAgent``).
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from support.live_server import serving
from support.nodes import RunEngine
from support.rpc import Rpc, message, text_of
from tailrace.server import Settings, Turn, create_app
from tailrace.server.runtime.active_task import Subscription
from tailrace.streaming import ArtifactUpdate, Event, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.a2a.requests import SendMessageRequest

TEXT = "the river to the séa"
Stream = list[tuple[int, dict[str, Any]]]


async def answer(turn: Turn) -> AsyncIterator[Update]:
    yield StatusUpdate(TaskState.WORKING)
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="the river"),)), last=False)
    for word in (" to", " the", " séa"):
        yield TextDelta("text", word)


def adk_message(**fields: Any) -> dict[str, Any]:
    """The parameters of a message as RemoteA2aAgent sends them."""
    parts = [{"text": "hello", "metadata": {"is_user_input": True}}]
    return {"message": {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": parts, **fields}}


def stored_text(events: Stream) -> list[str]:
    """The texts that ADK stores: those of the events that are not partial."""
    updates = [event["artifactUpdate"] for _, event in events if "artifactUpdate" in event]
    return [part["text"] for each in updates if each.get("lastChunk") for part in each["artifact"]["parts"]]


async def test_the_complete_text_is_stored_once_on_every_path(tmp_path: Path) -> None:
    settings = Settings(store=f"sqlite:///{tmp_path}/tasks.db")
    async with serving(create_app(settings, handler=answer)) as url, Rpc(url) as rpc:
        live = await rpc.stream("SendStreamingMessage", adk_message())
        task = live[0][1]["task"]
        assert stored_text(live) == [TEXT]
        again = await rpc.stream("SubscribeToTask", {"id": task["id"]}, {"last-event-id": "0"})
        assert again == live
        second = await rpc.stream("SendStreamingMessage", adk_message(contextId=task["contextId"]))
        assert stored_text(second) == [TEXT]
    async with serving(create_app(settings, handler=answer)) as url, Rpc(url) as rpc:
        for after in range(len(live)):
            rest = await rpc.stream("SubscribeToTask", {"id": task["id"]}, {"last-event-id": str(after)})
            assert rest == live[after:]
        assert text_of(await rpc.result("GetTask", {"id": task["id"]})) == TEXT


async def test_a_response_without_a_stream_has_the_text_once() -> None:
    async with serving(create_app(Settings(store="sqlite://"), handler=answer)) as url, Rpc(url) as rpc:
        task = (await rpc.result("SendMessage", adk_message()))["task"]
        assert text_of(task) == TEXT
        assert [part["text"] for entry in task["history"] for part in entry["parts"]] == ["hello", TEXT]


async def test_other_clients_receive_every_text_once() -> None:
    async with serving(create_app(Settings(store="sqlite://"), handler=answer)) as url, Rpc(url) as rpc:
        assert stored_text(await rpc.stream("SendStreamingMessage", message())) == [""]


@pytest.mark.parametrize("dialect", ["0.3", "0.2"])
async def test_older_versions_have_it_too(dialect: str) -> None:
    part = {"kind": "text", "text": "hello", "metadata": {"is_user_input": True}}
    params = {"message": {"kind": "message", "messageId": "m", "role": "user", "parts": [part]}}
    async with serving(create_app(Settings(store="sqlite://"), handler=answer)) as url, Rpc(url) as rpc:
        headers = {"a2a-version": dialect} if dialect == "0.3" else {}
        events = [event for _, event in await rpc.stream("message/stream", params, headers)]
    [last] = [event for event in events if event.get("lastChunk")]
    assert last["artifact"]["parts"] == [{"kind": "text", "text": TEXT}]
    assert not last.get("append")


async def test_all_nodes_send_the_same_bytes(run_engine: RunEngine) -> None:
    async def read(subscription: Subscription) -> list[Event]:
        return [event async for batch in subscription.batches() for event in batch]

    async with run_engine(answer) as engine:
        started = await engine.start(SendMessageRequest.model_validate(adk_message()))
        assert isinstance(started, Subscription)
        live = await read(started)
        assert await read(await engine.subscribe(started.task_id, after=0)) == live
    assert TEXT.encode() in live[-2].body

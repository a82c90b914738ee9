"""Large updates of a custom handler are encoded outside of the event loop, and are the events that small ones would be."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.engines import engine_with, start, state_of
from tailrace.server.runtime import large_updates
from tailrace.server.runtime.handlers import Item, Turn
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, TextDelta
from tailrace.streaming.a2a import models
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role, StreamResponse
from tailrace.wrappers.concurrency.worker_thread import in_event_loop

SIZE = 2_000_000
PARTS = {
    "text": Part(text="aé\u2028" * (SIZE // 3)),
    "file": Part(raw=bytes(range(256)) * (SIZE // 256), media_type="image/png"),
    "data": Part(data={"rows": ["a" * (SIZE // 2), {"b": "c" * (SIZE // 2)}]}),
    "values": Part(data=list(range(20_000))),
    "metadata": Part(text="x", metadata={"a": "b" * SIZE}),
}
EMPTY = ArtifactUpdate(Artifact(artifact_id="a", parts=(Part(text=""),)), last=False)


@pytest.fixture
def in_loop(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the sizes of objects that are encoded in the event loop."""
    sizes: list[int] = []
    to_json = models.A2AModel.to_json

    def watched(self: models.A2AModel) -> bytes:
        encoded = to_json(self)
        if in_event_loop():
            sizes.append(len(encoded))
        return encoded

    monkeypatch.setattr(models.A2AModel, "to_json", watched)
    return sizes


async def events_of(*items: Item, **options: Any) -> tuple[list[StreamResponse], models.Task]:
    """Return the events after the first one of a task whose handler yields these items, and the task."""

    async def work(_: Turn) -> AsyncIterator[Item]:
        for item in items:
            yield item

    events: list[StreamResponse] = []
    async with engine_with(work, **options) as engine:
        started = await start(engine, "go")
        async for batch in started.batches(until_interrupted=True):
            events += [StreamResponse.from_json(event.body) for event in batch]
        return events[1:], await engine.get_task(started.task_id)


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("append", [False, True], ids=["set", "appended"])
async def test_a_large_artifact(kind: str, append: bool, in_loop: list[int]) -> None:
    large = ArtifactUpdate(Artifact(artifact_id="a", name="n", parts=(PARTS[kind],)), append=append)
    events, task = await events_of(*([EMPTY] * append), large)
    assert max(in_loop) < 100_000
    update = events[append].artifact_update
    assert update is not None
    assert (update.task_id, update.context_id) == (task.id, task.context_id)
    assert (update.artifact, update.append, update.last_chunk) == (large.artifact, append, True)
    parts = task.artifacts[0].parts
    assert parts[-1] == PARTS[kind]
    assert task.status.state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("state", [TaskState.WORKING, TaskState.INPUT_REQUIRED])
async def test_a_large_message_in_a_status(kind: str, state: TaskState, in_loop: list[int]) -> None:
    message = Message(message_id="m", role=Role.AGENT, parts=(PARTS[kind],))
    events, task = await events_of(StatusUpdate(state, message, {"k": [1]}))
    assert max(in_loop) < 100_000
    update = next(each.status_update for each in events if each.status_update is not None)
    ids = {"task_id": task.id, "context_id": task.context_id}
    assert update.status.message == message.model_copy(update=ids)
    assert (update.status.state, update.metadata) == (state, {"k": [1]})


@pytest.mark.parametrize("last", [False, True])
async def test_a_long_delta_is_several_events(last: bool, in_loop: list[int]) -> None:
    text = "x" * (large_updates.MAX_DELTA_CHARACTERS - 1) + "\ud83d\ude00" + "é" * SIZE
    whole = text.replace("\ud83d\ude00", "😀")
    events, task = await events_of(EMPTY, TextDelta("a", text, last=last))
    assert max(in_loop) < 100_000
    updates = [each.artifact_update for each in events[1:] if each.artifact_update is not None]
    texts = ["".join(part.text or "" for part in update.artifact.parts) for update in updates]
    assert "".join(texts) == task.artifacts[0].parts[0].text == whole
    assert max(map(len, texts)) <= large_updates.MAX_DELTA_CHARACTERS + 1
    assert [update.last_chunk for update in updates] == [False] * (len(updates) - 1) + [True]


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (Part(data=[[1] * 10] * 10_000), "more than 100000 JSON values"),
        (Part(text="x", metadata={"k": [1] * 100_001}), "more than 100000 JSON values"),
        (PARTS["file"], "the maximum for an event is 1000000"),
    ],
    ids=["data", "metadata", "bytes"],
)
async def test_an_update_beyond_the_bounds_fails_the_task(part: Part, reason: str) -> None:
    async def work(_: Turn) -> AsyncIterator[Item]:
        yield EMPTY
        yield ArtifactUpdate(Artifact(artifact_id="b", parts=(part,)))

    async with engine_with(work, max_event_bytes=1_000_000) as engine:
        started = await start(engine, "go")
        state, words = await state_of(engine, started)
        assert state is TaskState.FAILED
        assert reason in words
        assert [each.artifact_id for each in (await engine.get_task(started.task_id)).artifacts] == ["a"]

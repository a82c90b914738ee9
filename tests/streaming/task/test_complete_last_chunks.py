"""The last chunk of an artifact repeats it for a client that stores nothing else."""

import json
from typing import Any

import pytest

from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.task.task_record import MAX_COPIED_CHARACTERS, TaskRecord
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update


def record_for(metadata: dict[str, Any]) -> tuple[TaskRecord, list[Event]]:
    message = Message(message_id="m", role=Role.USER, parts=(Part(text="Hi", metadata=metadata),))
    record = TaskRecord.create(message, task_id="t", context_id="c")
    return record, [record.submitted()]


def chunk(text: str, *, append: bool = False, last: bool = False) -> ArtifactUpdate:
    return ArtifactUpdate(Artifact(artifact_id="a", parts=(Part(text=text),)), append=append, last=last)


def update_of(event: Event) -> dict[str, Any]:
    return json.loads(event.body)["artifactUpdate"]


ADK = {"is_user_input": True}
ENDINGS: list[list[Update]] = [
    [TextDelta("a", "", last=True)],
    [TextDelta("a", " sea", last=True)],
    [chunk(" sea", append=True, last=True)],
]


@pytest.mark.parametrize("metadata", [ADK, {"adk_type": "function_response"}])
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_last_chunk_is_the_complete_artifact(metadata: dict[str, Any], ending: list[Update]) -> None:
    record, _ = record_for(metadata)
    record.apply(chunk("river"))
    delta = update_of(record.apply(TextDelta("a", " to é")))
    assert delta["append"]
    assert delta["artifact"]["parts"] == [{"text": " to é"}]
    last = update_of([record.apply(update) for update in ending][-1])
    assert last["lastChunk"]
    assert "append" not in last
    assert last["artifact"] == record.artifacts[0].model_dump(
        mode="json", by_alias=True, exclude_defaults=True
    )
    assert last["artifact"]["parts"][0]["text"].startswith("river to é")


@pytest.mark.parametrize("metadata", [{}, {"other": 1}, {"adkx": 1}])
def test_other_clients_receive_an_empty_last_chunk(metadata: dict[str, Any]) -> None:
    record, _ = record_for(metadata)
    record.apply(chunk("river"))
    last = update_of(record.apply(TextDelta("a", "", last=True)))
    assert (last["append"], last["lastChunk"], last["artifact"]["parts"]) == (True, True, [{"text": ""}])


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_replayed_task_is_the_same_after_every_event(ending: list[Update]) -> None:
    live, events = record_for(ADK)
    updates = [StatusUpdate(TaskState.WORKING), chunk("river"), TextDelta("a", " to"), *ending]
    replayed = TaskRecord(live.snapshot(), 0)
    replayed.replay(events[0])
    for update in updates:
        event = live.apply(update)
        replayed.replay(event)
        assert replayed.snapshot() == live.snapshot()
    assert replayed.closing_updates() == live.closing_updates() == []
    assert replayed.pop_changed_artifacts() == live.pop_changed_artifacts() != []


def test_a_copy_does_not_add_the_text_to_the_conversation_again() -> None:
    live, events = record_for(ADK)
    replayed = TaskRecord(live.snapshot(), 0)
    replayed.replay(events[0])
    for event in (live.apply(chunk("river")), live.apply(TextDelta("a", " to"))):
        replayed.replay(event)
    for record in (live, replayed):
        record.pop_changed_artifacts()  # the message is recorded
    replayed.replay(live.apply(TextDelta("a", "", last=True)))
    assert replayed.pop_changed_artifacts() == live.pop_changed_artifacts() == []


def test_an_artifact_that_a_later_turn_repeats_is_changed() -> None:
    record, _ = record_for({})
    for _ in range(2):
        record.apply(chunk("river", last=True))
        assert len(record.pop_changed_artifacts()) == 1


def test_a_very_large_artifact_is_not_repeated() -> None:
    record, _ = record_for(ADK)
    record.apply(chunk("x" * MAX_COPIED_CHARACTERS))
    small = update_of(record.apply(TextDelta("a", "", last=True)))
    assert "append" not in small
    record, _ = record_for(ADK)
    record.apply(chunk("x" * MAX_COPIED_CHARACTERS))
    assert update_of(record.apply(TextDelta("a", "y", last=True)))["artifact"]["parts"] == [{"text": "y"}]

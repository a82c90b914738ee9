"""Events of a log as the official SDK's objects."""

import json

import pytest
from a2a.types import StreamResponse, Task
from google.protobuf.json_format import MessageToDict

from tailrace.server.protocols.a2a.sdk_events import to_sdk_event, to_stream_response
from tailrace.streaming import EXTENSION_URI, ArtifactUpdate, Event, StatusUpdate, TaskState, TextDelta
from tailrace.streaming.a2a import Artifact, InternalError, Message, Part, Role
from tailrace.streaming.a2a import StreamResponse as OurResponse
from tailrace.streaming.task.task_record import TaskRecord, agent_message


def log() -> list[Event]:
    record = TaskRecord.create(Message(message_id="m", role=Role.USER, parts=(Part(text="hi"),)))
    usage = {EXTENSION_URI: {"usage": {"totalTokens": 3}}, "other": 1}
    artifact = Artifact(
        artifact_id="a", parts=(Part(text="one"),), metadata={EXTENSION_URI: {"channel": "text"}}
    )
    updates = (
        StatusUpdate(TaskState.WORKING),
        ArtifactUpdate(artifact, last=False),
        TextDelta("a", " two"),
        StatusUpdate(TaskState.COMPLETED, agent_message("done"), usage),
    )
    return [record.submitted(), *map(record.apply, updates)]


def test_every_event_has_its_number_beside_the_other_facts() -> None:
    responses = [to_stream_response(event) for event in log()]
    metadata = [MessageToDict(getattr(each, each.WhichOneof("payload") or "").metadata) for each in responses]
    assert metadata[0] == {EXTENSION_URI: {"number": 1}}
    assert metadata[1:4] == [{EXTENSION_URI: {"number": number}} for number in (2, 3, 4)]
    assert metadata[4] == {EXTENSION_URI: {"usage": {"totalTokens": 3}, "number": 5}, "other": 1}
    assert MessageToDict(responses[2].artifact_update.artifact.metadata) == {
        EXTENSION_URI: {"channel": "text"}
    }


def test_without_numbers_an_event_equals_its_body() -> None:
    for event in log():
        response = to_stream_response(event, numbered=False)
        assert OurResponse.model_validate(MessageToDict(response)) == OurResponse.model_validate_json(
            event.body
        )


def test_the_event_itself_is_what_stands_in_the_response() -> None:
    first, *_ = log()
    assert to_sdk_event(first) == to_stream_response(first).task
    assert isinstance(to_sdk_event(first), Task)


def test_a_direct_message_has_no_number() -> None:
    message = agent_message("hello")
    response = to_stream_response(Event(0, OurResponse(message=message).to_json()))
    assert response == StreamResponse(message=response.message)
    assert not response.message.HasField("metadata")


def test_what_protobuf_cannot_carry_is_refused() -> None:
    """No record creates such an event: the model's limit is below protobuf's."""
    value: object = 1
    for _ in range(40):
        value = {"a": value}
    artifact = {"artifactId": "a", "parts": [{"data": value}]}
    body = json.dumps({"artifactUpdate": {"taskId": "t", "contextId": "c", "artifact": artifact}})
    with pytest.raises(InternalError, match="nested too deeply"):
        to_stream_response(Event(2, body.encode()))

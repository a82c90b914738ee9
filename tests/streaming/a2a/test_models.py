"""The objects of A2A 1.0: accepted and rejected input, and output."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from a2a.types import a2a_pb2
from google.protobuf import json_format
from google.protobuf.message import Message as ProtoMessage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.a2a_values import ARTIFACT, CARD, MESSAGE, SEND, STATUS, metadata, name, parts, text, why
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import (
    A2AModel,
    AgentCapabilities,
    AgentCard,
    Artifact,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from tailrace.streaming.a2a.requests import (
    CancelTaskRequest,
    GetTaskRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    SendMessageResponse,
    SubscribeToTaskRequest,
)

# --- inputs -----------------------------------------------------------------------------------------------------


timestamps = st.datetimes(
    min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)
) | st.datetimes(
    min_value=datetime(1970, 1, 1),
    max_value=datetime(2100, 1, 1),
    timezones=st.integers(-14, 14).map(lambda hours: timezone(timedelta(hours=hours))),
)

part_lists = st.lists(parts, min_size=1, max_size=2)
names = st.lists(name, max_size=2)
messages = st.builds(
    Message,
    message_id=name,
    role=st.sampled_from(Role),
    parts=part_lists,
    context_id=text,
    task_id=text,
    metadata=metadata,
    extensions=names,
    reference_task_ids=names,
)
artifacts = st.builds(
    Artifact,
    artifact_id=name,
    parts=part_lists,
    name=text,
    description=text,
    metadata=metadata,
    extensions=names,
)
statuses = st.builds(
    TaskStatus,
    state=st.sampled_from(TaskState),
    message=st.none() | messages,
    timestamp=st.none() | timestamps,
)
tasks = st.builds(
    Task,
    id=name,
    status=statuses,
    context_id=text,
    artifacts=st.lists(artifacts, max_size=2),
    history=st.lists(messages, max_size=2),
    metadata=metadata,
)
stream_responses = st.one_of(
    st.builds(StreamResponse, task=tasks),
    st.builds(StreamResponse, message=messages),
    st.builds(
        StreamResponse,
        status_update=st.builds(
            TaskStatusUpdateEvent, task_id=name, context_id=name, status=statuses, metadata=metadata
        ),
    ),
    st.builds(
        StreamResponse,
        artifact_update=st.builds(
            TaskArtifactUpdateEvent,
            task_id=name,
            context_id=name,
            artifact=artifacts,
            append=st.booleans(),
            last_chunk=st.booleans(),
            metadata=metadata,
        ),
    ),
)

FULL_CARD = CARD | {
    "provider": {"organization": "Example", "url": "https://example.com"},
    "documentationUrl": "https://a.example/docs",
    "iconUrl": "https://a.example/icon.png",
    "capabilities": {
        "streaming": True,
        "pushNotifications": False,
        "extendedAgentCard": False,
        "extensions": [
            {"uri": "urn:x", "description": "An extension", "required": True, "params": {"a": [1]}}
        ],
    },
    "securitySchemes": {
        "key": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
        "login": {"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "JWT"}},
    },
    "securityRequirements": [{"schemes": {"login": {"list": ["read"]}}}],
    "signatures": [{"protected": "e30", "signature": "c2ln", "header": {"kid": "1"}}],
    "skills": [
        CARD["skills"][0]
        | {
            "examples": ["Soup?"],
            "inputModes": ["text/plain"],
            "outputModes": ["application/json"],
            "securityRequirements": [{"schemes": {"key": {}}}],
        }
    ],
}

# One complete object of every kind, in the JSON of the protocol.
EXAMPLES: list[tuple[type[A2AModel], type[ProtoMessage], dict[str, Any]]] = [
    (Part, a2a_pb2.Part, {"text": "hi", "mediaType": "text/plain", "metadata": {"a": None}}),
    (Part, a2a_pb2.Part, {"raw": "aGk=", "filename": "a.png", "mediaType": "image/png"}),
    (Part, a2a_pb2.Part, {"url": "https://a.example/a.pdf"}),
    (Part, a2a_pb2.Part, {"data": {"a": [1, None, "x", True]}}),
    (Message, a2a_pb2.Message, SEND["message"]),
    (Artifact, a2a_pb2.Artifact, ARTIFACT | {"name": "n", "description": "d", "extensions": ["urn:x"]}),
    (TaskStatus, a2a_pb2.TaskStatus, STATUS | {"message": MESSAGE, "timestamp": "2025-10-28T10:30:00.000Z"}),
    (
        Task,
        a2a_pb2.Task,
        {"id": "t", "contextId": "c", "status": STATUS, "artifacts": [ARTIFACT], "history": [MESSAGE]},
    ),
    (
        StreamResponse,
        a2a_pb2.StreamResponse,
        {"statusUpdate": {"taskId": "t", "contextId": "c", "status": STATUS, "metadata": {"n": 1}}},
    ),
    (
        StreamResponse,
        a2a_pb2.StreamResponse,
        {"artifactUpdate": {"taskId": "t", "contextId": "c", "artifact": ARTIFACT, "append": True}},
    ),
    (SendMessageRequest, a2a_pb2.SendMessageRequest, SEND),
    (SendMessageResponse, a2a_pb2.SendMessageResponse, {"message": MESSAGE}),
    (GetTaskRequest, a2a_pb2.GetTaskRequest, {"id": "t", "historyLength": 0, "tenant": "acme"}),
    (CancelTaskRequest, a2a_pb2.CancelTaskRequest, {"id": "t", "metadata": {"why": "late"}}),
    (SubscribeToTaskRequest, a2a_pb2.SubscribeToTaskRequest, {"id": "t", "tenant": "acme"}),
    (AgentCard, a2a_pb2.AgentCard, CARD),
    (AgentCard, a2a_pb2.AgentCard, FULL_CARD),
]

quick = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)

# --- round trips ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objects", [parts, messages, artifacts, tasks, stream_responses])
def test_an_object_comes_back_from_its_json(objects: st.SearchStrategy[A2AModel]):
    @quick
    @given(objects)
    def check(obj: A2AModel) -> None:
        written = obj.to_json()
        assert type(obj).model_validate_json(written) == obj
        assert type(obj).model_validate(json.loads(written)) == obj
        assert json.loads(written) == obj.to_dict()
        assert len(written.decode().splitlines()) == 1

    check()


@quick
@given(stream_responses)
def test_the_official_types_read_an_event_and_write_it_so_that_it_comes_back(event: StreamResponse):
    official = json_format.Parse(event.to_json(), a2a_pb2.StreamResponse())
    assert StreamResponse.model_validate_json(json_format.MessageToJson(official)) == event


@pytest.mark.parametrize(("model", "official", "written"), EXAMPLES)
def test_an_object_is_written_as_it_was_read(
    model: type[A2AModel], official: type[ProtoMessage], written: dict[str, Any]
):
    obj = model.model_validate(written)
    assert obj.to_dict() == written
    assert obj.to_json() == model.model_validate_json(json.dumps(written)).to_json()
    assert json.loads(obj.to_json()) == written


@pytest.mark.parametrize(("model", "official", "written"), EXAMPLES)
def test_the_official_types_know_every_member_that_is_written(
    model: type[A2AModel], official: type[ProtoMessage], written: dict[str, Any]
):
    parsed = json_format.ParseDict(model.model_validate(written).to_dict(), official())
    assert model.model_validate(json_format.MessageToDict(parsed)) == model.model_validate(written)


@pytest.mark.parametrize(("model", "official", "written"), EXAMPLES)
def test_the_names_of_the_proto_are_accepted_too(
    model: type[A2AModel], official: type[ProtoMessage], written: dict[str, Any]
):
    proto_names = json_format.MessageToDict(
        json_format.ParseDict(written, official()), preserving_proto_field_name=True
    )
    read = model.model_validate(proto_names).to_dict()
    # Inside security schemes and signatures, which are passed through, names do not change.
    assert {key: read[key] for key in read if key not in {"securitySchemes"}} == {
        key: written[key] for key in written if key not in {"securitySchemes"}
    }


def test_the_json_is_compact_and_names_come_in_the_order_of_the_class():
    message = Message(message_id="m", role=Role.USER, parts=(Part(text="hé", media_type="text/plain"),))
    assert message.to_json() == (
        '{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hé","mediaType":"text/plain"}]}'.encode()
    )


def test_line_separators_are_escaped_wherever_they_stand():
    part = Part(text="a\u2028b", metadata={"\u2029": "\x85"})
    assert part.to_json() == rb'{"text":"a\u2028b","metadata":{"\u2029":"\u0085"}}'


@pytest.mark.parametrize(
    "part", [Part(text="a\ud800"), Part(data=["a\ud800"]), Part(text="", metadata={"a\ud800": 1})]
)
def test_a_lone_surrogate_becomes_u_fffd_instead_of_an_error(part: Part):
    assert "a\ufffd" in part.to_json().decode()


# --- unset fields ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "official", "written"), EXAMPLES)
def test_null_is_not_set_and_unknown_members_are_ignored(
    model: type[A2AModel], official: type[ProtoMessage], written: dict[str, Any]
):
    optional = {field.alias: None for field in model.model_fields.values() if field.alias not in written}
    assert model.model_validate(written | optional | {"kind": "task", "final": True}).to_dict() == written


def test_null_in_a_required_member_is_a_missing_member():
    assert why(Message, MESSAGE | {"parts": None, "messageId": None}) == [
        (("messageId",), "Field required"),
        (("parts",), "Field required"),
    ]


def test_empty_members_are_left_out():
    message = Message(
        message_id="m",
        role=Role.AGENT,
        parts=(Part(text="x", filename="", metadata={}),),
        context_id="",
        extensions=(),
        metadata={},
    )
    assert message.to_dict() == {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "x"}]}


def test_false_is_omitted_unless_the_protocol_distinguishes_it_from_not_set():
    event = TaskArtifactUpdateEvent(
        task_id="t", context_id="c", artifact=Artifact.model_validate(ARTIFACT), append=False
    )
    assert "append" not in event.to_dict()
    assert SendMessageConfiguration(return_immediately=False).to_dict() == {}
    assert AgentCapabilities(streaming=False).to_dict() == {"streaming": False}
    assert AgentCapabilities().to_dict() == {}


def test_a_history_length_of_zero_is_written():
    assert GetTaskRequest(id="t", history_length=0).to_dict() == {"id": "t", "historyLength": 0}
    assert GetTaskRequest(id="t").to_dict() == {"id": "t"}


def test_null_inside_data_and_metadata_is_a_value():
    part = Part.model_validate({"data": {"a": None}, "metadata": {"b": None}})
    assert part.to_dict() == {"data": {"a": None}, "metadata": {"b": None}}

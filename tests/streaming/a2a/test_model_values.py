"""Values of the objects of A2A 1.0: parts, enums, times, numbers and required fields."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from a2a.types import a2a_pb2
from google.protobuf import json_format
from pydantic import ValidationError

from support.a2a_values import ARTIFACT, CARD, MESSAGE, SEND, STATUS, why
from tailrace.streaming import a2a
from tailrace.streaming.a2a.errors import A2AError
from tailrace.streaming.a2a.field_types import MAX_JSON_DEPTH
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import (
    A2AModel,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentProvider,
    AgentSkill,
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
    AuthenticationInfo,
    CancelTaskRequest,
    GetTaskRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    SendMessageResponse,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


# --- parts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ({"text": ""}, "text"),
        ({"raw": ""}, "raw"),
        ({"url": "u"}, "url"),
        ({"data": None}, "data"),
        ({"data": False}, "data"),
        ({"data": 0}, "data"),
        ({"data": ""}, "data"),
        ({"data": []}, "data"),
        ({"data": {}}, "data"),
    ],
)
def test_a_part_writes_its_content_even_when_it_is_empty(written: dict[str, Any], kind: str):
    part = Part.model_validate(written)
    assert part.kind == kind
    assert part.to_json() == json.dumps(written, separators=(",", ":")).encode()
    assert Part.model_validate_json(part.to_json()) == part


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ({"text": "a", "data": None}, "text"),
        ({"text": "a", "raw": None, "url": None}, "text"),
        ({"text": None, "data": None}, "data"),
        ({"text": None, "data": 1}, "data"),
    ],
)
def test_null_beside_a_content_is_not_set(written: dict[str, Any], kind: str):
    assert Part.model_validate(written).kind == kind


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ({}, "none"),
        ({"mediaType": "text/plain"}, "none"),
        ({"text": None}, "none"),
        ({"text": "a", "url": "u"}, "text and url"),
        ({"raw": "", "data": 1}, "raw and data"),
    ],
)
def test_a_part_without_content_or_with_two_is_refused(written: dict[str, Any], found: str):
    assert why(Part, written) == [((), f"Exactly one of text, raw, url, data is required; found {found}")]


@pytest.mark.parametrize("encoded", ["+/+/", "-_-_", "aGk=", "aGk"])
def test_bytes_are_accepted_in_both_base64_alphabets_with_or_without_padding(encoded: str):
    raw = Part.model_validate({"raw": encoded}).raw
    assert raw == (b"hi" if encoded.startswith("a") else b"\xfb\xff\xbf")


def test_an_empty_url_is_refused():
    assert why(Part, {"url": ""}) == [(("url",), "String should have at least 1 character")]


def test_data_is_a_copy_that_later_changes_do_not_reach():
    source: dict[str, Any] = {"a": [1]}
    part = Part(data=source, metadata=source)
    source["a"].append(2)
    assert part.data == part.metadata == {"a": [1]}


def test_tuples_in_data_are_lists_as_they_will_be_in_json():
    assert Part(data=(1, (2,))).data == [1, [2]]


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), {1: "a"}, {"a": {1: 2}}, object(), [b"x"], {1}]
)
def test_what_is_not_json_is_refused_in_data(value: object):
    assert why(Part, {"data": value})[0][0] == ("data",)
    assert why(Part, {"text": "", "metadata": {"a": value}})[0][0] == ("metadata",)


def test_data_may_nest_as_deep_as_stated_and_no_deeper():
    assert Part(data=nested(MAX_JSON_DEPTH)).to_dict() == {"data": nested(MAX_JSON_DEPTH)}
    assert why(Part, {"data": nested(MAX_JSON_DEPTH + 1)}) == [
        (("data",), f"Nested deeper than {MAX_JSON_DEPTH} levels")
    ]


def test_what_nests_as_deep_as_allowed_is_read_by_the_official_client():
    message = Message(message_id="m", role=Role.AGENT, parts=(Part(data=nested(MAX_JSON_DEPTH)),))
    status = TaskStatus(state=TaskState.WORKING, message=message)
    deep = StreamResponse(
        task=Task(
            id="t",
            status=status,
            history=(message,),
            metadata={"a": nested(MAX_JSON_DEPTH - 1)},
        )
    )
    json_format.Parse(deep.to_json(), a2a_pb2.StreamResponse())


def test_data_that_holds_itself_is_refused():
    loop: list[Any] = []
    loop.append(loop)
    assert why(Part, {"data": loop}) == [(("data",), f"Nested deeper than {MAX_JSON_DEPTH} levels")]


# --- enums, times, numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(1, 9))
def test_a_state_is_accepted_by_the_number_of_the_proto(number: int):
    state = TaskStatus.model_validate({"state": number}).state
    assert state == a2a_pb2.TaskState.Name(a2a_pb2.TaskState.values()[number])


@pytest.mark.parametrize("number", [1, 2])
def test_a_role_is_accepted_by_the_number_of_the_proto(number: int):
    role = Message.model_validate(MESSAGE | {"role": number}).role
    assert role == a2a_pb2.Role.Name(a2a_pb2.Role.values()[number])


@pytest.mark.parametrize(
    "state", [0, 9, -1, True, 1.5, "", "working", "TASK_STATE_UNSPECIFIED", "1", None, [], {}]
)
def test_an_unspecified_or_unknown_state_is_refused(state: object):
    assert why(TaskStatus, {"state": state})[0][0] == ("state",)


@pytest.mark.parametrize("role", [0, 3, True, "user", "ROLE_UNSPECIFIED", "", [1]])
def test_an_unspecified_or_unknown_role_is_refused(role: object):
    assert why(Message, MESSAGE | {"role": role})[0][0] == ("role",)


@pytest.mark.parametrize(
    ("sent", "written"),
    [
        ("2025-10-28T10:30:00Z", "2025-10-28T10:30:00.000Z"),
        ("2025-10-28T10:30:00.1239Z", "2025-10-28T10:30:00.123Z"),
        ("2025-10-28T10:30:00.123456789Z", "2025-10-28T10:30:00.123Z"),
        ("2025-10-28T10:30:00+05:30", "2025-10-28T05:00:00.000Z"),
        ("2025-10-28t10:30:00z", "2025-10-28T10:30:00.000Z"),
        (datetime(2025, 10, 28, 10, 30, tzinfo=timezone(timedelta(hours=-1))), "2025-10-28T11:30:00.000Z"),
        (datetime(5, 1, 1, tzinfo=UTC), "0005-01-01T00:00:00.000Z"),
    ],
)
def test_a_time_is_written_in_utc_with_milliseconds(sent: object, written: str):
    status = TaskStatus.model_validate(STATUS | {"timestamp": sent})
    assert status.to_dict()["timestamp"] == written
    assert TaskStatus.model_validate(status.to_dict()) == status


@pytest.mark.parametrize(
    "sent",
    [
        "2025-10-28T10:30:00",
        datetime(2025, 10, 28),
        "2025-10-28",
        "1761647400",
        1761647400,
        "Tuesday",
        "",
        "9999-12-31T23:59:59-10:00",
        "0001-01-01T00:00:00+10:00",
        {},
    ],
)
def test_a_time_without_a_zone_or_in_another_form_is_refused(sent: object):
    assert why(TaskStatus, STATUS | {"timestamp": sent})[0][0] == ("timestamp",)


@pytest.mark.parametrize("length", [-1, 2**31, 1.5, "many"])
def test_a_history_length_out_of_range_is_refused(length: object):
    assert why(GetTaskRequest, {"id": "t", "historyLength": length})[0][0] == ("historyLength",)
    assert why(SendMessageConfiguration, {"historyLength": length})[0][0] == ("historyLength",)


@pytest.mark.parametrize("flag", ["true", 1, "yes"])
def test_a_flag_that_is_no_json_boolean_is_refused(flag: object):
    assert why(SendMessageConfiguration, {"returnImmediately": flag})[0][0] == ("returnImmediately",)


# --- required fields ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "complete", "required"),
    [
        (Message, MESSAGE, {"messageId", "role", "parts"}),
        (Artifact, ARTIFACT, {"artifactId", "parts"}),
        (TaskStatus, STATUS, {"state"}),
        (Task, {"id": "t", "status": STATUS}, {"id", "status"}),
        (
            TaskStatusUpdateEvent,
            {"taskId": "t", "contextId": "c", "status": STATUS},
            {"taskId", "contextId", "status"},
        ),
        (
            TaskArtifactUpdateEvent,
            {"taskId": "t", "contextId": "c", "artifact": ARTIFACT},
            {"taskId", "contextId", "artifact"},
        ),
        (SendMessageRequest, {"message": MESSAGE}, {"message"}),
        (GetTaskRequest, {"id": "t"}, {"id"}),
        (CancelTaskRequest, {"id": "t"}, {"id"}),
        (SubscribeToTaskRequest, {"id": "t"}, {"id"}),
        (TaskPushNotificationConfig, {"url": "u"}, {"url"}),
        (AuthenticationInfo, {"scheme": "Bearer"}, {"scheme"}),
        (AgentCard, CARD, set(CARD)),
        (AgentSkill, CARD["skills"][0], {"id", "name", "description", "tags"}),
        (
            AgentInterface,
            CARD["supportedInterfaces"][0],
            {"url", "protocolBinding", "protocolVersion"},
        ),
        (AgentProvider, {"organization": "o", "url": "u"}, {"organization", "url"}),
        (AgentExtension, {"uri": "urn:x"}, {"uri"}),
    ],
)
def test_a_required_member_must_be_there_and_hold_something(
    model: type[A2AModel], complete: dict[str, Any], required: set[str]
):
    model.model_validate(complete)
    assert {field.alias for field in model.model_fields.values() if field.is_required()} == required
    for member in required:
        without = {key: value for key, value in complete.items() if key != member}
        assert why(model, without) == [((member,), "Field required")]
        if isinstance(complete[member], str | list):
            empty = type(complete[member])()
            assert why(model, complete | {member: empty})[0][0] == (member,)


@pytest.mark.parametrize(("model", "complete"), [(Message, MESSAGE), (Artifact, ARTIFACT)])
def test_no_parts_are_refused_with_words_a_person_understands(
    model: type[A2AModel], complete: dict[str, Any]
):
    assert why(model, complete | {"parts": ()}) == [(("parts",), "At least one part is required")]


@pytest.mark.parametrize("model", [StreamResponse, SendMessageResponse])
def test_a_response_with_no_member_or_two_is_refused(model: type[A2AModel]):
    task = {"id": "t", "status": STATUS}
    members = ", ".join(field.alias or "" for field in model.model_fields.values())
    assert why(model, {}) == [((), f"Exactly one of {members} is required; found none")]
    assert why(model, {"task": task, "message": MESSAGE}) == [
        ((), f"Exactly one of {members} is required; found task and message")
    ]


# --- as Python objects ------------------------------------------------------------------------------------------


def test_an_object_cannot_be_changed():
    with pytest.raises(ValidationError):
        Part(text="a").text = "b"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("value", ["hi", 1, [], Part(text="a")])
def test_what_is_no_object_of_the_kind_is_refused(value: object):
    assert why(Message, value)[0][0] == ()
    if not isinstance(value, Part):
        assert why(Part, value)[0][0] == ()


def test_the_package_exports_every_model_and_every_error():
    kinds = {A2AModel, A2AError, *A2AModel.__subclasses__(), *A2AError.__subclasses__()}
    assert {kind.__name__ for kind in kinds} <= set(a2a.__all__)
    assert all(hasattr(a2a, exported) for exported in a2a.__all__)
    assert len(set(a2a.__all__)) == len(a2a.__all__)


def test_secrets_are_not_printed():
    config = TaskPushNotificationConfig.model_validate(SEND["configuration"]["taskPushNotificationConfig"])
    assert "opaque" not in repr(config)
    assert "tok'" not in repr(config)

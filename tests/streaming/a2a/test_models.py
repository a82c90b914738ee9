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
from pydantic import ValidationError

from tailrace.streaming import a2a
from tailrace.streaming.a2a.errors import A2AError
from tailrace.streaming.a2a.field_types import MAX_JSON_DEPTH
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import (
    A2AModel,
    AgentCapabilities,
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

# --- inputs -----------------------------------------------------------------------------------------------------

text = st.text(max_size=12)
name = st.text(min_size=1, max_size=8)
# Integers stay below 2**53: the official objects keep every number as a double.
json_value = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
metadata = st.dictionaries(text, json_value, max_size=2)
timestamps = st.datetimes(
    min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)
) | st.datetimes(
    min_value=datetime(1970, 1, 1),
    max_value=datetime(2100, 1, 1),
    timezones=st.integers(-14, 14).map(lambda hours: timezone(timedelta(hours=hours))),
)
about_a_part = {"metadata": metadata, "filename": text, "media_type": text}
parts = st.one_of(
    st.builds(Part, text=text, **about_a_part),
    st.builds(Part, raw=st.binary(max_size=8), **about_a_part),
    st.builds(Part, url=name, **about_a_part),
    st.builds(Part, data=json_value, **about_a_part),
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

MESSAGE: dict[str, Any] = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
ARTIFACT: dict[str, Any] = {"artifactId": "a1", "parts": [{"text": "hi"}]}
STATUS: dict[str, Any] = {"state": "TASK_STATE_WORKING"}
CARD: dict[str, Any] = {
    "name": "Recipes",
    "description": "Knows recipes",
    "version": "1.2.0",
    "supportedInterfaces": [
        {"url": "https://a.example/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
    "capabilities": {},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "cook", "name": "Cook", "description": "Finds a recipe", "tags": ["food"]}],
}
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
SEND: dict[str, Any] = {
    "message": MESSAGE
    | {"taskId": "t1", "contextId": "c1", "referenceTaskIds": ["t0"], "extensions": ["urn:x"]},
    "configuration": {
        "acceptedOutputModes": ["text/plain"],
        "historyLength": 0,
        "returnImmediately": True,
        "taskPushNotificationConfig": {
            "id": "p1",
            "taskId": "t1",
            "url": "https://hook.example/",
            "token": "opaque",
            "authentication": {"scheme": "Bearer", "credentials": "tok"},
            "tenant": "acme",
        },
    },
    "metadata": {"a": 1},
    "tenant": "acme",
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


def why(model: type[A2AModel], value: object) -> list[tuple[tuple[int | str, ...], str]]:
    """Location and reason of a validation error."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(value)
    return [(error["loc"], error["msg"]) for error in caught.value.errors()]


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


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

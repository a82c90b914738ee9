"""A2A 0.3 over HTTP+JSON, in both directions, against the official SDK's proto of 0.3."""

import json
from base64 import b64encode
from typing import Any

import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as proto
from a2a.compat.v0_3 import types as old
from a2a.compat.v0_3.proto_utils import FromProto, ToProto
from google.protobuf.json_format import MessageToDict, ParseDict

from tailrace.streaming import ArtifactUpdate, StatusUpdate, TextDelta
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role, Task, TaskStatus
from tailrace.streaming.a2a.requests import (
    AuthenticationInfo,
    ListTaskPushNotificationConfigsResponse,
    ListTasksResponse,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from tailrace.streaming.a2a.v0_3_proto_json import Version03ProtoJson
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.streaming.task.task_record import TaskRecord, agent_message

DIALECT = Version03ProtoJson()

PARTS = (
    Part(text="a\u2028b"),
    Part(data={"a": [1, None]}, metadata={"m": 1}),
    Part(data=[1, 2]),
    Part(raw=b"\x00\xff", filename="a.bin", media_type="application/octet-stream"),
    Part(url="https://example.com/a.pdf", filename="a.pdf", media_type="application/pdf"),
)
MESSAGE = Message(
    message_id="m1",
    role=Role.AGENT,
    parts=PARTS,
    context_id="c",
    task_id="t",
    extensions=("urn:x",),
    reference_task_ids=("other",),
)
TASK = Task(
    id="t",
    context_id="c",
    status=TaskStatus(state=TaskState.CANCELED, message=MESSAGE),
    artifacts=(Artifact(artifact_id="a", parts=PARTS, name="A"),),
    history=(MESSAGE,),
)
WEBHOOK = TaskPushNotificationConfig(
    url="https://example.com/hook",
    id="c1",
    task_id="t",
    token="opaque",
    authentication=AuthenticationInfo(scheme="Basic", credentials="secret"),
)


def parsed(written: bytes, message: Any) -> Any:
    """The message that the proto parses; an unknown member is an error."""
    return ParseDict(json.loads(written), message)


def read(operation: Operation, fields: dict[str, Any]) -> Any:
    return DIALECT.read_request(operation, fields)


# --- output -----------------------------------------------------------------------------------------------------


def test_every_event_of_a_stream_is_one_of_the_proto() -> None:
    record = TaskRecord.create(MESSAGE.model_copy(update={"role": Role.USER}), context_id="c")
    events = [
        record.submitted(),
        record.apply(StatusUpdate(TaskState.WORKING, agent_message("One moment"))),
        record.apply(ArtifactUpdate(Artifact(artifact_id="a", parts=(*PARTS, Part(text="so "))), last=False)),
        record.apply(TextDelta("a", "more\u2028")),
        record.apply(TextDelta("a", "", last=True)),
        record.apply(StatusUpdate(TaskState.CANCELED, metadata={"k": 1})),
    ]
    read_back = [
        parsed(DIALECT.write_event(event, is_last=event is events[-1]), proto.StreamResponse())
        for event in events
    ]
    task, working, whole, more, _, canceled = read_back
    assert task.task.history[0].role == proto.Role.ROLE_USER
    assert working.status_update.status.update.content[0].text == "One moment"
    assert len(whole.artifact_update.artifact.parts) == 6
    assert (more.artifact_update.append, more.artifact_update.artifact.parts[0].text) == (True, "more\u2028")
    assert (working.status_update.final, canceled.status_update.final) == (False, True)
    assert canceled.status_update.status.state == proto.TaskState.TASK_STATE_CANCELLED


def test_a_task_is_the_protos_with_everything_in_it() -> None:
    task = parsed(DIALECT.write_result(Operation.GET_TASK, TASK), proto.Task())
    assert task.status.state == proto.TaskState.TASK_STATE_CANCELLED
    text, data, listed, raw, url = task.status.update.content
    assert text.text == "a\u2028b"
    assert MessageToDict(data)["data"] == {"data": {"a": [1.0, None]}}
    assert MessageToDict(listed)["data"] == {"data": {"value": [1.0, 2.0]}}
    assert (raw.file.file_with_bytes, raw.file.name) == (b"\x00\xff", "a.bin")
    assert (url.file.file_with_uri, url.file.mime_type) == ("https://example.com/a.pdf", "application/pdf")
    assert [message.message_id for message in task.history] == ["m1"]
    assert [len(artifact.parts) for artifact in task.artifacts] == [5]


def test_what_a_send_comes_to_is_wrapped() -> None:
    sent = parsed(DIALECT.write_result(Operation.SEND_MESSAGE, TASK), proto.SendMessageResponse())
    assert sent.task.id == "t"
    response = parsed(DIALECT.write_result(Operation.SEND_MESSAGE, MESSAGE), proto.SendMessageResponse())
    assert response.msg.role == proto.Role.ROLE_AGENT


def test_tasks_are_a_bare_list() -> None:
    written = json.loads(DIALECT.write_result(Operation.LIST_TASKS, ListTasksResponse(tasks=(TASK,))))
    assert [task["status"]["state"] for task in written] == ["TASK_STATE_CANCELLED"]


def test_a_webhook_has_a_resource_name() -> None:
    written = DIALECT.write_result(Operation.CREATE_PUSH_CONFIG, WEBHOOK)
    webhook = parsed(written, proto.TaskPushNotificationConfig())
    assert webhook.name == "tasks/t/pushNotificationConfigs/c1"
    assert list(webhook.push_notification_config.authentication.schemes) == ["Basic"]
    listed = ListTaskPushNotificationConfigsResponse(configs=(WEBHOOK,))
    written = DIALECT.write_result(Operation.LIST_PUSH_CONFIGS, listed)
    assert len(parsed(written, proto.ListTaskPushNotificationConfigResponse()).configs) == 1
    assert DIALECT.write_result(Operation.DELETE_PUSH_CONFIG, None) == b"{}"


# --- input ------------------------------------------------------------------------------------------------------

CONTENT = [
    proto.Part(text="hello"),
    proto.Part(data=proto.DataPart(data={"a": 1})),
    proto.Part(file=proto.FilePart(file_with_bytes=b"\x00\xff", mime_type="image/png", name="a.png")),
    proto.Part(file=proto.FilePart(file_with_uri="https://example.com/a")),
]
SENT = proto.SendMessageRequest(
    request=proto.Message(
        message_id="m1", context_id="c", task_id="t", role=proto.Role.ROLE_USER, content=CONTENT
    ),
    configuration=proto.SendMessageConfiguration(
        accepted_output_modes=["text/plain"],
        history_length=3,
        blocking=True,
        push_notification=proto.PushNotificationConfig(url="https://example.com/hook", token="opaque"),
    ),
    metadata={"k": "v"},
)


@pytest.mark.parametrize(
    "sent",
    [
        MessageToDict(SENT),
        MessageToDict(SENT, preserving_proto_field_name=True),
        MessageToDict(SENT, use_integers_for_enums=True),
    ],
)
def test_a_send_is_read_however_a_client_of_the_proto_writes_it(sent: dict[str, Any]) -> None:
    request: SendMessageRequest = read(Operation.SEND_MESSAGE, sent)
    message, configuration = request.message, request.configuration
    assert (message.message_id, message.context_id, message.task_id) == ("m1", "c", "t")
    assert message.role is Role.USER
    assert [part.kind for part in message.parts] == ["text", "data", "raw", "url"]
    assert message.parts[1].data == {"a": 1}
    assert (message.parts[2].raw, message.parts[2].filename) == (b"\x00\xff", "a.png")
    assert (configuration.history_length, configuration.return_immediately) == (3, False)
    assert configuration.accepted_output_modes == ("text/plain",)
    assert configuration.task_push_notification_config is not None
    assert configuration.task_push_notification_config.token == "opaque"
    assert request.metadata == {"k": "v"}


def test_a_message_of_json_rpc_is_read_too() -> None:
    """The specification of 0.3 promises the same objects on every binding."""
    parts = [
        {"kind": "text", "text": "hello"},
        {"kind": "file", "file": {"uri": "https://example.com/a", "mimeType": "image/png"}},
        {"kind": "data", "data": {"data": 1}},
    ]
    fields = {"message": {"kind": "message", "messageId": "m", "role": "user", "parts": parts}}
    request: SendMessageRequest = read(Operation.SEND_MESSAGE, fields)
    assert [part.kind for part in request.message.parts] == ["text", "url", "data"]
    assert request.message.parts[2].data == {"data": 1}


def test_a_history_length_of_0_is_the_protos_way_of_not_saying_it() -> None:
    fields = {**MessageToDict(SENT), "configuration": {"historyLength": 0}}
    assert read(Operation.SEND_MESSAGE, fields).configuration.history_length is None
    assert read(Operation.GET_TASK, {"id": "t", "historyLength": 0}).history_length is None
    assert read(Operation.GET_TASK, {"id": "t", "history_length": 2}).history_length == 2
    with pytest.raises(InvalidParamsError):
        read(Operation.GET_TASK, {"id": "t", "historyLength": -1})


def test_a_send_does_not_wait_unless_it_is_blocking() -> None:
    fields = {"message": MessageToDict(SENT)["message"]}
    assert read(Operation.SEND_MESSAGE, fields).configuration.return_immediately


INNER = {"url": "https://example.com/hook", "authentication": {"schemes": ["Basic"], "credentials": "s"}}


@pytest.mark.parametrize(
    ("body", "config_id"),
    [
        ({"parent": "tasks/t", "configId": "c1", "config": {"pushNotificationConfig": INNER}}, "c1"),
        ({"config_id": "c1", "config": {"push_notification_config": INNER}}, "c1"),
        ({"config": {"name": "tasks/t/pushNotificationConfigs/c1", "pushNotificationConfig": INNER}}, "c1"),
        ({"name": "tasks/t/pushNotificationConfigs/c1", "pushNotificationConfig": INNER}, "c1"),
        ({"pushNotificationConfig": {**INNER, "id": "c1"}}, "c1"),
        ({**INNER, "id": "c1"}, "c1"),
        (INNER, "default"),
        ({**INNER, "id": "t"}, "default"),
    ],
)
def test_a_webhook_is_read_in_every_form(body: dict[str, Any], config_id: str) -> None:
    config: TaskPushNotificationConfig = read(Operation.CREATE_PUSH_CONFIG, {**body, "taskId": "t"})
    assert (config.task_id, config.id, config.url) == ("t", config_id, "https://example.com/hook")
    assert config.authentication is not None
    assert config.authentication.scheme == "Basic"


def test_the_path_names_the_webhook() -> None:
    for operation in (Operation.GET_PUSH_CONFIG, Operation.DELETE_PUSH_CONFIG):
        named = read(operation, {"taskId": "t", "configId": "c1"})
        assert (named.task_id, named.id) == ("t", "c1")
        assert read(operation, {"taskId": "t", "configId": "t"}).id == "default"
    assert read(Operation.LIST_PUSH_CONFIGS, {"taskId": "t"}).task_id == "t"


NO_MESSAGES: list[Any] = [
    {},
    {"messageId": "m", "role": "ROLE_USER", "content": []},
    {"messageId": "m", "role": "ROLE_USER", "content": [{}]},
    {"messageId": "m", "role": "ROLE_USER", "content": [7]},
    {"messageId": "m", "role": "ROLE_USER", "content": {"text": "a"}},
    {"messageId": "m", "role": "ROLE_USER", "content": [{"file": {}}]},
    {"messageId": "m", "role": "ROLE_USER", "content": [{"file": 7}]},
    {"messageId": "m", "role": "ROLE_NOBODY", "content": [{"text": "a"}]},
    {"messageId": "m", "role": 9, "content": [{"text": "a"}]},
    [],
    "hello",
]


@pytest.mark.parametrize("message", NO_MESSAGES)
def test_what_is_no_message_is_refused(message: object) -> None:
    with pytest.raises(InvalidParamsError):
        read(Operation.SEND_MESSAGE, {"message": message})


# --- files, as the official clients encode them ---------------------------------------------------------------------

PNG = b"\x89PNG\r\n\xff\x00"
ENCODES_TWICE = ["python-httpx/0.28.1", "grpc-python-asyncio/1.76.0 grpc-c/51.0.0", "Go-http-client/1.1"]


@pytest.mark.parametrize("user_agent", ENCODES_TWICE)
def test_a_file_of_the_official_python_client_is_read_as_it_was(user_agent: str) -> None:
    file = old.FileWithBytes(bytes=b64encode(PNG).decode(), name="a.png", mime_type="image/png")
    part = old.Part(root=old.FilePart(file=file))
    sent = ToProto.message(old.Message(message_id="m", role=old.Role.user, parts=[part]))
    assert sent is not None
    params = {"request": MessageToDict(sent)}
    request = DIALECT.for_client(user_agent).read_request(Operation.SEND_MESSAGE, params)
    assert isinstance(request, SendMessageRequest)
    assert request.message.parts[0].raw == PNG


@pytest.mark.parametrize("user_agent", ENCODES_TWICE)
def test_the_official_python_client_reads_a_binary_file(user_agent: str) -> None:
    dialect = DIALECT.for_client(user_agent)
    task = TASK.model_copy(update={"artifacts": (Artifact(artifact_id="a", parts=(Part(raw=PNG),)),)})
    written = dialect.write_result(Operation.GET_TASK, task)
    read_by_client = FromProto.task(parsed(written, proto.Task()))
    assert read_by_client.artifacts is not None
    file = read_by_client.artifacts[0].parts[0].root
    assert isinstance(file, old.FilePart)
    assert isinstance(file.file, old.FileWithBytes)
    assert file.file.bytes == b64encode(PNG).decode()
    record = TaskRecord.create(Message(message_id="m", role=Role.USER, parts=PARTS), task_id="t")
    record.submitted()
    event = record.apply(ArtifactUpdate(Artifact(artifact_id="a", parts=(Part(raw=PNG),))))
    update = parsed(dialect.write_event(event, is_last=False), proto.StreamResponse()).artifact_update
    assert update.artifact.parts[0].file.file_with_bytes == b64encode(PNG)


@pytest.mark.parametrize("user_agent", ["node", "grpc-node-js/1.14.0", "Mozilla/5.0", "curl/8.5.0", ""])
def test_other_clients_send_and_get_the_bytes(user_agent: str) -> None:
    dialect = DIALECT.for_client(user_agent)
    # A file whose bytes are valid base64 text.
    content = [{"file": {"fileWithBytes": b64encode(b"dGVzdA==").decode()}}]
    request = dialect.read_request(
        Operation.SEND_MESSAGE, {"message": {"messageId": "m", "role": "ROLE_USER", "content": content}}
    )
    assert isinstance(request, SendMessageRequest)
    assert request.message.parts[0].raw == b"dGVzdA=="
    written = parsed(dialect.write_result(Operation.GET_TASK, TASK), proto.Task())
    assert written.artifacts[0].parts[3].file.file_with_bytes == b"\x00\xff"


def test_bytes_that_are_no_base64_text_are_taken_as_they_are() -> None:
    content = [{"file": {"fileWithBytes": b64encode(PNG).decode()}}, {"text": "a"}]
    params = {"message": {"messageId": "m", "role": "ROLE_USER", "content": content}}
    request = DIALECT.for_client("python-httpx/0.28.1").read_request(Operation.SEND_MESSAGE, params)
    assert isinstance(request, SendMessageRequest)
    assert request.message.parts[0].raw == PNG

"""Former names and constructions, and errors without the SDK installed."""
# The types have the fields of A2A 1.0 only; these tests use older ones.
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import warnings
from typing import Any

import pytest
from a2a import types
from google.protobuf.json_format import MessageToDict

from support.missing_packages import run_without
from tailrace.server import sdk
from tailrace.server.sdk import (
    AgentCapabilities,
    AgentCard,
    AgentProvider,
    AgentSkill,
    Artifact,
    DataPart,
    FilePart,
    FileWithBytes,
    FileWithUri,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
    legacy_names,
)

NAMES: dict[str, Any] = {
    "Skill": types.AgentSkill,
    "AuthConfig": types.SecurityScheme,
    "Capabilities": types.AgentCapabilities,
    "Provider": types.AgentProvider,
    "AgentCard": types.AgentCard,
    "TaskState": types.TaskState,
    "TaskStatus": types.TaskStatus,
    "Task": types.Task,
    "Artifact": types.Artifact,
    "Message": types.Message,
    "MessagePart": types.Part,
    "MessageSendParams": types.SendMessageRequest,
    "TaskGetParams": types.GetTaskRequest,
    "TaskListParams": types.ListTasksRequest,
    "TaskCancelParams": types.CancelTaskRequest,
    "Role": types.Role,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_before_makes_the_sdks_object(name: str) -> None:
    alias, kind = getattr(sdk, name), NAMES[name]
    if name in ("TaskState", "Role"):
        assert alias.items() == kind.items()
        return
    assert type(alias()) is kind
    assert isinstance(kind(), alias)
    assert not isinstance("", alias)
    assert alias.DESCRIPTOR is kind.DESCRIPTOR
    assert alias.FromString(kind().SerializeToString()) == kind()
    assert (alias | None) == (kind | None)
    assert (None | alias) == (None | kind)


def test_everything_that_is_named_can_be_imported() -> None:
    assert set(legacy_names.__all__) <= set(sdk.__all__)
    for module in (sdk, legacy_names):
        assert all(hasattr(module, name) for name in module.__all__)
        assert len(set(module.__all__)) == len(module.__all__)


def test_the_parts_of_before_are_parts_of_their_kind() -> None:
    parts = [
        TextPart("hi"),
        TextPart(text="", metadata={"a": 1}),
        DataPart(data={"depth": [1, None]}),
        DataPart(None, media_type="application/json"),
        FilePart(raw=b"\x00", filename="a.bin", media_type="application/octet-stream"),
        FilePart(url="https://a.example/a", metadata={"b": True}),
    ]
    assert [MessageToDict(part) for part in parts] == [
        {"text": "hi"},
        {"text": "", "metadata": {"a": 1}},
        {"data": {"depth": [1, None]}},
        {"data": None, "mediaType": "application/json"},
        {"raw": "AA==", "filename": "a.bin", "mediaType": "application/octet-stream"},
        {"url": "https://a.example/a", "metadata": {"b": True}},
    ]
    assert [part.HasField("metadata") for part in parts] == [False, True, False, False, False, True]


# --- constructions from before A2A 1.0 --------------------------------------------------------------------------


def test_each_form_of_a_card_of_before_is_noted_once() -> None:
    with pytest.warns(DeprecationWarning, match="is from before A2A 1.0") as warned:
        card = AgentCard(
            url="http://localhost:8000",
            capabilities=AgentCapabilities(pushNotifications=False, stateManagement=True),
            skills=[AgentSkill(description="Research", inputSchema={"type": "object"})],
            provider=AgentProvider(name="Workshop Demo"),
        )
    assert type(card) is types.AgentCard
    read = MessageToDict(card)
    assert read["supportedInterfaces"] == [
        {"url": "http://localhost:8000", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ]
    [skill] = read["skills"]
    assert skill["description"] == 'Research\n\nInput (JSON Schema): {"type": "object"}'
    notes = {str(each.message).split(" is from before")[0]: str(each.message) for each in warned}
    assert notes.keys() == {
        "AgentCard(url=…)",
        "AgentCapabilities(pushNotifications=…)",
        "AgentCapabilities(stateManagement=…)",
        "AgentSkill(inputSchema=…)",
        "AgentProvider(name=…)",
    }
    assert "supported_interfaces=[AgentInterface(url=" in notes["AgentCard(url=…)"]
    assert notes["AgentCapabilities(pushNotifications=…)"].endswith("use push_notifications=")
    assert {each.filename for each in warned} == {__file__}


def test_each_form_of_a_task_of_before_is_noted_in_its_place() -> None:
    with pytest.warns(DeprecationWarning, match="from before A2A 1") as warned:
        Task(
            contextId="ctx-xyz789",
            status=TaskStatus(state=TaskState.completed, message=Message(role=Role.agent)),
            artifacts=[Artifact(artifactId="art-001")],
        )
    assert [str(each.message).rpartition(": ")[2] for each in warned] == [
        "use TaskState.TASK_STATE_COMPLETED",
        "use Role.ROLE_AGENT",
        "use artifact_id=",
        "use context_id=",
    ]
    assert {each.filename for each in warned} == {__file__}


def test_a_message_of_before_is_one_of_1_0() -> None:
    with pytest.warns(DeprecationWarning, match="from before A2A 1") as warned:
        message = Message(
            role=Role.user,
            parts=[DataPart(data={"depth": "detailed"}, mimeType="application/json")],
            messageId="msg-123",
        )
    assert MessageToDict(message) == {
        "messageId": "msg-123",
        "role": "ROLE_USER",
        "parts": [{"data": {"depth": "detailed"}, "mediaType": "application/json"}],
    }
    assert len(warned) == 3
    assert {each.filename for each in warned} == {__file__}


def test_files_of_before_are_parts() -> None:
    with pytest.warns(DeprecationWarning, match=r"use FilePart\((raw|url)=") as warned:
        parts = [
            FilePart(FileWithBytes(bytes="AA==", name="a.bin", mimeType="application/octet-stream")),
            FilePart(file=FileWithUri(uri="https://a.example/a", mime_type="text/plain"), metadata={"b": 1}),
        ]
    assert [MessageToDict(part) for part in parts] == [
        {"raw": "AA==", "filename": "a.bin", "mediaType": "application/octet-stream"},
        {"url": "https://a.example/a", "mediaType": "text/plain", "metadata": {"b": 1.0}},
    ]
    assert {each.filename for each in warned} == {__file__}


@pytest.mark.parametrize(
    ("value", "state"),
    [
        ("submitted", "SUBMITTED"),
        ("working", "WORKING"),
        ("completed", "COMPLETED"),
        ("failed", "FAILED"),
        ("canceled", "CANCELED"),
        ("cancelled", "CANCELED"),
        ("input-required", "INPUT_REQUIRED"),
        ("unknown", "UNSPECIFIED"),
    ],
)
def test_states_have_their_names_and_values_of_before(value: str, state: str) -> None:
    states: Any = TaskState
    number = types.TaskState.Value(f"TASK_STATE_{state}")
    with pytest.warns(DeprecationWarning, match=f"TaskState.TASK_STATE_{state}"):
        assert states(value) == number
    with pytest.warns(DeprecationWarning, match=f"TaskState.TASK_STATE_{state}"):
        assert getattr(states, value.replace("-", "_")) == number
    status: Any = TaskStatus
    with pytest.warns(DeprecationWarning, match=f"TaskState.TASK_STATE_{state}") as warned:
        assert status(state=value).state == number
    assert [each.filename for each in warned] == [__file__]


def test_text_stands_for_a_role_of_before() -> None:
    make: Any = Message
    with pytest.warns(DeprecationWarning, match=r"Message\(role='agent'\) .* use Role.ROLE_AGENT") as warned:
        assert make(role="agent", parts=[]).role == types.Role.ROLE_AGENT
    assert [each.filename for each in warned] == [__file__]
    with pytest.raises(ValueError, match=r"Role has no 'assistant'; it has .*ROLE_AGENT"):
        make(role="assistant")


def test_a_part_of_before_holds_one_of_its_kind() -> None:
    make: Any = Part
    with pytest.warns(DeprecationWarning, match="use the part by itself"):
        part = make(root=DataPart(data={"a": 1}, metadata={"b": 2}))
    assert part == DataPart(data={"a": 1}, metadata={"b": 2})


def test_what_no_version_has_is_refused_with_what_1_0_has() -> None:
    card: Any = AgentCard
    with pytest.raises(
        TypeError, match=r"AgentCard has no 'adress' in A2A 1.0; it has .*supported_interfaces"
    ):
        card(adress="http://localhost")
    states: Any = TaskState
    with pytest.raises(ValueError, match="TaskState has no 'done'; it has TASK_STATE_UNSPECIFIED"):
        states("done")
    with pytest.raises(ValueError, match="TaskState has no 99"):
        states(99)
    with pytest.raises(AttributeError):
        states.done  # noqa: B018


def test_the_forms_of_1_0_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        message = Message(message_id="m", role=Role.ROLE_USER, parts=[TextPart("hi")])
        status = TaskStatus(state=TaskState.TASK_STATE_WORKING)
        states: Any = TaskState
        assert states("TASK_STATE_WORKING") == states(status.state) == status.state
        assert Task(id="t", context_id="c", status=status, history=[message]).context_id == "c"


# --- JSON-RPC, and servers --------------------------------------------------------------------------------------


def test_a_file_is_bytes_or_an_address_and_not_both() -> None:
    with pytest.raises(ValueError, match="as its bytes"):
        FilePart()
    with pytest.raises(ValueError, match="as its bytes"):
        FilePart(raw=b"", url="https://a.example/a")
    with pytest.raises(ValueError, match="as its bytes"):
        FilePart(FilePart(raw=b""), raw=b"")


def test_without_the_sdk_the_import_error_names_the_package() -> None:
    code = """
import tailrace.server
try:
    import tailrace.server.sdk
except ImportError as error:
    print(error)
"""
    assert "pip install 'tailrace[sdk]'" in run_without("a2a", code)


def test_grpc_is_not_needed_for_the_sdk() -> None:
    code = (
        "from tailrace.server.sdk import AgentExecutor, RequestHandler, TaskStore\nprint(TaskStore.__name__)"
    )
    assert run_without("grpc", code) == "TaskStore\n"

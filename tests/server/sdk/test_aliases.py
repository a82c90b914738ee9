"""The names of before, and what is said where the SDK is not installed."""

import subprocess
import sys

import pytest
from a2a import types
from google.protobuf.json_format import MessageToDict

from tailrace.server import sdk
from tailrace.server.sdk import DataPart, FilePart, TextPart, aliases

NAMES = {
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
def test_a_name_of_before_is_the_sdks_object(name: str) -> None:
    assert getattr(sdk, name) is NAMES[name]


def test_everything_that_is_named_can_be_imported() -> None:
    assert set(aliases.__all__) <= set(sdk.__all__)
    for module in (sdk, aliases):
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


def test_a_file_is_bytes_or_an_address_and_not_both() -> None:
    with pytest.raises(ValueError, match="as its bytes"):
        FilePart()
    with pytest.raises(ValueError, match="as its bytes"):
        FilePart(raw=b"", url="https://a.example/a")


def test_without_the_sdk_the_import_says_what_to_install() -> None:
    script = """
import sys
sys.modules["a2a"] = None
import tailrace.server
try:
    import tailrace.server.sdk
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'tailrace[sdk]'" in done.stdout
    assert done.stderr == ""


def test_grpc_is_not_needed_for_the_sdk() -> None:
    script = """
import sys
sys.modules["grpc"] = None
from tailrace.server.sdk import AgentExecutor, RequestHandler, TaskStore
print(AgentExecutor.__name__, RequestHandler.__name__, TaskStore.__name__)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "AgentExecutor RequestHandler TaskStore\n"

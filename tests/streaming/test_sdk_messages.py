"""Messages of the official SDK 1.x (protobuf) and 0.3 (pydantic), and of programs with classes of their own."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest
from a2a import types as sdk
from google.protobuf.json_format import ParseDict
from pydantic import BaseModel, ConfigDict, RootModel
from pydantic.alias_generators import to_camel

from tailrace.streaming.a2a import Message as A2AMessage
from tailrace.streaming.conversion.message_conversion import convert_a2a_message_to_openai, to_common_message
from tailrace.wrappers import (
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    Message,
    Role,
)

# --- as in the package a2a-sdk 0.3.26 ---------------------------------------------------------------------------


class _Base(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="allow",
    )


class OldRole(str, Enum):  # noqa: UP042 - as in the package
    agent = "agent"
    user = "user"


class TextPart(_Base):
    kind: Literal["text"] = "text"
    metadata: dict[str, Any] | None = None
    text: str


class FileWithBytes(_Base):
    bytes: str
    mime_type: str | None = None
    name: str | None = None


class FileWithUri(_Base):
    mime_type: str | None = None
    name: str | None = None
    uri: str


class FilePart(_Base):
    file: FileWithBytes | FileWithUri
    kind: Literal["file"] = "file"
    metadata: dict[str, Any] | None = None


class DataPart(_Base):
    data: dict[str, Any]
    kind: Literal["data"] = "data"
    metadata: dict[str, Any] | None = None


class OldPart(RootModel[TextPart | FilePart | DataPart]):
    root: TextPart | FilePart | DataPart


class OldMessage(_Base):
    context_id: str | None = None
    extensions: list[str] | None = None
    kind: Literal["message"] = "message"
    message_id: str
    metadata: dict[str, Any] | None = None
    parts: list[OldPart]
    reference_task_ids: list[str] | None = None
    role: OldRole
    task_id: str | None = None


# --- as programs may define them --------------------------------------------------------------------------------


class Speaker(Enum):
    USER = "user"
    AGENT = "agent"


@dataclass(slots=True)
class File:
    bytes: str | None = None
    uri: str | None = None
    name: str | None = None
    mime_type: str | None = None


@dataclass(slots=True)
class PlainPart:
    kind: str
    text: str | None = None
    data: Any = None
    file: File | None = None
    metadata: dict[str, Any] | None = None


@dataclass(slots=True)
class PlainMessage:
    role: Speaker
    parts: list[PlainPart]
    metadata: dict[str, Any] | None = None


@dataclass(slots=True)
class NewPart:
    text: str | None = None
    raw: bytes | None = None
    url: str | None = None
    data: Any = None
    media_type: str | None = None
    filename: str | None = None
    metadata: dict[str, Any] | None = None


# --- one message in all forms -----------------------------------------------------------------------------------

RESULTS = {"tool_results": [{"call_id": "c", "name": "look", "output": {"sky": "blue"}}]}
CALLS = {"tool_calls": [{"call_id": "c", "name": "look", "arguments": {"at": "é"}}]}
REASONING = {"urn:tailrace:ext:stream:v1": {"channel": "reasoning"}}

USER_0_3: dict[str, Any] = {
    "role": "user",
    "messageId": "m",
    "parts": [
        {"kind": "text", "text": "Summarize the Q4 report"},
        {"kind": "text", "text": "Focus on revenue metrics"},
        {"kind": "file", "file": {"bytes": "AAE=", "mimeType": "image/png", "name": "a.png"}},
        {"kind": "file", "file": {"uri": "https://example.com/a.png"}},
        {"kind": "data", "data": {"depth": [1, None]}},
    ],
}
USER_1_0: dict[str, Any] = {
    "role": "ROLE_USER",
    "messageId": "m",
    "parts": [
        {"text": "Summarize the Q4 report"},
        {"text": "Focus on revenue metrics"},
        {"raw": "AAE=", "mediaType": "image/png", "filename": "a.png"},
        {"url": "https://example.com/a.png"},
        {"data": {"depth": [1, None]}},
    ],
}
USER = Message(
    role=Role.USER,
    content=(
        ContentPartText(text="Summarize the Q4 report"),
        ContentPartText(text="Focus on revenue metrics"),
        ContentPartFile(data=b"\0\1", media_type="image/png", filename="a.png"),
        ContentPartFile(url="https://example.com/a.png"),
        ContentPartData(data={"depth": [1, None]}),
    ),
)
PLAIN_USER = PlainMessage(
    Speaker.USER,
    [
        PlainPart("text", text="Summarize the Q4 report"),
        PlainPart("text", text="Focus on revenue metrics"),
        PlainPart("file", file=File(bytes="AAE=", mime_type="image/png", name="a.png")),
        PlainPart("file", file=File(uri="https://example.com/a.png")),
        PlainPart("data", data={"depth": [1, None]}),
    ],
)
NEW_USER = {
    "role": Speaker.USER,
    "parts": [
        NewPart(text="Summarize the Q4 report"),
        NewPart(text="Focus on revenue metrics"),
        NewPart(raw=b"\0\1", media_type="image/png", filename="a.png"),
        NewPart(url="https://example.com/a.png"),
        NewPart(data={"depth": [1, None]}),
    ],
}
AGENT_1_0: dict[str, Any] = {
    "role": "ROLE_AGENT",
    "messageId": "m",
    "parts": [{"text": "hm", "metadata": REASONING}, {"text": "Let me look."}, {"data": CALLS}],
}
AGENT_0_3: dict[str, Any] = {
    "role": "agent",
    "messageId": "m",
    "parts": [
        {"kind": "text", "text": "hm", "metadata": REASONING},
        {"kind": "text", "text": "Let me look."},
        {"kind": "data", "data": CALLS},
    ],
}
AGENT = Message(
    role=Role.MODEL,
    content=(
        ContentPartReasoning(text="hm"),
        ContentPartText(text="Let me look."),
        ContentPartToolCall(id="c", name="look", arguments={"at": "é"}),
    ),
)
PLAIN_AGENT = PlainMessage(
    Speaker.AGENT,
    [
        PlainPart("text", text="hm", metadata=REASONING),
        PlainPart("text", text="Let me look."),
        PlainPart("data", data=CALLS),
    ],
)


def protobuf(fields: dict[str, Any]) -> sdk.Message:
    return ParseDict(fields, sdk.Message())


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (protobuf(USER_1_0), USER),
        (OldMessage.model_validate(USER_0_3), USER),
        (A2AMessage.model_validate(USER_1_0), USER),
        (PLAIN_USER, USER),
        (NEW_USER, USER),
        (USER_1_0, USER),
        (USER_0_3, USER),
        (protobuf(AGENT_1_0), AGENT),
        (OldMessage.model_validate(AGENT_0_3), AGENT),
        (A2AMessage.model_validate(AGENT_1_0), AGENT),
        (PLAIN_AGENT, AGENT),
        (AGENT_1_0, AGENT),
        (AGENT_0_3, AGENT),
    ],
)
def test_a_message_is_read_from_the_objects_of_any_program(message: object, expected: Message) -> None:
    assert to_common_message(message) == expected
    assert convert_a2a_message_to_openai(message) == convert_a2a_message_to_openai(
        USER_1_0 if expected is USER else AGENT_1_0
    )


def test_the_parts_of_a_message_may_be_objects_of_the_sdk() -> None:
    new = {"role": 1, "parts": [sdk.Part(text="a"), sdk.Part(url="https://example.com")]}
    old = {"role": OldRole.user, "parts": [OldPart(TextPart(text="a"))]}
    assert to_common_message(new).content == (
        ContentPartText(text="a"),
        ContentPartFile(url="https://example.com"),
    )
    assert to_common_message(old).content == (ContentPartText(text="a"),)


def test_results_of_tools_are_read_from_the_objects_of_the_sdk() -> None:
    fields = {"role": "ROLE_USER", "messageId": "m", "parts": [{"data": RESULTS}]}
    result = ContentPartToolResult(id="c", name="look", output={"sky": "blue"})
    assert to_common_message(protobuf(fields)) == Message(role=Role.TOOL, content=(result,))
    assert convert_a2a_message_to_openai(protobuf(fields)) == (
        None,
        [{"role": "tool", "tool_call_id": "c", "content": '{"sky": "blue"}'}],
    )


def test_a_message_of_the_sdk_without_a_role_is_refused() -> None:
    with pytest.raises(ValueError, match="the role None is not a role of A2A"):
        to_common_message(sdk.Message(message_id="m", parts=[sdk.Part(text="a")]))

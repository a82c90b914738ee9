"""Conversion of messages between A2A, the common format (`tailrace.wrappers.Message`), and OpenAI.

An A2A message may be an instance of `tailrace.streaming.a2a.models.Message`, a message of a2a-sdk, a JSON object of any A2A
version, or any other object with attributes of the same names. A2A has no part types for the following content:

- Tool calls are a data part ``{"tool_calls": [{"call_id", "name", "arguments"}]}`` of an agent's message. Tool results are a data
  part ``{"tool_results": [{"call_id", "name", "output"}]}`` of a user's message. Adjacent calls or results are in one part. The
  metadata ``argumentsText`` of the part lists the model's text of the arguments for each call, or null if it equals the JSON of
  ``arguments``.
- Reasoning is a text part with the metadata ``{"channel": "reasoning"}`` under `EXTENSION_URI`.
- The metadata ``finish_reason`` and ``extra`` of a model's message become ``finishReason`` and ``extra`` under `EXTENSION_URI`.

`to_common_message` is the exact inverse of `to_a2a_message`, which adds further metadata under `EXTENSION_URI` for this purpose.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import groupby, zip_longest
from typing import Any, cast
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from tailrace.streaming.a2a.models import Message as A2AMessage
from tailrace.streaming.a2a.models import Part
from tailrace.streaming.a2a.models import Role as A2ARole
from tailrace.streaming.a2a.protobuf import is_protobuf, protobuf_json
from tailrace.streaming.a2a.stream_extension import (
    EXTENSION_URI,
    extension_metadata,
    provider_json,
    provider_members,
    with_extension_metadata,
    without_extension_metadata,
)
from tailrace.wrappers import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.assembly.tool_calls import arguments_as_written, parse_arguments
from tailrace.wrappers.messages import shortened
from tailrace.wrappers.openai.converter import OpenAIConverter, plain_content

_ROLES: dict[object, A2ARole] = {
    "user": A2ARole.USER,
    "agent": A2ARole.AGENT,
    "ROLE_USER": A2ARole.USER,
    "ROLE_AGENT": A2ARole.AGENT,
    1: A2ARole.USER,
    2: A2ARole.AGENT,
}


# Attributes of objects of unknown types.
_ATTRIBUTES = (
    *("role", "parts", "metadata"),
    *("kind", "type", "text", "data", "raw", "url", "filename", "media_type", "mediaType"),
    *("file", "bytes", "uri", "name", "mime_type", "mimeType"),
)
_ARGUMENTS_TEXT = "argumentsText"  # metadata of a part with tool calls


def convert_a2a_message_to_openai(message: object) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Convert an A2A message to messages of OpenAI Chat Completions.

    Args:
        message: The A2A message, in any form that the module docstring lists.

    Returns:
        A user or assistant message (None if there are only tool results), and one ``tool`` message for each tool result. Send
        ``tool`` messages before the user message, but after the assistant message. The content is a list of parts if a user
        message has several texts, or if there are files; otherwise one string.

    Raises:
        ValueError: The object is not an A2A message, or a user's message has tool calls.
        TypeError: The object is not a mapping, and has none of the attributes of a message.
    """
    common = to_common_message(message)
    openai_messages = cast(
        "list[dict[str, Any]]", OpenAIConverter().from_history(History(conversation=(common,)))
    )
    tool_messages = [each for each in openai_messages if each["role"] == "tool"]
    if common.role is Role.MODEL:
        # Results without a call in this message: the call is in an earlier message.
        called = {call.id for call in common.tool_calls}
        other_results = [result for result in common.tool_results if result.id not in called]
        tool_messages += cast("list[dict[str, Any]]", OpenAIConverter().tool_result_messages(other_results))
    messages = [each for each in openai_messages if each["role"] != "tool"]
    only_results = all(
        isinstance(part, ContentPartToolResult | ContentPartReasoning) for part in common.content
    )
    if tool_messages and only_results:
        return None, tool_messages
    if not messages:
        # The converter omits an empty response.
        return ({"role": "assistant", "content": ""} if common.role is Role.MODEL else None), tool_messages
    openai_message = plain_content(messages[0])
    return {**openai_message, "content": openai_message["content"] or ""}, tool_messages


def to_common_message(message: object) -> Message:
    """Convert an A2A message to the common format.

    An agent's message gets the role MODEL. A user's message with tool results gets the role TOOL. The result does not contain the
    ids of the A2A message, nor the file name and media type of a text or data part.

    Raises:
        ValueError: The object is not an A2A message. The error contains the position of an invalid part.
        TypeError: The object is not a mapping, and has none of the attributes of a message.
    """
    a2a_role, parts, metadata = _read_message(message)
    content: list[ContentPart] = []
    for position, part in enumerate(parts):
        try:
            content += _common_parts(_read_part(part))
        except ValidationError as error:
            # The value may be secret or large.
            [problem, *_] = error.errors(include_url=False, include_context=False, include_input=False)
            raise ValueError(f"part {position}: {problem['msg'].removeprefix('Value error, ')}") from None
        except ValueError as error:
            raise ValueError(f"part {position}: {error}") from None
    role = _role_of(a2a_role, content)
    stored_role = extension_metadata(metadata).get("role")
    if a2a_role is A2ARole.USER and stored_role in ("user", "tool"):
        role = Role(stored_role)
        metadata = without_extension_metadata(metadata, "role")
    if role is Role.MODEL:
        metadata = _common_metadata(metadata)
    return Message(role=role, content=tuple(content), metadata=dict(metadata))


def to_a2a_message(
    message: Message, *, message_id: str, context_id: str | None = None, task_id: str | None = None
) -> A2AMessage:
    """Convert a message of the common format to A2A 1.0. `to_common_message` restores the same message.

    Raises:
        ValueError: The message has the role SYSTEM, which A2A does not have.
    """
    if message.role is Role.SYSTEM:
        raise ValueError("a system message has no form in A2A")
    parts: list[Part] = []
    for kind, group in groupby(message.content, type):
        if kind is ContentPartToolCall:
            calls = list(cast("Iterable[ContentPartToolCall]", group))
            argument_texts = list(map(arguments_as_written, calls))
            fields = {_ARGUMENTS_TEXT: argument_texts} if any(argument_texts) else {}
            data = {"tool_calls": [_call_entry(call) for call in calls]}
            parts.append(Part(data=data, metadata=with_extension_metadata({}, **fields) if fields else {}))
        elif kind is ContentPartToolResult:
            results = cast("Iterable[ContentPartToolResult]", group)
            parts.append(Part(data={"tool_results": [_result_entry(result) for result in results]}))
        else:
            parts += [_a2a_part(part) for part in group]
    if not parts:
        # A2A does not allow a message without parts.
        parts.append(Part(text="", metadata=with_extension_metadata({}, empty=True)))
    role = A2ARole.AGENT if message.role is Role.MODEL else A2ARole.USER
    metadata = _a2a_metadata(message.metadata) if message.role is Role.MODEL else message.metadata
    if message.role is not _role_of(role, message.content):
        metadata = with_extension_metadata(metadata, role=str(message.role))
    uses_extension = any(EXTENSION_URI in each for each in (metadata, *(part.metadata for part in parts)))
    return A2AMessage(
        message_id=message_id,
        role=role,
        parts=tuple(parts),
        context_id=context_id or "",
        task_id=task_id or "",
        metadata=metadata,
        extensions=(EXTENSION_URI,) if uses_extension else (),
    )


def results_message(message: Message) -> A2AMessage:
    """Convert a message with the results of tools that the agent ran.

    A2A has no role for tools. The message has the role of the user, and the metadata ``by`` shows that the caller did not send
    it.
    """
    a2a = to_a2a_message(message, message_id=str(uuid4()))
    return a2a.model_copy(update={"metadata": with_extension_metadata(a2a.metadata, by="agent")})


def is_callers(message: A2AMessage) -> bool:
    """Return True if the caller sent a message, and False if the message is from the agent or one of its tools."""
    return message.role is A2ARole.USER and extension_metadata(message.metadata).get("by") != "agent"


def _role_of(role: A2ARole, content: Iterable[ContentPart]) -> Role:
    if role is A2ARole.AGENT:
        return Role.MODEL
    return Role.TOOL if any(isinstance(part, ContentPartToolResult) for part in content) else Role.USER


# --- metadata of a model's message ------------------------------------------------------------------------------


def _a2a_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    finish, extra = metadata.get("finish_reason"), metadata.get("extra")
    fields: dict[str, Any] = {"finishReason": finish} if isinstance(finish, str) else {}
    if isinstance(extra, Mapping):
        fields["extra"] = provider_json(cast("Mapping[str, Any]", extra))
    if not fields:
        return metadata
    common_names = {"finishReason": "finish_reason", "extra": "extra"}
    names = {common_names[field] for field in fields}
    return with_extension_metadata(
        {name: value for name, value in metadata.items() if name not in names}, **fields
    )


def _common_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    fields = extension_metadata(metadata)
    finish, extra = fields.get("finishReason"), fields.get("extra")
    common: dict[str, Any] = {"finish_reason": finish} if isinstance(finish, str) else {}
    if isinstance(extra, Mapping):
        common["extra"] = provider_members(cast("Mapping[str, Any]", extra))
    if not common:
        return metadata
    return {**without_extension_metadata(metadata, "finishReason", "extra"), **common}


# --- parts to A2A -----------------------------------------------------------------------------------------------


def _a2a_part(part: ContentPart) -> Part:
    if isinstance(part, ContentPartReasoning):
        fields = {"channel": "reasoning"}
        if part.signature is not None:
            fields["signature"] = part.signature
        return Part(text=part.text, metadata=with_extension_metadata(part.metadata, **fields))
    if isinstance(part, ContentPartFile):
        rest: dict[str, Any] = {
            "metadata": part.metadata,
            "filename": part.filename,
            "media_type": part.media_type,
        }
        return Part(url=part.url, **rest) if part.data is None else Part(raw=part.data, **rest)
    if isinstance(part, ContentPartData):
        metadata = part.metadata
        if _tool_entries(part.data) is not None:
            # This data of a caller looks like tool calls or results.
            metadata = with_extension_metadata(metadata, channel="data")
        return Part(data=part.data, metadata=metadata)
    return Part(text=cast("ContentPartText", part).text, metadata=part.metadata)


def _call_entry(call: ContentPartToolCall) -> dict[str, Any]:
    entry: dict[str, Any] = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
    known = {"type", "id", "name", "arguments", "arguments_json"}
    return entry | call.model_dump(exclude=known, exclude_defaults=True)


def _result_entry(result: ContentPartToolResult) -> dict[str, Any]:
    entry: dict[str, Any] = {"call_id": result.id, "name": result.name, "output": result.output}
    return entry | result.model_dump(exclude={"type", "id", "name", "output"}, exclude_defaults=True)


# --- parts from A2A ---------------------------------------------------------------------------------------------


def _common_parts(part: Part) -> list[ContentPart]:
    fields = extension_metadata(part.metadata)
    channel = fields.get("channel")
    if part.text is not None:
        if channel == "reasoning":
            metadata = without_extension_metadata(part.metadata, "channel", "signature")
            return [
                ContentPartReasoning(text=part.text, signature=fields.get("signature"), metadata=metadata)
            ]
        if not part.text and fields.get("empty") is True:
            return []
        return [ContentPartText(text=part.text, metadata=part.metadata)]
    if part.kind != "data":
        return [
            ContentPartFile(
                data=part.raw,
                url=part.url,
                media_type=part.media_type,
                filename=part.filename,
                metadata=part.metadata,
            )
        ]
    if channel == "data":
        metadata = without_extension_metadata(part.metadata, "channel")
        return [ContentPartData(data=part.data, metadata=metadata)]
    entries = _tool_entries(part.data)
    if entries is None:
        return [ContentPartData(data=part.data, metadata=part.metadata)]
    calls, results = entries
    written: object = fields.get(_ARGUMENTS_TEXT)
    texts = cast("list[object]", written) if isinstance(written, list) else []
    return [
        *(
            _tool_call(entry, f"tool_calls[{at}]", text)
            for at, (entry, text) in enumerate(zip_longest(calls, texts[: len(calls)]))
        ),
        *(_tool_result(entry, f"tool_results[{at}]") for at, entry in enumerate(results)),
    ]


def _tool_entries(data: object) -> tuple[list[object], list[object]] | None:
    if not isinstance(data, Mapping):
        return None
    fields = cast("Mapping[str, object]", data)
    lists = [fields.get(name) for name in ("tool_calls", "tool_results")]
    if not any(isinstance(each, list) for each in lists):
        return None
    calls, results = (cast("list[object]", each) if isinstance(each, list) else [] for each in lists)
    return calls, results


def _tool_call(entry: object, path: str, written: object) -> ContentPartToolCall:
    fields = _mapping(entry)
    values = _present_fields(fields, "arguments_text", "arguments_error", "kind", "synthetic_id", "metadata")
    arguments: object = fields.get("arguments")
    if arguments is None or isinstance(arguments, dict):
        values["arguments"] = arguments or {}
        if isinstance(written, str):
            values["arguments_json"] = written
    else:
        # The arguments are a text of a model, or an invalid value. Parse them like streamed arguments.
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        values = parse_arguments(text) | values
    return ContentPartToolCall(
        id=_required_text(fields, "call_id", path), name=_required_text(fields, "name", path), **values
    )


def _tool_result(entry: object, path: str) -> ContentPartToolResult:
    fields = _mapping(entry)
    values = _present_fields(fields, "output", "is_error", "metadata")
    return ContentPartToolResult(
        id=_required_text(fields, "call_id", path), name=fields.get("name", "unknown"), **values
    )


def _present_fields(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}


def _required_text(fields: Mapping[str, Any], name: str, path: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{path} has no {name} that is text")
    return value


# --- A2A messages of any type -----------------------------------------------------------------------------------


def _read_message(message: object) -> tuple[A2ARole, Sequence[object], Mapping[str, Any]]:
    if isinstance(message, A2AMessage):
        return message.role, message.parts, message.metadata
    fields = _fields(message)
    name = fields.get("role")
    if isinstance(name, Enum):
        name = name.value
    role = _ROLES.get(name) if isinstance(name, str | int) else None
    if role is None:
        raise ValueError(f"the role {shortened(name)} is not a role of A2A")
    parts = fields.get("parts")
    if not isinstance(parts, list | tuple):
        raise ValueError("an A2A message has a list of parts")
    metadata = fields.get("metadata")
    return role, cast("Sequence[object]", parts), _mapping(metadata)


def _read_part(part: object) -> Part:
    if isinstance(part, Part):
        return part
    fields = _fields(part)
    kind = fields.get("kind") or fields.get("type")
    if kind is None:
        return Part.model_validate(fields)  # in 1.0, the member that is set determines the kind
    if kind == "file":
        file = _fields(fields.get("file"))
        content = {"raw": file.get("bytes"), "url": file.get("uri") or file.get("url")}
        content |= {"filename": file.get("name"), "media_type": file.get("mimeType") or file.get("mime_type")}
    elif kind in ("text", "data") and kind in fields:
        content = {kind: fields[kind]}
    else:
        raise ValueError(f"a part of kind {shortened(kind)} that A2A does not define")
    return Part.model_validate({**content, "metadata": _mapping(fields.get("metadata"))})


def _fields(value: object) -> Mapping[str, Any]:
    """Return the fields of a JSON object, a pydantic model, a protobuf message (by JSON name), or another object."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if is_protobuf(value):
        return protobuf_json(value)
    # Attributes may be slots or properties, which ``__dict__`` does not contain.
    attributes = {name: getattr(value, name) for name in _ATTRIBUTES if hasattr(value, name)}
    fields = {name: field for name, field in attributes.items() if field is not None or name == "data"}
    if fields:
        return fields
    raise TypeError(f"an A2A message or part is a dict or an object with fields, not {type(value).__name__}")


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}

"""The content blocks that stream and request share: files, tool results, and blocks with no common form.

A block is an object with one member, whose name is the block's type: ``{"text": …}``, ``{"image": {…}}``.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tailrace.wrappers.fields import json_text, plain_json
from tailrace.wrappers.loose_json import as_mapping, as_mappings, as_text
from tailrace.wrappers.messages import (
    ContentPartData,
    ContentPartFile,
    ContentPartText,
    ContentPartToolResult,
)

KEY = "bedrock"
"""Under this name stands in metadata what is to be sent back to Bedrock as it was."""

# For each type of block that holds a file its formats, and their media types.
FORMATS: Mapping[str, Mapping[str, str]] = {
    "image": {"png": "image/png", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"},
    "document": {
        "pdf": "application/pdf",
        "csv": "text/csv",
        "doc": "application/msword",
        "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xls": "application/vnd.ms-excel",
        "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "html": "text/html",
        "txt": "text/plain",
        "md": "text/markdown",
    },
    "video": {
        "mkv": "video/x-matroska",
        "mov": "video/quicktime",
        "mp4": "video/mp4",
        "webm": "video/webm",
        "flv": "video/x-flv",
        "mpeg": "video/mpeg",
        "wmv": "video/x-ms-wmv",
        "three_gp": "video/3gpp",
    },
    "audio": {
        "mp3": "audio/mpeg",
        "opus": "audio/opus",
        "wav": "audio/wav",
        "aac": "audio/aac",
        "flac": "audio/flac",
        "mp4": "audio/mp4",
        "ogg": "audio/ogg",
        "mkv": "audio/x-matroska",
    },
}

PADDING = frozenset({"p"})
"""Members that hide the lengths of messages from whoever watches the wire."""
_MAX_LEVELS = 100  # of a value that is copied; Python itself follows no more than some hundreds


def blob(value: object) -> bytes | None:
    """The bytes of a field that is base64 on the wire and bytes in boto3's objects; None where it is neither."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        return None
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None


def wire_json(value: object, levels: int = _MAX_LEVELS) -> Any:
    """A copy of a value of boto3's that is JSON as it stands on the wire: its bytes are base64.

    What is nested deeper than ``levels`` lists and objects stays as it is: no bytes stand there, but for a joke.
    """
    if levels <= 0:
        return value
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        members = cast("Mapping[object, object]", value).items()
        return {str(name): wire_json(member, levels - 1) for name, member in members}
    if isinstance(value, list | tuple):
        return [wire_json(member, levels - 1) for member in cast("Sequence[object]", value)]
    return value


def own_fields(fields: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """Metadata with what an object holds beyond the known fields, under the key that sends it back."""
    rest = {
        name: plain_json(wire_json(value))
        for name, value in fields.items()
        if name not in known and name not in PADDING and value is not None
    }
    return {KEY: rest} if rest else {}


def own_data(kind: str, value: object) -> ContentPartData:
    """A block that has no common form, marked as one that may go back as it is."""
    return ContentPartData(data=plain_json(wire_json(value)), metadata={KEY: {"type": kind}})


def read_part(block: Mapping[str, Any]) -> ContentPartText | ContentPartFile | ContentPartData:
    """The part that a block means, which is no reasoning, no tool call and no tool result."""
    kind, value = next(((name, value) for name, value in block.items() if name not in PADDING), ("", None))
    if kind == "text" and isinstance(value, str):
        return ContentPartText(text=value)
    fields = as_mapping(value)
    if kind == "citationsContent" and fields is not None:
        texts = [as_text(content.get("text")) for content in as_mappings(fields.get("content"))]
        return ContentPartText(text="".join(texts), metadata=own_fields(fields, "content"))
    file = _read_file(kind, fields) if fields is not None else None
    return file or own_data(kind, value)


def _read_file(kind: str, fields: Mapping[str, Any]) -> ContentPartFile | None:
    """The file in a block; None where the block has none, or one of an unknown format."""
    media_type = FORMATS.get(kind, {}).get(as_text(fields.get("format")))
    source = as_mapping(fields.get("source")) or {}
    if media_type is None or len(source) != 1:
        return None
    name = as_text(fields.get("name"))
    filename = f"{name}.{fields['format']}" if name else ""
    metadata = own_fields(fields, "format", "name", "source")
    data = blob(source.get("bytes"))
    if data is not None:
        return ContentPartFile(data=data, media_type=media_type, filename=filename, metadata=metadata)
    location = as_mapping(source.get("s3Location")) or {}
    uri = as_text(location.get("uri"))
    if not uri:
        return None
    owner = own_fields(location, "uri").get(KEY)
    if owner:
        metadata = {KEY: {**metadata.get(KEY, {}), "s3Location": owner}}
    return ContentPartFile(url=uri, media_type=media_type, filename=filename, metadata=metadata)


def read_tool_result(fields: Mapping[str, Any], name: str) -> ContentPartToolResult:
    """The result in a ``toolResult`` block.

    Args:
        fields: The block's value.
        name: The tool, as far as it is known.
    """
    content = as_mappings(fields.get("content") or [])
    texts = [block["text"] for block in content if list(block) == ["text"] and isinstance(block["text"], str)]
    metadata = own_fields(fields, "toolUseId", "content", "status")
    output: Any
    if len(texts) == len(content):
        output = "".join(texts)
    elif len(content) == 1 and list(content[0]) == ["json"]:
        output = plain_json(content[0]["json"])
    else:
        # Images and documents among it: what went back as it was cannot be made anew from any JSON value.
        output = plain_json(wire_json(content))
        metadata = {KEY: {**metadata.get(KEY, {}), "content": output}}
    return ContentPartToolResult(
        id=as_text(fields.get("toolUseId")),
        name=name or "unknown",
        output=output,
        is_error=fields.get("status") == "error",
        metadata=metadata,
    )


def arguments_text(value: object) -> str:
    """A call's input as text: as it is where it is streamed as text, its JSON where it came whole."""
    if isinstance(value, str):
        return value
    return "" if value is None else json_text(wire_json(value))

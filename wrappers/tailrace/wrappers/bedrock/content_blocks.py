"""Conversion of Bedrock's content blocks to parts: texts, files, tool results, and blocks that only Bedrock has.

A block is a JSON object with one member, whose name is the type of the block, for example ``{"text": …}``.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tailrace.wrappers.conversion.text_joining import join_texts
from tailrace.wrappers.decoding.extra_fields import json_text, plain_json
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_mappings, as_text
from tailrace.wrappers.messages import (
    ContentPartData,
    ContentPartFile,
    ContentPartText,
    ContentPartToolResult,
)

KEY = "bedrock"
"""Metadata key of fields that must be unchanged in later requests to Bedrock."""

# Media type of each format, by type of block.
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
"""Names of padding members, which hide the lengths of messages from observers of the network."""
# Maximum nesting depth of a copied value, because of Python's recursion limit.
_MAX_LEVELS = 100


def blob(value: object) -> bytes | None:
    """Return the bytes of a field: base64 text in JSON, or ``bytes`` in objects of boto3. None for any other value."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        return None
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None


def wire_json(value: object, levels: int = _MAX_LEVELS) -> Any:
    """Convert a value of boto3 to a JSON value: bytes become base64 text. Very deep values are returned unchanged."""
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


def own_metadata(fields: Mapping[str, Any], *standard: str) -> dict[str, Any]:
    """Return metadata with all fields that are not standard fields; empty if there are none."""
    other_fields = {
        name: plain_json(wire_json(value))
        for name, value in fields.items()
        if name not in standard and name not in PADDING and value is not None
    }
    return {KEY: other_fields} if other_fields else {}


def own_data(kind: str, value: object) -> ContentPartData:
    """Return a data part for a block that only Bedrock has. The metadata contains the type of the block, for later requests."""
    return ContentPartData(data=plain_json(wire_json(value)), metadata={KEY: {"type": kind}})


def read_part(block: Mapping[str, Any]) -> ContentPartText | ContentPartFile | ContentPartData:
    """Convert a content block that is neither reasoning, nor a tool call, nor a tool result to a part."""
    kind, value = next(((name, value) for name, value in block.items() if name not in PADDING), ("", None))
    if kind == "text" and isinstance(value, str):
        return ContentPartText(text=value)
    fields = as_mapping(value)
    if kind == "citationsContent" and fields is not None:
        texts = [as_text(content.get("text")) for content in as_mappings(fields.get("content"))]
        return ContentPartText(text="".join(texts), metadata=own_metadata(fields, "content"))
    file = _read_file(kind, fields) if fields is not None else None
    return file or own_data(kind, value)


def _read_file(kind: str, fields: Mapping[str, Any]) -> ContentPartFile | None:
    """Return the file in a block; None if the block has no file or a file of an unknown format."""
    media_type = FORMATS.get(kind, {}).get(as_text(fields.get("format")))
    source = as_mapping(fields.get("source")) or {}
    if media_type is None or len(source) != 1:
        return None
    name = as_text(fields.get("name"))
    filename = f"{name}.{fields['format']}" if name else ""
    metadata = own_metadata(fields, "format", "name", "source")
    data = blob(source.get("bytes"))
    if data is not None:
        return ContentPartFile(data=data, media_type=media_type, filename=filename, metadata=metadata)
    location = as_mapping(source.get("s3Location")) or {}
    uri = as_text(location.get("uri"))
    if not uri:
        return None
    owner = own_metadata(location, "uri").get(KEY)
    if owner:
        metadata = {KEY: {**metadata.get(KEY, {}), "s3Location": owner}}
    return ContentPartFile(url=uri, media_type=media_type, filename=filename, metadata=metadata)


def read_tool_result(fields: Mapping[str, Any], name: str) -> ContentPartToolResult:
    """Convert a ``toolResult`` block to the result of a tool.

    Args:
        fields: The value of the member ``toolResult``.
        name: The name of the tool; empty if unknown.
    """
    content = as_mappings(fields.get("content") or [])
    texts = [block["text"] for block in content if list(block) == ["text"] and isinstance(block["text"], str)]
    metadata = own_metadata(fields, "toolUseId", "content", "status")
    output: Any
    if len(texts) == len(content):
        output = join_texts(texts)
    elif len(content) == 1 and list(content[0]) == ["json"]:
        output = plain_json(content[0]["json"])
    else:
        # Without the content in the metadata, later requests would contain JSON instead of images and documents.
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
    """Return the input of a tool call as text. An object is encoded as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json_text(wire_json(value))

"""Conversion between Mistral's content parts and the common format: texts, files, and parts that only Mistral has.

In Mistral's API, images and documents are URLs or data URLs, and audio is a URL or base64 text.
"""

import base64
from collections.abc import Mapping
from typing import Any

from tailrace.wrappers.conversion.files import (
    IMAGE_TYPES,
    bare_media_type,
    data_url,
    ending_type,
    read_base64,
    read_data_url,
)
from tailrace.wrappers.conversion.message_objects import own_fields
from tailrace.wrappers.decoding.extra_fields import plain_json
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_text
from tailrace.wrappers.messages import ContentPartData, ContentPartFile, ContentPartText

KEY = "mistral"
"""Metadata key of fields that must be unchanged in later requests to Mistral."""

THINKING: Mapping[str, Any] = {KEY: {"type": "thinking"}}
"""Metadata of a reasoning part that Mistral produced."""

_FILE_ID = "mistral-file:"  # prefix of the id in the URL of an uploaded file
_ENDINGS = {
    **IMAGE_TYPES,
    ".csv": "text/csv",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".md": "text/markdown",
    ".pdf": "application/pdf",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".txt": "text/plain",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
_DOCUMENTS = frozenset(kind for kind in _ENDINGS.values() if not kind.startswith("image/"))
_ANY_TYPE = {"image_url": "image/*", "input_audio": "audio/*"}


def read_part(part: Mapping[str, Any]) -> ContentPartText | ContentPartFile | ContentPartData:
    """Convert a content part that is neither thinking nor a reference. The function never raises an exception."""
    kind = as_text(part.get("type"))
    if kind == "text" and isinstance(part.get("text"), str):
        return ContentPartText(text=part["text"], metadata=_own_fields(part, "type", "text"))
    file = _read_file(kind, part)
    if file is None:
        return ContentPartData(data=plain_json(part), metadata={KEY: {"type": kind}})
    if file_param(file) != part:
        # The type of the content part cannot be derived from the file.
        file = file.model_copy(update={"metadata": {KEY: {**file.metadata.get(KEY, {}), "type": kind}}})
    return file


def file_param(file: ContentPartFile) -> dict[str, Any] | None:
    """Return the content part for a file; None if the file is empty, or if Mistral does not support the media type."""
    own = own_fields(file.metadata, KEY)
    media_type = bare_media_type(file.media_type)
    if file.url is not None and file.url.startswith(_FILE_ID):
        return {**own, "type": "file", "file_id": file.url.removeprefix(_FILE_ID)}
    kind = as_text(own.pop("type", "")) or _kind(file, media_type)
    if kind is None or file.data == b"":
        return None
    if file.url is not None:
        value = file.url
    elif kind == "input_audio":
        value = base64.b64encode(file.data or b"").decode("ascii")
    else:
        value = data_url(file.media_type or "application/octet-stream", file.data or b"")
    if kind == "document_url" and file.filename:
        own["document_name"] = file.filename
    inner = as_mapping(own.pop(kind, None))
    return {**own, "type": kind, kind: value if inner is None else {**inner, "url": value}}


def _kind(file: ContentPartFile, media_type: str) -> str | None:
    if not media_type or media_type == "application/octet-stream":
        media_type = ending_type(file.url or file.filename, _ENDINGS)
    if media_type.startswith("image/"):
        return "image_url"
    if media_type.startswith("audio/"):
        return "input_audio"
    return "document_url" if media_type in _DOCUMENTS else None


def _read_file(kind: str, part: Mapping[str, Any]) -> ContentPartFile | None:
    if kind == "file" and as_text(part.get("file_id")):
        return ContentPartFile(
            url=f"{_FILE_ID}{part['file_id']}", metadata=_own_fields(part, "type", "file_id")
        )
    if kind not in ("image_url", "document_url", "input_audio"):
        return None
    value = part.get(kind)
    inner = as_mapping(value)
    url = as_text(inner.get("url")) if inner is not None else as_text(value)
    own = _own_fields(part, "type", kind, *(("document_name",) if kind == "document_url" else ()))
    if inner is not None:
        other_fields = {name: plain_json(field) for name, field in inner.items() if name != "url"}
        own = {KEY: {**own.get(KEY, {}), kind: other_fields}}
    filename = as_text(part.get("document_name")) if kind == "document_url" else ""
    if not url:
        return None
    try:
        if url.startswith("data:"):
            media_type, data = read_data_url(url)
        elif kind == "input_audio" and not url.startswith(("http://", "https://")):
            media_type, data = _ANY_TYPE[kind], read_base64(url)
        else:
            media_type = ending_type(url, _ENDINGS) or _ANY_TYPE.get(kind, "")
            return ContentPartFile(url=url, media_type=media_type, filename=filename, metadata=own)
    except ValueError:
        return None
    if not data:
        return None
    return ContentPartFile(data=data, media_type=media_type, filename=filename, metadata=own)


def _own_fields(fields: Mapping[str, Any], *standard: str) -> dict[str, Any]:
    other_fields = {
        name: plain_json(value)
        for name, value in fields.items()
        if name not in standard and value is not None
    }
    return {KEY: other_fields} if other_fields else {}

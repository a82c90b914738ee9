"""Conversion of files to and from content parts of Chat Completions: images, audio, and other files."""

import base64
import mimetypes
from collections.abc import Mapping
from typing import Any

from tailrace.wrappers.conversion.files import (
    OPENAI_SOUND_FORMATS,
    bare_media_type,
    data_url,
    ending_type,
    read_data_url,
    sound_type,
)
from tailrace.wrappers.conversion.message_objects import own_metadata
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_text
from tailrace.wrappers.messages import ContentPartFile

_FILE_ID = "openai-file:"  # prefix of the id in the URL of an uploaded file


def file_param(part: ContentPartFile) -> dict[str, Any] | None:
    """Return the content part for a file; None if the file has a URL that the API cannot use."""
    media_type = bare_media_type(part.media_type)
    if part.url is not None:
        if part.url.startswith(_FILE_ID):
            return {"type": "file", "file": {"file_id": part.url.removeprefix(_FILE_ID)}}
        if media_type.startswith("image/") or (not media_type and ending_type(part.url)):
            return {"type": "image_url", "image_url": {"url": part.url}}
        return None
    url = data_url(part.media_type or "application/octet-stream", part.data or b"")
    if media_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    if media_type in OPENAI_SOUND_FORMATS:
        data = base64.b64encode(part.data or b"").decode("ascii")
        sound = {"data": data, "format": OPENAI_SOUND_FORMATS[media_type]}
        return {"type": "input_audio", "input_audio": sound}
    # The API rejects a file without a name.
    filename = part.filename or f"file{mimetypes.guess_extension(media_type) or ''}"
    return {"type": "file", "file": {"file_data": url, "filename": filename}}


def file_part(fields: Mapping[str, Any]) -> ContentPartFile | None:
    """Return the file in a content part; None if the part contains no file.

    Raises:
        ValueError: The part has no valid URL, or its data is not valid base64.
    """
    kind = fields.get("type")
    inner = fields.get(kind) if isinstance(kind, str) else None
    if kind == "image_url":
        image = {"url": inner} if isinstance(inner, str) else as_mapping(inner) or {}
        metadata = _inner_metadata(fields, image, "url")
        url = as_text(image.get("url"))
        if url.startswith("data:"):
            media_type, data = read_data_url(url, bare=True)
            return ContentPartFile(data=data, media_type=media_type, metadata=metadata)
        return ContentPartFile(url=url, media_type=ending_type(url) or "image/*", metadata=metadata)
    if kind == "input_audio":
        audio = as_mapping(inner) or {}
        return ContentPartFile.model_validate(
            {
                "data": as_text(audio.get("data")),
                "media_type": sound_type(as_text(audio.get("format"))),
                "metadata": _inner_metadata(fields, audio, "data", "format"),
            }
        )
    if kind == "file":
        file = as_mapping(inner) or {}
        metadata = _inner_metadata(fields, file, "file_id", "file_data", "filename")
        filename = as_text(file.get("filename"))
        if file.get("file_id"):
            return ContentPartFile(url=f"{_FILE_ID}{file['file_id']}", filename=filename, metadata=metadata)
        media_type, data = read_data_url(as_text(file.get("file_data")), bare=True)
        return ContentPartFile(data=data, media_type=media_type, filename=filename, metadata=metadata)
    return None


def _inner_metadata(fields: Mapping[str, Any], inner: Mapping[str, Any], *standard: str) -> dict[str, Any]:
    kind = fields["type"]
    other_fields = {
        name: value for name, value in inner.items() if name not in standard and value is not None
    }
    return own_metadata("openai", {**fields, kind: other_fields or None}, "type")

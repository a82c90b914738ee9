"""Conversion of files to and from content parts of the Responses API: images, audio and other files."""

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
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_text
from tailrace.wrappers.messages import ContentPartFile
from tailrace.wrappers.openai_responses.tool_items import KEY

_FILE_ID = "openai-file:"  # prefix of the id in the URL of an uploaded file

Fields = dict[str, Any]


def file_param(part: ContentPartFile) -> Fields:
    """Return the content part for a user's file."""
    own = as_mapping(part.metadata.get(KEY)) or {}
    media_type = bare_media_type(part.media_type)
    if part.url is not None and part.url.startswith(_FILE_ID):
        source: Fields = {"file_id": part.url.removeprefix(_FILE_ID)}
    elif part.url is not None and part.url.startswith("data:"):
        source = {"file_data": part.url}
        media_type = media_type or part.url[5:].partition(",")[0].partition(";")[0].lower()
    elif part.url is not None:
        source = {"file_url": part.url}
    else:
        if media_type in OPENAI_SOUND_FORMATS:
            data = base64.b64encode(part.data or b"").decode("ascii")
            sound = {"data": data, "format": OPENAI_SOUND_FORMATS[media_type]}
            return {**own, "type": "input_audio", "input_audio": sound}
        source = {"file_data": data_url(part.media_type or "application/octet-stream", part.data or b"")}
    if media_type.startswith("image/") or (not media_type and ending_type(part.url or "")):
        if "file_id" not in source:
            source = {"image_url": next(iter(source.values()))}
        return {"detail": "auto", **own, "type": "input_image", **source}
    if "file_data" in source:
        # The API rejects a file without a name.
        source["filename"] = part.filename or f"file{mimetypes.guess_extension(media_type) or ''}"
    return {**own, "type": "input_file", **source}


def file_part(param: Mapping[str, Any]) -> ContentPartFile | None:
    """Return the file in a content part; None if the part contains no file.

    Raises:
        ValueError: The data is not valid base64, or the URL is empty.
    """
    kind = param.get("type")
    fields: Fields = {}
    known = {"type", "file_id", "file_url", "file_data", "filename", "image_url", "input_audio"}
    other_fields = {name: value for name, value in param.items() if name not in known and value is not None}
    if kind == "input_audio":
        sound = as_mapping(param.get("input_audio")) or {}
        media_type = sound_type(as_text(sound.get("format")))
        fields = {"data": as_text(sound.get("data")), "media_type": media_type}
    elif kind in ("input_file", "input_image"):
        image = kind == "input_image"
        if image and other_fields.get("detail") == "auto":
            del other_fields["detail"]
        url = as_text(param.get("image_url" if image else "file_url"))
        data = url if url.startswith("data:") else as_text(param.get("file_data"))
        if param.get("file_id"):
            fields = {"url": f"{_FILE_ID}{param['file_id']}", "media_type": "image/*" if image else ""}
        elif data:
            media_type, content = read_data_url(data, bare=True)
            fields = {"data": content, "media_type": media_type}
        elif image:
            fields = {"url": url, "media_type": ending_type(url) or "image/*"}
        else:
            fields = {"url": url}
        if not image:
            fields["filename"] = as_text(param.get("filename"))
    else:
        return None
    return ContentPartFile.model_validate({**fields, "metadata": {KEY: other_fields} if other_fields else {}})

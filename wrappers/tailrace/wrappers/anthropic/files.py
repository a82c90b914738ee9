"""Conversion of files to and from content blocks of the Messages API: images, documents, or a text that describes the file."""

import base64
from collections.abc import Mapping
from typing import Any

from tailrace.wrappers.anthropic.events import KEY
from tailrace.wrappers.conversion.files import IMAGE_TYPES, bare_media_type, ending_type, read_data_url
from tailrace.wrappers.conversion.files import file_description as note
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_text
from tailrace.wrappers.messages import ContentPartFile

# Prefix of the id in the URL of an uploaded file.
_FILE_ID = "anthropic-file:"
_PDF = "application/pdf"
_IMAGES = {**{kind: kind for kind in IMAGE_TYPES.values()}, "image/jpg": "image/jpeg"}
_LINKS = {".pdf": _PDF, **IMAGE_TYPES}

Fields = dict[str, Any]


def file_block(part: ContentPartFile) -> Fields:
    """Return the content block for a file of a user: an image, a document, or text that describes the file."""
    if part.url is None:
        block = _bytes_block(part, part.data or b"", part.media_type)
    elif part.url.startswith("data:"):
        media_type, data = _read_data_url(part.url)
        block = _bytes_block(part, data, part.media_type or media_type)
    else:
        block = _url_block(part, part.url)
    if block is None:
        return {"type": "text", "text": file_note(part)}
    own = as_mapping(part.metadata.get(KEY)) or {}
    return {**own, **block}


def file_note(part: ContentPartFile) -> str:
    """Return a line of text that describes a file that cannot be sent."""
    if part.url is not None and part.url.startswith("data:"):
        part = part.model_copy(update={"url": None, "data": _read_data_url(part.url)[1]})
    return note(part)


def file_part(block: Mapping[str, Any]) -> ContentPartFile | None:
    """Return the file in an image or document block; None if the source of the block is not a single file.

    Raises:
        ValueError: The data of the block is not valid base64, or its URL is empty.
    """
    source = as_mapping(block.get("source")) or {}
    image = block.get("type") == "image"
    other_fields = {
        name: value
        for name, value in block.items()
        if name not in ("type", "source", "title") and value is not None
    }
    fields: Fields = {
        "filename": as_text(block.get("title")),
        "metadata": {KEY: other_fields} if other_fields else {},
    }
    match source.get("type"):
        case "base64":
            fields |= {"data": source.get("data"), "media_type": source.get("media_type")}
        case "text":
            fields |= {"data": as_text(source.get("data")).encode(), "media_type": "text/plain"}
        case "url":
            url = as_text(source.get("url"))
            fields |= {
                "url": url,
                "media_type": (ending_type(url, _LINKS) or "image/*") if image else _PDF,
            }
        case "file":
            url = f"{_FILE_ID}{source.get('file_id')}"
            fields |= {"url": url, "media_type": "image/*" if image else ""}
        case _:
            return None
    return ContentPartFile.model_validate(fields)


def _bytes_block(part: ContentPartFile, data: bytes, media_type: str) -> Fields | None:
    kind = bare_media_type(media_type)
    if kind in _IMAGES:
        return {"type": "image", "source": _base64_source(data, _IMAGES[kind])}
    if kind == _PDF:
        return _document(part, _base64_source(data, _PDF))
    if not kind.startswith("text/"):
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    # The API also rejects blank text in documents.
    return (
        _document(part, {"type": "text", "media_type": "text/plain", "data": text}) if text.strip() else None
    )


def _url_block(part: ContentPartFile, url: str) -> Fields | None:
    kind = bare_media_type(part.media_type)
    if url.startswith(_FILE_ID):
        source = {"type": "file", "file_id": url.removeprefix(_FILE_ID)}
        return {"type": "image", "source": source} if kind.startswith("image/") else _document(part, source)
    if not url.lower().startswith(("https://", "http://")):
        return None
    kind = kind or ending_type(url, _LINKS)
    source = {"type": "url", "url": url}
    if kind.startswith("image/"):
        return {"type": "image", "source": source}
    return _document(part, source) if kind == _PDF else None


def _document(part: ContentPartFile, source: Fields) -> Fields:
    block: Fields = {"type": "document", "source": source}
    if part.filename:
        block["title"] = part.filename
    return block


def _base64_source(data: bytes, media_type: str) -> Fields:
    return {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode("ascii")}


def _read_data_url(url: str) -> tuple[str, bytes]:
    """Return the media type and bytes of a data URL (RFC 2397). The bytes are empty if they cannot be decoded."""
    try:
        return read_data_url(url)
    except ValueError:
        return url.partition(",")[0].removeprefix("data:").removesuffix(";base64"), b""

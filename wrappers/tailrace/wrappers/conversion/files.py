"""Shared functions for files in messages: media types, data URLs, audio formats, and textual descriptions of files."""

import base64
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from tailrace.wrappers.messages import ContentPartFile

IMAGE_TYPES: Mapping[str, str] = {
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
}
"""Media types of images that models accept, by file name extension."""

OPENAI_SOUND_FORMATS: Mapping[str, str] = {
    "audio/wav": "wav",
    "audio/wave": "wav",
    "audio/x-wav": "wav",
    "audio/vnd.wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
"""Audio formats of OpenAI's APIs by media type."""

_SLICE = 64 * 1024  # characters of a text that are decoded at once

_OPENAI_SOUND_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg"}


def essence(media_type: str) -> str:
    """Return a media type without its parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()


def ending_type(address: str, types: Mapping[str, str] = IMAGE_TYPES) -> str:
    """Return the media type of a file name's or URL's extension; empty if it is not in ``types``."""
    path = address.partition("#")[0].partition("?")[0].lower()
    return next((media_type for ending, media_type in types.items() if path.endswith(ending)), "")


def sound_type(name: str) -> str:
    """Return the media type of an audio format of OpenAI's APIs."""
    return _OPENAI_SOUND_TYPES.get(name, f"audio/{name}")


def data_url(media_type: str, data: bytes) -> str:
    """Return a data URL (RFC 2397) in base64."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"


def read_data_url(url: str, *, bare: bool = False) -> tuple[str, bytes]:
    """Return the media type and bytes of a data URL (RFC 2397).

    Args:
        url: The URL.
        bare: Read text without a comma as plain base64 without a type.

    Raises:
        ValueError: The data is invalid base64.
    """
    header, comma, body = url.partition(",")
    if bare and not comma:
        header, body = ";base64", url
    media_type = header.removeprefix("data:")
    if not media_type.endswith(";base64"):
        return media_type, _unquoted(body)
    return media_type.removesuffix(";base64"), read_base64(body)


def _unquoted(text: str) -> bytes:
    """Decode percent-encoding in slices: one call holds the interpreter's lock for as long as its text takes."""
    pieces: list[bytes] = []
    at = 0
    while at < len(text):
        end = at + _SLICE
        percent = text.rfind("%", end - 2, end)  # of an escape that the end would cut
        end = percent if percent > at else end
        pieces.append(unquote_to_bytes(text[at:end]))
        at = end
    return b"".join(pieces)


def read_base64(text: str) -> bytes:
    """Decode base64 in either alphabet, padded or not.

    Raises:
        ValueError: The text is invalid base64.
    """
    return ContentPartFile.model_validate({"data": text}).data or b""


def file_note(part: ContentPartFile) -> str:
    """Return text that stands for a file: a link, or its name, type and size."""
    if part.url is not None:
        return f"[{part.filename or part.url}]({part.url})"
    facts = (f"file {part.filename}".rstrip(), part.media_type, f"{len(part.data or b'')} bytes")
    return f"[{', '.join(fact for fact in facts if fact)}]"

"""Files in messages: media types, data URLs, audio formats, descriptions of files."""

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
"""The name of the audio format in OpenAI's APIs, by media type."""

_SLICE = 64 * 1024  # number of characters that are decoded in one step

_OPENAI_SOUND_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg"}


def bare_media_type(media_type: str) -> str:
    """Return a media type without its parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()


def ending_type(address: str, types: Mapping[str, str] = IMAGE_TYPES) -> str:
    """Return the media type for the extension of a file name or URL; empty if ``types`` does not contain the extension."""
    path = address.partition("#")[0].partition("?")[0].lower()
    return next((media_type for ending, media_type in types.items() if path.endswith(ending)), "")


def sound_type(name: str) -> str:
    """Return the media type for the name of an audio format in OpenAI's APIs."""
    return _OPENAI_SOUND_TYPES.get(name, f"audio/{name}")


def data_url(media_type: str, data: bytes) -> str:
    """Return a data URL (RFC 2397) with base64 data."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"


def read_data_url(url: str, *, bare: bool = False) -> tuple[str, bytes]:
    """Return the media type and bytes of a data URL (RFC 2397).

    Args:
        url: The URL.
        bare: True to accept base64 data without a media type and a comma.

    Raises:
        ValueError: The data is not valid base64.
    """
    header, comma, body = url.partition(",")
    if bare and not comma:
        header, body = ";base64", url
    media_type = header.removeprefix("data:")
    if not media_type.endswith(";base64"):
        return media_type, _unquoted(body)
    return media_type.removesuffix(";base64"), read_base64(body)


def _unquoted(text: str) -> bytes:
    """Decode percent-encoding in slices. A single call would hold the global interpreter lock too long."""
    decoded: list[bytes] = []
    at = 0
    while at < len(text):
        end = at + _SLICE
        percent = text.rfind("%", end - 2, end)  # position of an escape that crosses the end of the slice
        end = percent if percent > at else end
        decoded.append(unquote_to_bytes(text[at:end]))
        at = end
    return b"".join(decoded)


def read_base64(text: str) -> bytes:
    """Decode base64 text in the standard or URL-safe alphabet, with or without padding.

    Raises:
        ValueError: The text is not valid base64.
    """
    return ContentPartFile.model_validate({"data": text}).data or b""


def file_description(part: ContentPartFile) -> str:
    """Return a text that describes a file: a link, or the name, type and size of the file."""
    if part.url is not None:
        return f"[{part.filename or part.url}]({part.url})"
    details = (f"file {part.filename}".rstrip(), part.media_type, f"{len(part.data or b'')} bytes")
    return f"[{', '.join(fact for fact in details if fact)}]"

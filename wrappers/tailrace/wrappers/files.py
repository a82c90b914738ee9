"""Files among a conversation's content, as far as all providers' formats have them in common.

What each format makes of a file stands in its own package; here is what is the same in several of them: media types,
data URLs, the formats of sound, and a file in words for where none may stand.
"""

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
"""The types of images that models take, by the ending of a name or address."""

OPENAI_SOUND_FORMATS: Mapping[str, str] = {
    "audio/wav": "wav",
    "audio/wave": "wav",
    "audio/x-wav": "wav",
    "audio/vnd.wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
"""The formats in which OpenAI's APIs take sound, by media type."""

_OPENAI_SOUND_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg"}


def essence(media_type: str) -> str:
    """A media type without its parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()


def ending_type(address: str, types: Mapping[str, str] = IMAGE_TYPES) -> str:
    """The media type that a name or an address says by its ending; empty where it says none of ``types``."""
    path = address.partition("#")[0].partition("?")[0].lower()
    return next((media_type for ending, media_type in types.items() if path.endswith(ending)), "")


def sound_type(name: str) -> str:
    """The media type of one of the formats in which OpenAI's APIs name sound."""
    return _OPENAI_SOUND_TYPES.get(name, f"audio/{name}")


def data_url(media_type: str, data: bytes) -> str:
    """A data URL (RFC 2397), in base64."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"


def read_data_url(url: str, *, bare: bool = False) -> tuple[str, bytes]:
    """Media type and bytes of a data URL (RFC 2397).

    Args:
        url: The URL.
        bare: Text without a comma is the base64 alone, without a type.

    Raises:
        ValueError: Its data is not base64 though it should be.
    """
    header, comma, body = url.partition(",")
    if bare and not comma:
        header, body = ";base64", url
    media_type = header.removeprefix("data:")
    if not media_type.endswith(";base64"):
        return media_type, unquote_to_bytes(body)
    return media_type.removesuffix(";base64"), read_base64(body)


def read_base64(text: str) -> bytes:
    """The bytes of base64 in either alphabet, padded or not.

    Raises:
        ValueError: It is none.
    """
    return ContentPartFile.model_validate({"data": text}).data or b""


def file_note(part: ContentPartFile) -> str:
    """A file in words, for where none may stand: a link, or what it is."""
    if part.url is not None:
        return f"[{part.filename or part.url}]({part.url})"
    facts = (f"file {part.filename}".rstrip(), part.media_type, f"{len(part.data or b'')} bytes")
    return f"[{', '.join(fact for fact in facts if fact)}]"

"""The common message format of conversations, independent of provider and protocol.

All models are frozen, compare by value, and survive a round trip through JSON: values that JSON cannot represent are
converted or rejected when the model is created (see `json_value`). Parts are in the order in which the model produced
them, and consecutive text is one part.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal, cast

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

MAX_DEPTH = 26
"""Maximum nesting of a JSON value. Protobuf (A2A over gRPC) has the lowest limit of all parsers, 30 objects, of which
the enclosing message needs a few."""

MAX_MESSAGE_LENGTH = 2_000
"""Maximum characters of an error message about a caller's input."""

_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")

_MAX_EXCERPT = 100  # characters of a value in an error message


class Role(StrEnum):
    """Author of a message."""

    SYSTEM = "system"
    USER = "user"
    MODEL = "model"
    TOOL = "tool"


# Characters of a text with surrogates that are processed per call, which holds the interpreter lock: 8 MB would take 90 ms.
_TEXT_SLICE = 1024 * 1024


def _decode_base64(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = value.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


Base64Data = Annotated[
    bytes,
    BeforeValidator(_decode_base64),
    PlainSerializer(_encode_base64, when_used="json", return_type=str),
]
"""Bytes, base64 in JSON: written in the standard alphabet; URL-safe and unpadded text is accepted."""


def join_surrogates(text: str) -> str:
    """Join surrogate pairs into characters, and replace lone surrogates with U+FFFD.

    ``json.loads`` creates surrogates from escapes in the output of models and clients; UTF-8 cannot represent them.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(map(_join_surrogates, _slices(text)))
    return text


def _join_surrogates(text: str) -> str:
    if _SURROGATE_PAIR.search(text):
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    # A hundred times as fast, where there may be millions: each of the three bytes of a lone surrogate becomes
    # one, of which the first is replaced, and the others are left out.
    escaped = text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
    return escaped.replace("\udced", "\ufffd").encode("utf-8", "ignore").decode()


def _slices(text: str) -> Iterator[str]:
    """Cut a text into slices, but not between the two halves of a character."""
    at = 0
    while at < len(text):
        end = at + _TEXT_SLICE
        if "\ud800" <= text[end - 1 : end] <= "\udbff":
            end += 1
        yield text[at:end]
        at = end


def clipped(text: str, length: int = MAX_MESSAGE_LENGTH) -> str:
    """Truncate a text for an error message."""
    return text if len(text) <= length else f"{text[:length]}…"


def shortened(value: object) -> str:
    """Return a caller's value for an error message: its ``repr``, truncated for long texts."""
    if isinstance(value, str) and len(value) > _MAX_EXCERPT:
        return f"{value[:_MAX_EXCERPT]!r}… ({len(value)} characters)"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    return repr(value)


def to_utf8(text: str) -> bytes:
    """Encode text as UTF-8, including lone surrogates, which `from_utf8` restores.

    Growing texts are stored in a ``bytearray``, because a list of fragments takes 60 more bytes per fragment.
    """
    return text.encode() if text.isascii() else text.encode("utf-8", "surrogatepass")


def from_utf8(data: bytes | bytearray) -> str:
    """Decode the bytes of `to_utf8`."""
    return data.decode("utf-8", "surrogatepass")


def utf8_size(text: str) -> int:
    """Return the number of bytes of `to_utf8`."""
    return len(text) if text.isascii() else len(to_utf8(text))


class TooDeepError(ValueError):
    """A JSON value is nested deeper than `MAX_DEPTH`."""


def json_value(value: object) -> Any:
    """Return a deep copy of a JSON value that survives a round trip through JSON.

    Texts are converted by `join_surrogates`; tuples become lists, and non-finite numbers become null, as in
    JavaScript (servers send the logarithm of 0, which Python's reader accepts). Encoded JSON (`msgspec.Raw`) is unchanged.

    Raises:
        TooDeepError: The value is nested deeper than `MAX_DEPTH`.
        ValueError: The value is not JSON: bytes, a key that is not text, any other object.
    """
    return _json_value(value, MAX_DEPTH)


def _json_value(value: object, depth: int) -> Any:
    if isinstance(value, str):
        return join_surrogates(value)
    if value is None or isinstance(value, bool | int | msgspec.Raw):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth == 0:
        raise TooDeepError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {
            _json_key(key): _json_value(item, depth - 1)
            for key, item in cast("dict[object, object]", value).items()
        }
    if isinstance(value, list | tuple):
        return [_json_value(item, depth - 1) for item in cast("list[object]", value)]
    raise ValueError(f"{type(value).__name__} is not a JSON value")


def _json_key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"the key {shortened(key)} of an object is not text")
    return join_surrogates(key)


Text = Annotated[str, AfterValidator(join_surrogates)]
JSONValue = Annotated[Any, AfterValidator(json_value)]
JSONObject = Annotated[dict[str, Any], AfterValidator(json_value)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ContentPartText(_Model):
    """Visible text."""

    type: Literal["text"] = "text"
    text: Text
    metadata: JSONObject = {}


class ContentPartReasoning(_Model):
    """Reasoning of a model.

    Attributes:
        text: The reasoning or its summary; may be empty if the provider returns it encrypted.
        signature: The provider's signature, to be returned unchanged if the provider requires it.
        metadata: Other fields of the block (ids, encrypted content, details), unchanged.
    """

    type: Literal["reasoning"] = "reasoning"
    text: Text
    signature: Text | None = None
    metadata: JSONObject = {}


class ContentPartFile(_Model):
    """A file, image or audio: either by value or by URL.

    Attributes:
        data: The bytes (base64 in JSON).
        url: The URL; not empty.
        media_type: The media type, for example ``image/png``; empty if unknown.
        filename: The displayed name; empty if there is none.
    """

    type: Literal["file"] = "file"
    data: Base64Data | None = None
    url: Annotated[Text, Field(min_length=1)] | None = None
    media_type: Text = ""
    filename: Text = ""
    metadata: JSONObject = {}

    @model_validator(mode="after")
    def _one_source(self) -> "ContentPartFile":
        if (self.data is None) == (self.url is None):
            raise ValueError("a file part has either data or url, not both and not neither")
        return self


class ContentPartData(_Model):
    """Structured data: any JSON value."""

    type: Literal["data"] = "data"
    data: JSONValue
    metadata: JSONObject = {}


class ContentPartToolCall(_Model):
    """A tool call of the model.

    Attributes:
        id: The call's id, which its result must have.
        name: The tool's name.
        arguments: The parsed arguments; ``{}`` if the model sent none or they could not be parsed.
        arguments_json: The model's JSON text of ``arguments`` if it differs from
            ``json.dumps(arguments, ensure_ascii=False)`` (white space, escapes, repeated keys, ``1e2``); otherwise None.
            It is returned to the provider as long as it matches ``arguments``, see
            `tailrace.wrappers.assembly.tool_calls.arguments_as_written`. Calls that differ only in it are equal.
        arguments_text: The model's arguments verbatim if ``arguments`` cannot represent them (invalid JSON, not an
            object, nested too deeply, or a custom tool's free text); otherwise None.
        arguments_error: The error of parsing ``arguments_text``; None if there was none.
        kind: ``"function"``; ``"custom"`` (free text instead of JSON arguments); or ``"server"`` for a tool that the
            provider runs itself.
        synthetic_id: True if the provider sent no id, so that tailrace created one.
        metadata: Other fields of the call (thought signatures, …), returned to the provider.
    """

    type: Literal["tool_call"] = "tool_call"
    id: Text
    name: Text
    arguments: JSONObject = {}
    arguments_json: Text | None = None
    arguments_text: Text | None = None
    arguments_error: Text | None = None
    kind: Text = "function"
    synthetic_id: bool = False
    metadata: JSONObject = {}

    def __eq__(self, other: object) -> bool:
        # The spelling of the arguments is not compared: providers that take objects do not preserve it.
        if not isinstance(other, ContentPartToolCall):
            return NotImplemented
        return {**vars(self), "arguments_json": None} == {**vars(other), "arguments_json": None}

    @model_validator(mode="before")
    @classmethod
    def _too_deep_is_text(cls, fields: object) -> object:
        # A model's arguments must not invalidate its message, so they are kept as text.
        if not isinstance(fields, dict):
            return fields
        values = cast("dict[str, object]", fields)
        try:
            json_value(values.get("arguments"))
        except TooDeepError as error:
            text = values.get("arguments_text") or json.dumps(
                values["arguments"], ensure_ascii=False, default=str
            )
            return {**values, "arguments": {}, "arguments_text": text, "arguments_error": str(error)}
        except ValueError:
            pass  # the field's validator reports the error
        return values


class ContentPartToolResult(_Model):
    """The result of a tool call.

    Attributes:
        id: The call's id.
        name: The tool's name; ``"unknown"`` if neither the source nor a call of that id has it.
        output: Any JSON value; text for most tools.
        is_error: The tool failed; ``output`` describes the error.
    """

    type: Literal["tool_result"] = "tool_result"
    id: Text
    name: Text
    output: JSONValue = None
    is_error: bool = False
    metadata: JSONObject = {}


ContentPart = Annotated[
    ContentPartText
    | ContentPartReasoning
    | ContentPartFile
    | ContentPartData
    | ContentPartToolCall
    | ContentPartToolResult,
    Field(discriminator="type"),
]
"""One part of a message."""


class Message(_Model):
    """One message of a conversation. The results of all tools of one round are one message of role TOOL.

    Attributes:
        role: The author.
        content: The parts, in order.
        metadata: Fields of the message as a whole (refusal, finish reason, provider's ids, …).
    """

    role: Role
    content: tuple[ContentPart, ...] = ()
    metadata: JSONObject = {}

    @property
    def text(self) -> str:
        """The concatenated visible text of all text parts."""
        return "".join(part.text for part in self.content if isinstance(part, ContentPartText))

    @property
    def reasoning(self) -> str:
        """The concatenated text of all reasoning parts."""
        return "".join(part.text for part in self.content if isinstance(part, ContentPartReasoning))

    @property
    def tool_calls(self) -> tuple[ContentPartToolCall, ...]:
        """The tool calls, in order."""
        return tuple(part for part in self.content if isinstance(part, ContentPartToolCall))

    @property
    def tool_results(self) -> tuple[ContentPartToolResult, ...]:
        """The tool results, in order."""
        return tuple(part for part in self.content if isinstance(part, ContentPartToolResult))


class History(_Model):
    """A complete conversation.

    Attributes:
        system_message: Instructions to the model; None for none.
        context: Background sent to the model before the conversation, as a user message; None for none.
        conversation: The messages, oldest first, none of them of role SYSTEM.
    """

    system_message: Text | None = None
    context: Text | None = None
    conversation: tuple[Message, ...] = ()

    @model_validator(mode="after")
    def _no_system_turns(self) -> "History":
        if any(message.role is Role.SYSTEM for message in self.conversation):
            raise ValueError("a system message belongs in History.system_message, not in the conversation")
        return self

    def with_message(self, *messages: Message) -> "History":
        """Return a new history with ``messages`` appended."""
        return History(
            system_message=self.system_message,
            context=self.context,
            conversation=(*self.conversation, *messages),
        )

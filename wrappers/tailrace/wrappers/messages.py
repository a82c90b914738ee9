"""The common message format of conversations, independent of provider and protocol.

`History`, `Message` and the content parts are the interface between all layers. All classes are frozen pydantic models that
survive a round trip through JSON: a value that JSON cannot represent is converted or rejected (see `json_value`). The parts of a
message have the order in which the language model produced them. Consecutive text is one part, unless the provider divides the
text into blocks.
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
"""Maximum nesting depth of a JSON value. Protobuf (A2A over gRPC) has the lowest limit of all parsers: 30 nested objects,
including the objects that contain the value."""

MAX_MESSAGE_LENGTH = 2_000
"""Maximum number of characters in an error message about the input of a caller."""

_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")

# Arguments of `isinstance` in `json_value`. Those with an annotation make the members of a checked value Any for the type checker.
_UNCHANGED = (int, msgspec.Raw)
_OBJECT: Any = dict
_ARRAY: Any = (list, tuple)
_CONTAINERS = (dict, list, tuple)

_MAX_EXCERPT = 100  # maximum number of characters of a value in an error message

# A long word in an error message, for example an id, a name or a path, without quotation marks.
_LONG_WORD = re.compile(r"""([^\s'"]{100})[^\s'"]{200,}""")
_MAX_SCANNED = 100_000  # characters that are searched for long words


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    USER = "user"
    MODEL = "model"
    TOOL = "tool"


# Maximum number of characters with surrogates that one call converts. A call holds the global interpreter lock: for 90 ms
# with 8 MB.
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
"""Bytes that are base64 text in JSON. Output has the standard alphabet and padding. Input may also be URL-safe, or have no
padding."""


def join_surrogates(text: str) -> str:
    """Join surrogate pairs into characters, and replace lone surrogates with U+FFFD.

    ``json.loads`` creates surrogates from escape sequences. UTF-8 cannot represent surrogates.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(map(_join_surrogates, _slices(text)))
    return text


def _join_surrogates(text: str) -> str:
    if _SURROGATE_PAIR.search(text):
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    # Decoding converts each of the three bytes of a lone surrogate to a character. ``replace`` replaces the first one, and
    # ``encode`` drops the other two. This is a hundred times faster than a search for each surrogate.
    escaped = text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
    return escaped.replace("\udced", "\ufffd").encode("utf-8", "ignore").decode()


def _slices(text: str) -> Iterator[str]:
    """Yield the slices of a text, which do not divide surrogate pairs."""
    at = 0
    while at < len(text):
        end = at + _TEXT_SLICE
        if "\ud800" <= text[end - 1 : end] <= "\udbff":
            end += 1
        yield text[at:end]
        at = end


def clipped(text: str, length: int = MAX_MESSAGE_LENGTH) -> str:
    """Shorten a text for an error message, and its words of 300 or more characters."""
    if len(text) >= 300:
        text = _LONG_WORD.sub(r"\1…", text[:_MAX_SCANNED])
    return text if len(text) <= length else f"{text[:length]}…"


def shortened(value: object) -> str:
    """Describe a caller's value in an error message: the JSON type of an object or array, otherwise the ``repr``.

    Long strings are truncated.
    """
    if isinstance(value, str) and len(value) > _MAX_EXCERPT:
        return f"{value[:_MAX_EXCERPT]!r}… ({len(value)} characters)"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    return repr(value)


def to_utf8(text: str) -> bytes:
    """Encode text as UTF-8. Lone surrogates are encoded, too; `from_utf8` restores them.

    Growing texts are stored as UTF-8 in a ``bytearray``: a list of strings would need 60 more bytes for each fragment.
    """
    return text.encode() if text.isascii() else text.encode("utf-8", "surrogatepass")


def from_utf8(data: bytes | bytearray) -> str:
    """Decode bytes that `to_utf8` has encoded."""
    return data.decode("utf-8", "surrogatepass")


def utf8_size(text: str) -> int:
    """Return the number of bytes that `to_utf8` would return."""
    return len(text) if text.isascii() else len(to_utf8(text))


class TooDeepError(ValueError):
    """A JSON value is nested deeper than `MAX_DEPTH` levels."""


def json_value(value: object) -> Any:
    """Return a deep copy of a JSON value that survives a round trip through JSON.

    Strings are converted by `join_surrogates`. Tuples become lists. Non-finite numbers become null: some servers send
    ``-Infinity`` as a log probability. Encoded JSON (`msgspec.Raw`) does not change.

    Raises:
        TooDeepError: The value is nested deeper than `MAX_DEPTH` levels.
        ValueError: The value contains a key that is not a string, or a type that JSON does not have, for example bytes.
    """
    return _json_value(value, MAX_DEPTH)


def _json_value(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return join_surrogates(value)
    if depth == 0 and isinstance(value, _CONTAINERS):
        raise TooDeepError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, _OBJECT):
        return {_json_key(key): _json_value(item, depth - 1) for key, item in value.items()}
    if value is None or isinstance(value, _UNCHANGED):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, _ARRAY):
        return [_json_value(item, depth - 1) for item in value]
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
        text: The reasoning or its summary; may be empty if the provider returns encrypted reasoning.
        signature: The provider's signature; None for none. Later requests contain it unchanged if the provider requires it.
        metadata: All other fields of the reasoning block, unchanged (ids, encrypted content, details).
    """

    type: Literal["reasoning"] = "reasoning"
    text: Text
    signature: Text | None = None
    metadata: JSONObject = {}


class ContentPartFile(_Model):
    """A file, for example an image or audio, as bytes or as a URL.

    Attributes:
        data: The content (base64 text in JSON); None if ``url`` is set.
        url: The URL of the file; None if ``data`` is set.
        media_type: The media type, for example ``image/png``; empty if unknown.
        filename: The name of the file for display; may be empty.
        metadata: Other fields of the file, for later requests to the provider.
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
            raise ValueError("a file part needs exactly one of data and url")
        return self


class ContentPartData(_Model):
    """Structured data: any JSON value."""

    type: Literal["data"] = "data"
    data: JSONValue
    metadata: JSONObject = {}


class ContentPartToolCall(_Model):
    """A tool call of the model.

    Attributes:
        id: The id of the call and of its result.
        arguments: The parsed arguments; ``{}`` if the model sent no arguments or invalid arguments.
        arguments_json: The model's JSON text for ``arguments``, for later requests. None if it equals ``json.dumps(arguments,
            ensure_ascii=False)``. Calls that differ only in this text are equal.
        arguments_text: The model's text for the arguments, unchanged, if ``arguments`` cannot represent it; otherwise None. Such
            a text is not a JSON object, is nested too deeply, or is the free text for a custom tool.
        arguments_error: The reason why the arguments could not be parsed, or are missing; None for no error.
        kind: ``"function"`` for JSON arguments, ``"custom"`` for free text, or ``"server"`` for a server tool.
        synthetic_id: True if tailrace created the id, for example because the provider sent none.
        metadata: Other fields of the call, for example thought signatures, for later requests to the provider.
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
        # Some providers represent arguments as objects, which do not preserve ``arguments_json``.
        if not isinstance(other, ContentPartToolCall):
            return NotImplemented
        return {**vars(self), "arguments_json": None} == {**vars(other), "arguments_json": None}

    @model_validator(mode="before")
    @classmethod
    def _too_deep_is_text(cls, fields: object) -> object:
        # Arguments that are nested too deeply would make the message of the model invalid. They are stored as text.
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
        name: The name of the tool; ``"unknown"`` if neither the provider's result nor a known call contains it.
        output: The output of the tool: any JSON value, usually text.
        is_error: True if the tool failed. ``output`` then describes the error.
        metadata: Other fields of the result, for later requests to the provider.
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
    """One message of a conversation. One message of the role TOOL contains the results of all client tools that a response calls.

    Attributes:
        content: The parts, in order.
        metadata: Fields that do not belong to a single part (refusal, finish reason, ids of the provider, …).
    """

    role: Role
    content: tuple[ContentPart, ...] = ()
    metadata: JSONObject = {}

    @property
    def text(self) -> str:
        """The visible text of all text parts."""
        return "".join(part.text for part in self.content if isinstance(part, ContentPartText))

    @property
    def reasoning(self) -> str:
        """The text of all reasoning parts."""
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
        context: Background information, sent as a user message before the conversation; None for none.
        conversation: The messages, oldest first. No message has the role SYSTEM.
    """

    system_message: Text | None = None
    context: Text | None = None
    conversation: tuple[Message, ...] = ()

    @model_validator(mode="after")
    def _no_system_turns(self) -> "History":
        if Role.SYSTEM in [message.role for message in self.conversation]:
            raise ValueError("a system message belongs in History.system_message, not in the conversation")
        return self

    def with_message(self, *messages: Message) -> "History":
        """Return a new history with ``messages`` appended."""
        return History(
            system_message=self.system_message,
            context=self.context,
            conversation=(*self.conversation, *messages),
        )

"""The common message format: what is said in a conversation, whichever provider or protocol carries it.

All models are frozen, compare by value, and make the round trip through JSON: what JSON cannot carry is mended
or refused (see `json_value`) when the model is made, not when it is stored. Content is ordered: parts stand in the order in which the model produced them, and
consecutive text is one part.
"""

import base64
import binascii
import json
import math
from enum import StrEnum
from typing import Annotated, Any, Literal, cast

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
"""How deep a JSON value may be nested. Readers and writers give up at different depths, those of protobuf (A2A over gRPC)
first, at 30 objects; a value travels a few levels down inside a message."""


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    MODEL = "model"
    TOOL = "tool"


def _decode_base64(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = value.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None


Base64Data = Annotated[
    bytes,
    BeforeValidator(_decode_base64),
    PlainSerializer(lambda value: base64.b64encode(value).decode("ascii"), when_used="json", return_type=str),
]
"""Bytes that are base64 text in JSON: standard alphabet out; URL-safe and unpadded text is accepted in."""


def join_surrogates(text: str) -> str:
    """``text`` with surrogate pairs joined into characters and lone surrogates replaced by U+FFFD.

    ``json.loads`` makes such halves of the escapes that models and clients do write; no UTF-8 can carry them.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def to_utf8(text: str) -> bytes:
    """``text`` as UTF-8; half of a surrogate pair is three bytes, of which `from_utf8` makes that half again.

    A text that grows is kept so, in a ``bytearray``: a list of its pieces takes sixty bytes more for each of them.
    """
    return text.encode() if text.isascii() else text.encode("utf-8", "surrogatepass")


def from_utf8(data: bytes | bytearray) -> str:
    """The text that `to_utf8` made these bytes of."""
    return data.decode("utf-8", "surrogatepass")


def utf8_size(text: str) -> int:
    """How many bytes `to_utf8` makes of ``text``."""
    return len(text) if text.isascii() else len(to_utf8(text))


class TooDeepError(ValueError):
    """A JSON value is nested deeper than `MAX_DEPTH`."""


def json_value(value: object) -> Any:
    """A deep copy of a JSON value that is sure to make the round trip through JSON.

    Texts go through `join_surrogates`; tuples become lists, and numbers that are not finite null, as they do in
    JavaScript (servers send the logarithm of 0, and Python's reader takes it).

    Raises:
        TooDeepError: It is nested deeper than `MAX_DEPTH`.
        ValueError: It holds something that is not JSON: bytes, a key that is not text, any other object.
    """
    return _json_value(value, MAX_DEPTH)


def _json_value(value: object, depth: int) -> Any:
    if isinstance(value, str):
        return join_surrogates(value)
    if value is None or isinstance(value, bool | int):
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
        raise ValueError(f"the key {key!r} of an object is not text")
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
    """What a model thought before or between its answers.

    Attributes:
        text: The reasoning, or its summary; may be empty where the provider keeps it sealed.
        signature: The provider's seal over it, to be sent back unchanged where the provider demands it.
        metadata: Other fields of the block (ids, encrypted content, details), unchanged.
    """

    type: Literal["reasoning"] = "reasoning"
    text: Text
    signature: Text | None = None
    metadata: JSONObject = {}


class ContentPartFile(_Model):
    """A file, image or sound: by value or by address, exactly one of the two.

    Attributes:
        data: The bytes (base64 in JSON).
        url: Where it can be fetched; not empty.
        media_type: For example ``image/png``; empty when not known.
        filename: A name for people; empty when there is none.
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
    """The model asks for a tool.

    Attributes:
        id: The call's id, which its result must carry.
        name: The tool.
        arguments: The parsed arguments; ``{}`` when the model sent none or when they could not be parsed.
        arguments_text: The arguments word for word as the model wrote them, where that says more than
            ``arguments`` (it did not parse, is not an object, nests too deep, or is a custom tool's free text);
            else None.
        arguments_error: Why ``arguments_text`` could not be parsed; None when it could.
        kind: ``"function"``; ``"custom"`` (free text instead of JSON arguments); or ``"server"`` for a tool that the
            provider runs by itself, so that nobody else is to answer the call.
        synthetic_id: True when the provider sent no id and one was made here.
        metadata: Other fields of the call (thought signatures, …), to be sent back.
    """

    type: Literal["tool_call"] = "tool_call"
    id: Text
    name: Text
    arguments: JSONObject = {}
    arguments_text: Text | None = None
    arguments_error: Text | None = None
    kind: Text = "function"
    synthetic_id: bool = False
    metadata: JSONObject = {}

    @model_validator(mode="before")
    @classmethod
    def _too_deep_is_text(cls, fields: object) -> object:
        # These are a model's words: they are kept in another form, and are no reason to lose its message.
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
            pass  # the field's own validator says what is wrong
        return values


class ContentPartToolResult(_Model):
    """What a tool answered.

    Attributes:
        id: The id of the call it answers.
        name: The tool; ``"unknown"`` when the source did not say and no call of that id is known.
        output: Any JSON value; text for most tools.
        is_error: The tool failed and ``output`` says why.
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
        role: Who speaks.
        content: The parts, in order.
        metadata: What belongs to the message as a whole (refusal, finish reason, provider's ids, …).
    """

    role: Role
    content: tuple[ContentPart, ...] = ()
    metadata: JSONObject = {}

    @property
    def text(self) -> str:
        """The visible text of all text parts, joined with nothing."""
        return "".join(part.text for part in self.content if isinstance(part, ContentPartText))

    @property
    def reasoning(self) -> str:
        """The text of all reasoning parts, joined with nothing."""
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
    """A whole conversation.

    Attributes:
        system_message: Instructions to the model; None for none.
        context: Background handed to the model before the conversation, as the user's words; None for none.
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
        """A new history with ``messages`` at its end; this one stays as it is."""
        return History(
            system_message=self.system_message,
            context=self.context,
            conversation=(*self.conversation, *messages),
        )

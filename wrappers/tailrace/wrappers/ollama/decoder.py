"""Decoder of streams of Ollama's native API: ``/api/chat`` and ``/api/generate``.

Each line of a response body is a JSON object. A line of ``/api/chat`` has a ``message``, and a line of ``/api/generate`` has a
``response``.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec

from tailrace.wrappers.chunks import (
    ChunkDetails,
    FinishMessage,
    FinishReason,
    ReadWrapper,
    ToolCallDelta,
    Usage,
)
from tailrace.wrappers.decoding.decoder import EventDecoder
from tailrace.wrappers.decoding.error_reports import pop_error
from tailrace.wrappers.decoding.extra_fields import json_text
from tailrace.wrappers.decoding.framing import MAX_EVENT_BYTES
from tailrace.wrappers.decoding.lenient_json import (
    as_count,
    as_index,
    as_mapping,
    as_mappings,
    as_object,
    as_text,
)
from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.messages import ContentPartFile

if TYPE_CHECKING:
    from pydantic import BaseModel

# ``load`` and ``unload`` are not listed, because only responses without text have these reasons.
_FINISH_REASONS = {
    "": FinishReason.STOP,  # servers before version 0.1.38 send only ``done``
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
}

# Fields that are read. Other fields of a line, except the counts, become metadata of the response. Other fields of a message become
# `ChunkDetails.extra`.
_LINE = frozenset(
    {"message", "response", "thinking", "tool_calls", "images", "logprobs", "done", "done_reason", "error"}
)
_MESSAGE = frozenset({"role", "content", "thinking", "tool_calls", "images"})

_MAX_CALLS = 1024  # calls that are stored to detect repetitions

_decode_line = msgspec.json.Decoder().decode

# First bytes and media types of images, which the API sends without a media type.
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
)


class OllamaWrapper(ReadWrapper[dict[str, Any]], gc=False):
    """Chunk wrapper for one line of the stream.

    Attributes:
        text: The visible text: ``message.content`` or ``response``.
        reasoning: The reasoning: ``message.thinking`` or ``thinking``.
        calls: The complete calls in the line, with arguments as JSON text.
        finish: The ``done_reason`` of the last line.
        usage: The token counts ``prompt_eval_count`` and ``eval_count``.
    """


class OllamaDecoder(EventDecoder[OllamaWrapper]):
    """Sans-IO decoder of a response body of ``/api/chat`` or ``/api/generate``.

    The decoder also reads complete (not streamed) responses. Each entry in ``tool_calls`` is a separate call. Only an entry that
    repeats the id, name and arguments of an earlier entry is dropped.

    Args:
        provider: The provider's name in errors.
        max_event_bytes: Maximum size of one line in bytes.

    Attributes:
        done: True after the last line.
    """

    __slots__ = ("_calls", "_model", "_reported_calls")

    def __init__(self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(provider=provider, max_event_bytes=max_event_bytes)
        self._model: object = None
        self._calls = 0
        self._reported_calls: set[int] = set()

    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[OllamaWrapper]:
        """Return the chunk wrapper of one line in a list; an empty list if the line has no content."""
        wrapper = wrap_chunk(fields, provider=self._provider, error_event=error_event)
        if wrapper is None:
            return []
        self.done = self.done or wrapper.finish is not None
        if wrapper.calls:
            wrapper.calls = self._number_calls(wrapper.calls)
        details = wrapper.details
        if details is not None and details.metadata:
            details.metadata = self._new_metadata(details.metadata)
            if details == ChunkDetails():
                wrapper.details = None
        return [wrapper]

    def wrap_common(self, payload: bytes) -> list[OllamaWrapper]:
        """Return the chunk wrapper of a line whose only new content is text or reasoning; an empty list for other lines."""
        model = self._model
        if model is None:
            return []
        try:
            line = _decode_line(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return []
        if type(line) is not dict:
            return []
        fields = cast("dict[str, Any]", line)
        if len(fields) != 4 or fields.get("done") is not False or fields.get("model") != model:
            return []
        if "created_at" not in fields:  # the line has another field, which may be new
            return []
        value = fields.get("message")
        if type(value) is not dict:
            text = fields.get("response")
            return [OllamaWrapper(fields, 0, None, True, text)] if type(text) is str else []
        message = cast("dict[str, Any]", value)
        text = message.get("content")
        if type(text) is not str or message.get("role") != "assistant":
            return []
        if len(message) == 2:
            return [OllamaWrapper(fields, 0, None, True, text)]
        thinking = message.get("thinking")
        if len(message) == 3 and type(thinking) is str:
            return [OllamaWrapper(fields, 0, None, True, text, thinking)]
        return []

    def wrap_error(self, error: UpstreamError) -> OllamaWrapper:
        """Return a chunk wrapper that contains only this error."""
        return OllamaWrapper({}, details=ChunkDetails(error=error))

    def _number_calls(self, calls: tuple[ToolCallDelta, ...]) -> tuple[ToolCallDelta, ...]:
        """Remove repeated calls, and give each call a unique index."""
        numbered: list[ToolCallDelta] = []
        for call in calls:
            if call.id:
                key = hash((call.id, call.name, call.arguments))
                if key in self._reported_calls:
                    continue
                if len(self._reported_calls) < _MAX_CALLS:
                    self._reported_calls.add(key)
            numbered.append(
                ToolCallDelta(self._calls, call.id, call.name, call.arguments, call.type, call.extra)
            )
            self._calls += 1
        return tuple(numbered)

    def _new_metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the new fields of the response, or None. Each line repeats the model and the time, which are returned once."""
        new_metadata = dict(metadata)
        model = new_metadata.get("model")
        if self._model is not None:
            new_metadata.pop("created", None)
            new_metadata.pop("created_at", None)
            if model == self._model:
                del new_metadata["model"]
        self._model = self._model if model is None else model
        return new_metadata or None


def wrap_chunk(
    chunk: "Mapping[str, Any] | BaseModel", *, provider: str = "", error_event: bool = False
) -> OllamaWrapper | None:
    """Return the chunk wrapper of one line, or of a complete response.

    Args:
        chunk: The line or response, as a JSON object or an object of the ``ollama`` package.
        provider: The provider's name in errors.
        error_event: True if the object is the payload of a server-sent event with the type ``error``.

    Returns:
        The chunk wrapper; None for an object without content.
    """
    fields = as_object(chunk) or {}
    error = _read_error(fields, provider, error_event=error_event)
    if error is None and not fields.keys() & {"message", "response", "done"}:
        return None
    # A line of ``/api/generate`` itself contains the fields of the message.
    message = as_mapping(fields.get("message")) or {
        **{name: fields[name] for name in ("thinking", "tool_calls", "images") if name in fields},
        "content": fields.get("response"),
    }
    wrapper = OllamaWrapper(
        fields,
        text=as_text(message.get("content")),
        reasoning=as_text(message.get("thinking")),
        calls=tuple(_read_call(call) for call in as_mappings(message.get("tool_calls"))),
        finish=_read_finish(fields),
        usage=_read_usage(fields),
    )
    role = as_text(message.get("role"))
    extra = {name: value for name, value in message.items() if name not in _MESSAGE and value is not None}
    if fields.get("logprobs"):
        extra["logprobs"] = {"content": fields["logprobs"]}  # the format of Chat Completions
    details = ChunkDetails(
        role="" if role == "assistant" else role,
        metadata=_read_metadata(fields) or None,
        extra=extra or None,
        error=error,
        parts=_read_images(message.get("images")),
    )
    if details != ChunkDetails():
        wrapper.details = details
    return wrapper


def image_type(data: bytes) -> str:
    """Detect the media type of an image from its first bytes; ``image/*`` for an unknown type."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC if data.startswith(magic)), "image/*")


def _read_error(fields: dict[str, Any], provider: str, *, error_event: bool) -> UpstreamError | None:
    if not (error_event or fields.get("error")):
        return None
    error = pop_error(dict(fields), provider, error_event=error_event)
    status = as_index(fields.get("status"))  # the status is next to ``error`` in the object
    if error is not None and status is not None and 400 <= status <= 599:
        error.status = status
    return error


def _read_call(call: Mapping[str, Any]) -> ToolCallDelta:
    function = as_mapping(call.get("function")) or {}
    arguments = function.get("arguments")
    if arguments is None:
        arguments = ""
    elif not isinstance(arguments, str):
        arguments = json_text(arguments)
    extra = {
        name: value for name, value in call.items() if name not in ("id", "function") and value is not None
    }
    other_fields = {name: value for name, value in function.items() if name not in ("name", "arguments")}
    if other_fields:
        extra["function"] = other_fields
    return ToolCallDelta(
        id=as_text(call.get("id")),
        name=as_text(function.get("name")),
        arguments=arguments,
        type="function",
        extra={"ollama": extra} if extra else None,
    )


def _read_finish(fields: Mapping[str, Any]) -> FinishMessage | None:
    if fields.get("done") is not True:
        return None
    raw = as_text(fields.get("done_reason"))
    return FinishMessage(_FINISH_REASONS.get(raw, FinishReason.UNSPECIFIED), raw)


def _read_usage(fields: Mapping[str, Any]) -> Usage | None:
    input_tokens, output_tokens = (
        as_count(fields.get("prompt_eval_count")),
        as_count(fields.get("eval_count")),
    )
    if input_tokens is None and output_tokens is None:
        return None
    counts = {name: value for name, value in fields.items() if name.endswith("_count")}
    return Usage(input_tokens or 0, output_tokens or 0, (input_tokens or 0) + (output_tokens or 0), counts)


def _read_metadata(fields: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {
        name: value
        for name, value in fields.items()
        if name not in _LINE and not name.endswith("_count") and value not in (None, "")
    }
    created = _timestamp(metadata.get("created_at"))
    if created is not None:
        metadata["created"] = created
    return metadata


def _timestamp(text: object) -> int | None:
    """Convert an ISO 8601 time to seconds since 1970; None if the time is invalid."""
    try:
        time = datetime.fromisoformat(as_text(text))
        return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return None


def _read_images(images: object) -> tuple[ContentPartFile, ...]:
    parts: list[ContentPartFile] = []
    for image in cast("list[object]", images) if isinstance(images, list) else ():
        try:
            part = ContentPartFile.model_validate({"data": image})
        except ValueError:
            continue  # invalid base64; `raw` contains the text
        parts.append(part.model_copy(update={"media_type": image_type(part.data or b"")}))
    return tuple(parts)

"""Conversion of the parts of a candidate's content to chunk wrappers.

In the Gemini API, a *candidate* is a choice of a response. Its content is a list of parts: text, thoughts, function calls, files,
executed code, and other types. A part may have a signature for the thoughts before it. In later requests, a signed part must have
the same position, and must not be merged with other parts. It is therefore a separate block, whose metadata contains the
signature and other fields of the Gemini part under the key ``"gemini"``.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from pydantic import ValidationError

from tailrace.wrappers.chunks import (
    BlockDelta,
    ChunkDetails,
    FinishMessage,
    FinishReason,
    ReadWrapper,
    ToolCallDelta,
    Usage,
)
from tailrace.wrappers.decoding.extra_fields import json_text, plain_json
from tailrace.wrappers.decoding.lenient_json import as_count, as_index, as_mapping, as_mappings, as_text
from tailrace.wrappers.gemini.partial_arguments import PartialArguments
from tailrace.wrappers.messages import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartToolResult,
)

Fields = dict[str, Any]

CODE_EXECUTION = "code_execution"
"""The name of the server tool that runs code of the model."""

_WORDS = {
    "STOP": FinishReason.STOP,
    "MAX_TOKENS": FinishReason.LENGTH,
    "RECITATION": FinishReason.RECITATION,
    "IMAGE_RECITATION": FinishReason.RECITATION,
    "SAFETY": FinishReason.CONTENT_FILTER,
    "BLOCKLIST": FinishReason.CONTENT_FILTER,
    "PROHIBITED_CONTENT": FinishReason.CONTENT_FILTER,
    "SPII": FinishReason.CONTENT_FILTER,
    "IMAGE_SAFETY": FinishReason.CONTENT_FILTER,
    "IMAGE_PROHIBITED_CONTENT": FinishReason.CONTENT_FILTER,
    "MODEL_ARMOR": FinishReason.CONTENT_FILTER,
}
# Finish reasons by number, which the API sends if a request asks for it. 6 and 9 are omitted, because they have different
# meanings in the Gemini API and in Vertex AI.
_NUMBERS = {
    1: FinishReason.STOP,
    2: FinishReason.LENGTH,
    3: FinishReason.CONTENT_FILTER,
    4: FinishReason.RECITATION,
    7: FinishReason.CONTENT_FILTER,
    8: FinishReason.CONTENT_FILTER,
}
_COUNTS = (
    "promptTokenCount",
    "toolUsePromptTokenCount",
    "candidatesTokenCount",
    "thoughtsTokenCount",
    "totalTokenCount",
)
_NO_COUNTS = [None] * len(_COUNTS)
_TEXT_FIELDS = frozenset({"text", "thought", "thoughtSignature"})
_NON_TEXT_FIELDS = frozenset(
    {"codeExecutionResult", "fileData", "functionResponse", "inlineData", "toolResponse"}
)
_UNFINISHED = (None, "", 0, "FINISH_REASON_UNSPECIFIED")  # the last value is the default of the enum


class GeminiPartWrapper(ReadWrapper[Mapping[str, Any]], gc=False):
    """Chunk wrapper for one part of a candidate, or for a candidate or chunk without parts.

    Attributes:
        text: The ``text`` of a part that is not a thought.
        reasoning: The ``text`` of a thought.
        calls: The complete call in the part. For a streamed call, the first wrapper has the name, and the last wrapper has the
            arguments.
        finish: The ``finishReason`` of the candidate, in the wrapper of its last part; or the ``blockReason`` of the prompt.
        usage: The token counts of the chunk; None if they have not changed.
    """


def read_finish(candidate: Mapping[str, Any]) -> FinishMessage | None:
    """Return the finish reason of a candidate; None if the candidate has not ended."""
    raw = candidate.get("finishReason")
    if raw in _UNFINISHED:
        return None
    number = as_index(raw)
    reason = _WORDS.get(as_text(raw)) if number is None else _NUMBERS.get(number)
    return FinishMessage(
        reason or FinishReason.UNSPECIFIED, str(raw), as_text(candidate.get("finishMessage")) or None
    )


def read_usage(usage: Mapping[str, Any]) -> Usage | None:
    """Return the token counts of a usage object; None if the object has no valid counts.

    The input tokens include results of server tools. The output tokens include thoughts.
    """
    prompt, tool_results, candidates, thoughts, total = counts = [*map(as_count, map(usage.get, _COUNTS))]
    if total is None and counts == _NO_COUNTS:
        return None
    input_tokens, output_tokens = (prompt or 0) + (tool_results or 0), (candidates or 0) + (thoughts or 0)
    return Usage(input_tokens, output_tokens, total or input_tokens + output_tokens, usage)


class CallCounter:
    """Counter of the tool calls of one response."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0

    def next_index(self) -> int:
        """Return the index of the next call, beginning with 0."""
        self._next += 1
        return self._next - 1


class _OpenCall:
    __slots__ = ("arguments", "id", "index")

    def __init__(self, index: int | None, call_id: str) -> None:
        self.index = index
        self.id = call_id
        self.arguments = PartialArguments()


class PartReader:
    """Reads the parts of one candidate.

    Args:
        choice: The index of the candidate.
        counter: Counter of the calls of the response; None if earlier calls are unknown. Calls then have no index.
        separate: True to make each text a separate block, as in a complete message. False to join the texts of a stream.
    """

    __slots__ = ("_choice", "_counter", "_open", "_opens_block", "_separate", "_server_ids")

    def __init__(self, choice: int, counter: CallCounter | None, *, separate: bool = False) -> None:
        self._choice = choice
        self._counter = counter
        self._separate = separate
        self._opens_block = separate  # True if the next text must not be joined with the previous text
        self._open: _OpenCall | None = None
        self._server_ids: dict[str, str] = {}  # ids of the latest calls of server tools, by name of the tool

    def read_plain(self, part: Fields) -> GeminiPartWrapper | None:
        """Return the chunk wrapper of a part that only continues a text or a thought; None for all other parts."""
        text = part.get("text")
        if type(text) is str and not self._opens_block:
            if len(part) == 1:
                return GeminiPartWrapper(part, self._choice, None, True, text)
            if len(part) == 2 and part.get("thought") is True:
                return GeminiPartWrapper(part, self._choice, None, True, "", text)
        return None

    def read(self, part: Fields) -> GeminiPartWrapper:
        """Return the chunk wrapper of one part."""
        return self.read_plain(part) or self._read(part)

    def end_call(self, *, complete: bool) -> tuple[ToolCallDelta, ...]:
        """End the current streamed call. Return a fragment for its arguments; an empty tuple if there is no call.

        Args:
            complete: True if the arguments are complete. False if they may be truncated.
        """
        call, self._open = self._open, None
        if call is None:
            return ()
        return (ToolCallDelta(index=call.index, arguments=call.arguments.text(complete=complete)),)

    def _read(self, part: Fields) -> GeminiPartWrapper:
        call = as_mapping(part.get("functionCall"))
        if call is not None:
            return GeminiPartWrapper(part, self._choice, calls=tuple(self._function_call(part, call)))
        for kind in ("executableCode", "toolCall"):
            inner = as_mapping(part.get(kind))
            if inner is not None:
                return GeminiPartWrapper(part, self._choice, calls=(self._server_call(part, kind, inner),))
        if part.keys() <= _TEXT_FIELDS or (as_text(part.get("text")) and not part.keys() & _NON_TEXT_FIELDS):
            return self._block(part)
        self._opens_block = self._separate
        content = self._server_result(part) or read_content(part)
        return GeminiPartWrapper(part, self._choice, ChunkDetails(parts=(content,)))

    def _block(self, part: Fields) -> GeminiPartWrapper:
        text = as_text(part.get("text"))
        thought = part.get("thought") is True
        own = own_fields(part, "text", "thought")
        if not (text or own):
            return GeminiPartWrapper(part, self._choice, None, True)
        details = None
        if own or self._opens_block:
            metadata = {"gemini": own} if own else None
            block = BlockDelta("reasoning" if thought else "text", starts_block=True, metadata=metadata)
            details = ChunkDetails(block=block)
        self._opens_block = self._separate or bool(own)
        if thought:
            return GeminiPartWrapper(part, self._choice, details, reasoning=text)
        return GeminiPartWrapper(part, self._choice, details, text=text)

    def _function_call(self, part: Fields, call: Mapping[str, Any]) -> Iterator[ToolCallDelta]:
        """Yield the fragments of a complete call, or of one part of a streamed call."""
        call_id, name = as_text(call.get("id")), as_text(call.get("name"))
        continues = call.get("willContinue") is True
        partials = as_mappings(call.get("partialArgs"))
        arguments = call.get("args")
        extra = own_fields(part, "functionCall")
        if other_fields := own_fields(call, "id", "name", "args", "partialArgs", "willContinue"):
            extra["functionCall"] = other_fields
        extra = {"gemini": extra} if extra else None
        current = self._open
        if current is None or (name and not (call_id and call_id == current.id)):
            yield from self.end_call(complete=True)
            if not (name or call_id or arguments or partials or continues):
                return  # this part only marks the end of a call that has already ended
            index = self._next_index()
            if not (continues or partials):
                yield ToolCallDelta(index, call_id, name, _arguments_text(arguments), "function", extra)
                return
            current = self._open = _OpenCall(index, call_id)
            yield ToolCallDelta(index, call_id, name, "", "function", extra)
        elif extra:
            yield ToolCallDelta(index=current.index, extra=extra)
        if isinstance(arguments, dict):
            current.arguments.update(cast("Fields", arguments))
        for partial in partials:
            current.arguments.add(partial)
        if not continues:
            yield from self.end_call(complete=True)

    def _server_call(self, part: Fields, kind: str, call: Mapping[str, Any]) -> ToolCallDelta:
        index = self._next_index()
        if kind == "toolCall":
            name = as_text(call.get("toolType"))
            arguments, other_fields = call.get("args"), own_fields(call, "toolType", "args")
        else:
            name = CODE_EXECUTION
            arguments = {key: call[key] for key in ("language", "code") if key in call}
            other_fields = own_fields(call, "language", "code")
        call_id = as_text(call.get("id")) or f"{name}_{index or 0}"
        self._server_ids[name] = call_id
        extra = {"gemini": {**own_fields(part, kind), kind: other_fields}}
        return ToolCallDelta(index, call_id, name, _arguments_text(arguments), "server", extra)

    def _server_result(self, part: Fields) -> ContentPart | None:
        result = as_mapping(part.get("codeExecutionResult"))
        if result is not None:
            kind, name = "codeExecutionResult", CODE_EXECUTION
            output, other_fields = result.get("output", ""), own_fields(result, "output")
        else:
            result = as_mapping(part.get("toolResponse"))
            if result is None:
                return None
            kind, name = "toolResponse", as_text(result.get("toolType"))
            output, other_fields = result.get("response"), own_fields(result, "toolType", "response")
        return ContentPartToolResult(
            id=as_text(result.get("id")) or self._server_ids.get(name, ""),
            name=name or "unknown",
            output=plain_json(output),
            is_error=result.get("outcome", "OUTCOME_OK") not in ("OUTCOME_OK", 1),
            metadata=plain_json({"gemini": {**own_fields(part, kind), kind: other_fields}}),
        )

    def _next_index(self) -> int | None:
        self._opens_block = self._separate
        return self._counter.next_index() if self._counter is not None else None


def read_content(part: Mapping[str, Any]) -> ContentPart:
    """Convert a part that is neither text nor a call. Parts that are neither files nor tool results become data."""
    inline_data, file_data = as_mapping(part.get("inlineData")), as_mapping(part.get("fileData"))
    result = as_mapping(part.get("functionResponse"))
    try:
        if inline_data is not None:
            return _file(part, "inlineData", inline_data, {"data": inline_data.get("data") or ""})
        if file_data is not None:
            return _file(part, "fileData", file_data, {"url": file_data.get("fileUri")})
    except ValidationError:
        pass  # invalid base64 data, or an invalid URL; the part becomes data
    if result is not None:
        return _function_result(part, result)
    return ContentPartData(data=plain_json(part), metadata={"gemini": {"part": True}})


def _file(
    part: Mapping[str, Any], kind: str, file: Mapping[str, Any], source: Mapping[str, Any]
) -> ContentPartFile:
    own = own_fields(part, kind)
    if other_fields := own_fields(file, "mimeType", "data", "fileUri"):
        own[kind] = other_fields
    return ContentPartFile.model_validate(
        {
            **source,
            "media_type": as_text(file.get("mimeType")),
            "filename": as_text(file.get("displayName")),
            "metadata": {"gemini": plain_json(own)} if own else {},
        }
    )


def _function_result(part: Mapping[str, Any], result: Mapping[str, Any]) -> ContentPartToolResult:
    """Return the result of a function.

    If ``response`` has only the member ``output`` or ``error``, its value is the output.
    """
    own = own_fields(part, "functionResponse")
    if other_fields := own_fields(result, "id", "name", "response"):
        own["functionResponse"] = other_fields
    response = result.get("response")
    fields = as_mapping(response) or {}
    is_error = fields.keys() == {"error"}
    if is_error or fields.keys() == {"output"}:
        response = next(iter(fields.values()))
    return ContentPartToolResult(
        id=as_text(result.get("id")),
        name=as_text(result.get("name")) or "unknown",
        output=plain_json(response),
        is_error=is_error,
        metadata={"gemini": plain_json(own)} if own else {},
    )


def own_fields(fields: Mapping[str, Any], *standard: str) -> Fields:
    """Return the non-empty fields of an object that are not standard fields."""
    return {
        name: value
        for name, value in fields.items()
        if name not in standard and value is not None and value != ""
    }


def _arguments_text(arguments: object) -> str:
    """Return complete arguments as JSON text; ``{}`` if they are missing."""
    if isinstance(arguments, str):
        return arguments or "{}"
    return json_text({} if arguments is None else arguments)

"""The parts of a candidate's content: what each one says, in the common vocabulary.

A part is text, a thought, a call of a function, a file, code that Google ran, …, and may carry a signature over what
the model thought before it. A signed part must be sent back in the place where it stood, unmerged, so it is a block
of its own; its fields stand under ``"gemini"`` in the metadata of the message's part.
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
from tailrace.wrappers.fields import json_text, plain_json
from tailrace.wrappers.gemini.partial_arguments import PartialArguments
from tailrace.wrappers.loose_json import as_count, as_index, as_mapping, as_mappings, as_text
from tailrace.wrappers.messages import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartToolResult,
)

Fields = dict[str, Any]

CODE_EXECUTION = "code_execution"
"""Name of the tool that runs the model's code, as the API names it among its tools."""

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
# Servers asked for numbers send the enum's; 6 and 9 mean one thing to the Gemini API and another to Vertex AI.
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
_WHOLE_PARTS = frozenset(
    {"codeExecutionResult", "fileData", "functionResponse", "inlineData", "toolResponse"}
)
_GOES_ON = (None, "", 0, "FINISH_REASON_UNSPECIFIED")  # the enum's default says nothing


class GeminiPartWrapper(ReadWrapper[Mapping[str, Any]], gc=False):
    """Over one part of a candidate; over the candidate, or the whole chunk, where that has no part.

    Attributes:
        text: ``text`` of a part that is no thought.
        reasoning: ``text`` of a thought.
        calls: The call in the part, whole; of one that is streamed first its name, in the end its arguments.
        finish: The candidate's ``finishReason``, on its last part; the reason why a prompt was blocked.
        usage: The chunk's ``usageMetadata``, where it has changed.
    """


def read_finish(candidate: Mapping[str, Any]) -> FinishMessage | None:
    """Why a candidate ended; None while it goes on."""
    raw = candidate.get("finishReason")
    if raw in _GOES_ON:
        return None
    number = as_index(raw)
    reason = _WORDS.get(as_text(raw)) if number is None else _NUMBERS.get(number)
    return FinishMessage(
        reason or FinishReason.UNSPECIFIED, str(raw), as_text(candidate.get("finishMessage")) or None
    )


def read_usage(usage: Mapping[str, Any]) -> Usage | None:
    """Token counts; None for a usage object without any, or whose counts are not numbers.

    The results of tools that Google ran are part of what the model read, thoughts of what it wrote.
    """
    prompt, of_tools, answer, thoughts, whole = counts = [*map(as_count, map(usage.get, _COUNTS))]
    if whole is None and counts == _NO_COUNTS:
        return None
    read, written = (prompt or 0) + (of_tools or 0), (answer or 0) + (thoughts or 0)
    return Usage(read, written, whole or read + written, usage)


class CallCounter:
    """Numbers for the calls of one response: every call is one of its own, whatever its id."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0

    def take(self) -> int:
        """The next number."""
        self._next += 1
        return self._next - 1


class _OpenCall:
    """A call whose arguments are still arriving."""

    __slots__ = ("arguments", "id", "index")

    def __init__(self, index: int | None, call_id: str) -> None:
        self.index = index
        self.id = call_id
        self.arguments = PartialArguments()


class PartReader:
    """Reads the parts of one candidate, in order.

    Args:
        choice: The candidate's index.
        counter: Numbers its calls; None where no numbers can be given, since what came before is not known.
        separate: Every text is a block of its own, as in a message that is read back.
    """

    __slots__ = ("_choice", "_counter", "_open", "_parted", "_separate", "_server_ids")

    def __init__(self, choice: int, counter: CallCounter | None, *, separate: bool = False) -> None:
        self._choice = choice
        self._counter = counter
        self._separate = separate
        self._parted = separate  # what comes next must not be joined with what came last
        self._open: _OpenCall | None = None
        self._server_ids: dict[str, str] = {}  # of the latest call of each tool that Google runs

    def read_plain(self, part: Fields) -> GeminiPartWrapper | None:
        """What a part says that is text or a thought and nothing else; None for any other."""
        text = part.get("text")
        if type(text) is str and not self._parted:
            if len(part) == 1:
                return GeminiPartWrapper(part, self._choice, None, True, text)
            if len(part) == 2 and part.get("thought") is True:
                return GeminiPartWrapper(part, self._choice, None, True, "", text)
        return None

    def read(self, part: Fields) -> GeminiPartWrapper:
        """What one part says."""
        return self.read_plain(part) or self._read(part)

    def end_call(self, *, whole: bool) -> tuple[ToolCallDelta, ...]:
        """The arguments of a call that was still arriving, if there is one.

        Args:
            whole: Nothing says that they were cut off.
        """
        call, self._open = self._open, None
        if call is None:
            return ()
        return (ToolCallDelta(index=call.index, arguments=call.arguments.text(whole=whole)),)

    def _read(self, part: Fields) -> GeminiPartWrapper:
        call = as_mapping(part.get("functionCall"))
        if call is not None:
            return GeminiPartWrapper(part, self._choice, calls=tuple(self._function_call(part, call)))
        for kind in ("executableCode", "toolCall"):
            inner = as_mapping(part.get(kind))
            if inner is not None:
                return GeminiPartWrapper(part, self._choice, calls=(self._server_call(part, kind, inner),))
        if part.keys() <= _TEXT_FIELDS or (as_text(part.get("text")) and not part.keys() & _WHOLE_PARTS):
            return self._block(part)
        self._parted = self._separate
        whole = self._server_result(part) or read_whole(part)
        return GeminiPartWrapper(part, self._choice, ChunkDetails(parts=(whole,)))

    def _block(self, part: Fields) -> GeminiPartWrapper:
        text = as_text(part.get("text"))
        thought = part.get("thought") is True
        own = own_fields(part, "text", "thought")
        if not (text or own):
            return GeminiPartWrapper(part, self._choice, None, True)
        details = None
        if own or self._parted:
            metadata = {"gemini": own} if own else None
            block = BlockDelta("reasoning" if thought else "text", opens=True, metadata=metadata)
            details = ChunkDetails(block=block)
        self._parted = self._separate or bool(own)
        if thought:
            return GeminiPartWrapper(part, self._choice, details, reasoning=text)
        return GeminiPartWrapper(part, self._choice, details, text=text)

    def _function_call(self, part: Fields, call: Mapping[str, Any]) -> Iterator[ToolCallDelta]:
        """A call that comes whole, or one more piece of one that is streamed."""
        call_id, name = as_text(call.get("id")), as_text(call.get("name"))
        goes_on = call.get("willContinue") is True
        partials = as_mappings(call.get("partialArgs"))
        arguments = call.get("args")
        extra = own_fields(part, "functionCall")
        if rest := own_fields(call, "id", "name", "args", "partialArgs", "willContinue"):
            extra["functionCall"] = rest
        extra = {"gemini": extra} if extra else None
        current = self._open
        if current is None or (name and not (call_id and call_id == current.id)):
            yield from self.end_call(whole=True)
            if not (name or call_id or arguments or partials or goes_on):
                return  # the end of a call that has ended
            index = self._number()
            if not (goes_on or partials):
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
        if not goes_on:
            yield from self.end_call(whole=True)

    def _server_call(self, part: Fields, kind: str, call: Mapping[str, Any]) -> ToolCallDelta:
        """A call of a tool that Google runs: nobody else is to answer it."""
        index = self._number()
        if kind == "toolCall":
            name = as_text(call.get("toolType"))
            arguments, rest = call.get("args"), own_fields(call, "toolType", "args")
        else:
            name = CODE_EXECUTION
            arguments = {key: call[key] for key in ("language", "code") if key in call}
            rest = own_fields(call, "language", "code")
        call_id = as_text(call.get("id")) or f"{name}_{index or 0}"
        self._server_ids[name] = call_id
        extra = {"gemini": {**own_fields(part, kind), kind: rest}}
        return ToolCallDelta(index, call_id, name, _arguments_text(arguments), "server", extra)

    def _server_result(self, part: Fields) -> ContentPart | None:
        """What a tool of Google's answered; None for any other part."""
        answer = as_mapping(part.get("codeExecutionResult"))
        if answer is not None:
            kind, name = "codeExecutionResult", CODE_EXECUTION
            output, rest = answer.get("output", ""), own_fields(answer, "output")
        else:
            answer = as_mapping(part.get("toolResponse"))
            if answer is None:
                return None
            kind, name = "toolResponse", as_text(answer.get("toolType"))
            output, rest = answer.get("response"), own_fields(answer, "toolType", "response")
        return ContentPartToolResult(
            id=as_text(answer.get("id")) or self._server_ids.get(name, ""),
            name=name or "unknown",
            output=plain_json(output),
            is_error=answer.get("outcome", "OUTCOME_OK") not in ("OUTCOME_OK", 1),
            metadata=plain_json({"gemini": {**own_fields(part, kind), kind: rest}}),
        )

    def _number(self) -> int | None:
        self._parted = self._separate
        return self._counter.take() if self._counter is not None else None


def read_whole(part: Mapping[str, Any]) -> ContentPart:
    """A part that is no text and no call: a file, a result, or a part of any other kind as data."""
    inline, linked = as_mapping(part.get("inlineData")), as_mapping(part.get("fileData"))
    answer = as_mapping(part.get("functionResponse"))
    try:
        if inline is not None:
            return _file(part, "inlineData", inline, {"data": inline.get("data") or ""})
        if linked is not None:
            return _file(part, "fileData", linked, {"url": linked.get("fileUri")})
    except ValidationError:
        pass  # no base64, no address
    if answer is not None:
        return _function_result(part, answer)
    return ContentPartData(data=plain_json(part), metadata={"gemini": {"part": True}})


def _file(
    part: Mapping[str, Any], kind: str, file: Mapping[str, Any], source: Mapping[str, Any]
) -> ContentPartFile:
    own = own_fields(part, kind)
    if rest := own_fields(file, "mimeType", "data", "fileUri"):
        own[kind] = rest
    return ContentPartFile.model_validate(
        {
            **source,
            "media_type": as_text(file.get("mimeType")),
            "filename": as_text(file.get("displayName")),
            "metadata": {"gemini": plain_json(own)} if own else {},
        }
    )


def _function_result(part: Mapping[str, Any], answer: Mapping[str, Any]) -> ContentPartToolResult:
    """What a function answered. ``output`` and ``error`` alone are wrappings that the API defines."""
    own = own_fields(part, "functionResponse")
    if rest := own_fields(answer, "id", "name", "response"):
        own["functionResponse"] = rest
    response = answer.get("response")
    fields = as_mapping(response) or {}
    is_error = fields.keys() == {"error"}
    if is_error or fields.keys() == {"output"}:
        response = next(iter(fields.values()))
    return ContentPartToolResult(
        id=as_text(answer.get("id")),
        name=as_text(answer.get("name")) or "unknown",
        output=plain_json(response),
        is_error=is_error,
        metadata={"gemini": plain_json(own)} if own else {},
    )


def own_fields(fields: Mapping[str, Any], *known: str) -> Fields:
    """What an object holds beyond the known fields."""
    return {
        name: value
        for name, value in fields.items()
        if name not in known and value is not None and value != ""
    }


def _arguments_text(arguments: object) -> str:
    """The text of arguments that came whole: absent ones are none, not some that were cut off."""
    if isinstance(arguments, str):
        return arguments or "{}"
    return json_text({} if arguments is None else arguments)

"""Conversion between the common history and Responses input items.

Complete conversations are sent, since the provider stores nothing: sealed reasoning and other items are returned to the
model in their original position. Instructions are the first item, a message of role ``system``, which every server
accepts; the request's parameter ``instructions`` may be used in addition.

Content that the target format cannot represent is converted to its nearest equivalent. The following list is complete;
apart from these cases, ``to_history(from_history(history)) == history``.

- ``History.context`` is sent as a user message and read back as one.
- Calls without an id, or with a duplicate or invalid one (over 64 characters), get another; calls without a result get
  one that states this, and results without a call become text (see `tailrace.wrappers.conversion.tool_ids`).
- Reasoning is returned only if this API produced it, and only with its id and encrypted content; unsealed reasoning is
  omitted, and so is reasoning at the end of a message (the API rejects it). Its status is lost.
- The ids and statuses of messages and function calls are not sent: some servers reject their own ids, and no server
  requires them.
- Server tool calls, their results, generated images and other items are returned unchanged if this API produced them.
  Those of other providers are omitted.
- Calls of built-in tools that the caller ran (computer, shell, patch, …) are also returned unchanged. The result is
  sent, and read back, in the API's form for that tool; if it is not valid in that form, call and result are sent as
  those of a function.
- A data part without an item is sent as JSON in a text part.
- A user's file is sent as an image, as audio (WAV, MP3) or as a file. Images, audio, links and uploaded files
  lose their name; a link keeps its type only if its URL indicates it; a file without a name or type gets one. A
  model's file is named in a text part: a link as ``[name](url)``, otherwise ``[file name, media type, size]``.
- A model's empty text is omitted, and so is a message without other content. Adjacent messages of the model are merged.
  A refusal is sent after all other content.
- Function call arguments that are not an object are sent as ``{"input": text}``: servers that parse arguments would
  reject the conversation.
- A tool's output that is not text is sent as JSON, unless it is a list of the API's content parts; that of a
  failed tool as ``{"error": output}``. They are read back as text. A tool's name is read back from the call with the
  same id. In a message that mixes tool results with other parts, the results become separate messages.
- Metadata is not sent, except a model's ``refusal`` and ``metadata["openai-responses"]`` of a message or part: further
  fields of the API's object, returned unchanged (``phase``, ``annotations``, ``namespace``, …).

In the other direction, system and developer messages are joined, and adjacent outputs become one message.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel

from tailrace.wrappers.assembly.folding import fold_message
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.converter import HistoryConverter
from tailrace.wrappers.conversion.history_reader import HistoryReader
from tailrace.wrappers.conversion.objects import Fields, content_entries, content_texts, own_metadata
from tailrace.wrappers.conversion.tool_names import LETTERS_DIGITS_DASHES, NameRule
from tailrace.wrappers.decoding.lenient_json import as_text
from tailrace.wrappers.messages import (
    ContentPart,
    ContentPartText,
    ContentPartToolResult,
    History,
    Message,
    Role,
    shortened,
)
from tailrace.wrappers.openai_responses.answers import result_item
from tailrace.wrappers.openai_responses.decoder import ResponsesDecoder, ResponsesEventWrapper, wrap_chunk
from tailrace.wrappers.openai_responses.files import file_part
from tailrace.wrappers.openai_responses.input_items import input_items, output_item
from tailrace.wrappers.openai_responses.items import (
    FUNCTION_CALLS,
    KEY,
    call_id,
    call_name,
    is_call,
    is_client_call,
    is_output,
    json_object,
    output_result,
)

if TYPE_CHECKING:
    from openai.types.responses import (
        Response,
        ResponseInputItemParam,
        ResponseOutputItem,
        ResponseStreamEvent,
    )

_TEXT_TYPES = ("input_text", "output_text", "text")

_CALL_ID = re.compile(r".{1,64}", re.DOTALL)
_FUNCTION_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_PART_FIELDS = ("annotations", "logprobs")  # also in the metadata of the text


class ResponsesConverter(
    HistoryConverter["ResponseInputItemParam", "ResponseStreamEvent | Mapping[str, Any]"]
):
    """Stateless converter between conversations and Responses input items."""

    name_rule: ClassVar[NameRule | None] = LETTERS_DIGITS_DASHES

    def from_history(self, history: History) -> "list[ResponseInputItemParam]":
        """Return the request's input: system message, context, then the conversation.

        Raises:
            ValueError: A tool call is in a message that is not the model's.
        """
        return cast("list[ResponseInputItemParam]", input_items(history))

    def to_history(self, messages: "Sequence[ResponseInputItemParam | ResponseOutputItem]") -> History:
        """Return the common history of a request's input items, which may include output items of the package.

        Raises:
            ValueError: A message has a role, or a content part a type, that the API does not define.
        """
        return _HistoryReader().read(messages)

    def to_message(
        self,
        response: "Iterable[ChunkWrapper[Any] | ResponseStreamEvent] | Response | Mapping[str, Any]",
    ) -> Message:
        """Return the complete message of a stream or of a complete response.

        Args:
            response: Wrappers, or the package's events, in order; a ``Response`` or its JSON object; an item of
                its output.
        """
        if isinstance(response, Mapping | BaseModel):
            fields = json_object(cast("object", response))
            if "type" in fields:
                fields = {"output": [fields]}
            return fold_message(ResponsesDecoder().wrap({**fields, "object": "response"}), think_tags=False)
        return fold_message(_wrappers(response))

    def tool_result_messages(
        self, results: Sequence[ContentPartToolResult]
    ) -> "list[ResponseInputItemParam]":
        """Return one ``function_call_output`` for each result.

        A result alone does not identify the kind of tool. Results of custom and built-in tools are converted correctly
        only in a history with their calls.
        """
        return cast("list[ResponseInputItemParam]", [output_item(result) for result in results])

    def create_chunk_wrapper(self, chunk: "ResponseStreamEvent | Mapping[str, Any]") -> ResponsesEventWrapper:
        """Wrap one event; only the first delta of an event with several is returned.

        The limitations of `wrap_chunk` apply.
        """
        wrappers = wrap_chunk(chunk)
        return wrappers[0] if wrappers else ResponsesEventWrapper(json_object(chunk))


# --- to the common format ---------------------------------------------------------------------------------------


class _HistoryReader(HistoryReader):
    entry = "item"

    def __init__(self) -> None:
        super().__init__()
        self._output: list[Fields] = []  # items of the model's current message
        self._calls: dict[str, Fields] = {}

    def read_message(self, message: object) -> None:
        fields = json_object(message)
        kind = as_text(fields.get("type")) or ("message" if "role" in fields else "")
        if not kind:
            raise ValueError("an item with neither a type nor a role")
        if is_output(kind) and self._is_caller_result(kind, fields):
            self._end_output()
            self.add_result(self._tool_result(kind, fields))
        elif kind == "message" and fields.get("role") != "assistant":
            self._read_message(fields)
        else:
            super().end()
            if kind == "message":
                fields["content"] = [_assistant_part(part) for part in content_entries(fields.get("content"))]
            if kind in FUNCTION_CALLS or is_call(kind):
                self._calls[call_id(fields)] = fields
            self._output.append({**fields, "type": kind})

    def _is_caller_result(self, kind: str, fields: Fields) -> bool:
        """Return True for a result that the caller sent, not the provider."""
        if kind in _FUNCTION_OUTPUTS or kind == "mcp_approval_response":
            return True
        result = output_result(fields)
        call = self._calls.get(result.id)
        # An output that names no call belongs to a server tool.
        return is_client_call(call) if call is not None else result.id != fields.get("id")

    def _read_message(self, fields: Fields) -> None:
        role = fields.get("role")
        entries = content_entries(fields.get("content"))
        if role in ("system", "developer"):
            self.add_system("\n\n".join(content_texts(entries, *_TEXT_TYPES)))
        elif role == "user":
            content = tuple(_content_part(part) for part in entries)
            metadata = own_metadata(KEY, fields, "type", "role", "content", "id", "status")
            self.add(Message(role=Role.USER, content=content, metadata=metadata))
        else:
            raise ValueError(f"the role {shortened(role)} is not defined by the Responses API")

    def _tool_result(self, kind: str, fields: Fields) -> ContentPartToolResult:
        if kind not in _FUNCTION_OUTPUTS:
            result = output_result(fields)
            call = self._calls.get(result.id)
            bare = result.model_copy(update={"metadata": {}, "is_error": False})
            # Omit metadata if the same item can be restored from the output.
            return bare if call is not None and result_item(call, bare) == fields else result
        output = fields.get("output")
        result_id = as_text(fields.get("call_id"))
        call = self._calls.get(result_id, {})
        name = as_text(call.get("name")) if call.get("type") in FUNCTION_CALLS else call_name(call)
        return ContentPartToolResult(
            id=result_id,
            name=name or as_text(fields.get("name")) or "unknown",
            output=output,
            metadata=own_metadata(KEY, fields, "type", "call_id", "name", "output", "id", "status"),
        )

    def end(self) -> None:
        self._end_output()
        super().end()

    def _end_output(self) -> None:
        """Add the model's message of the preceding output items."""
        if not self._output:
            return
        response = {"object": "response", "output": self._output}
        self._output = []
        message = fold_message(ResponsesDecoder().wrap(response), think_tags=False)
        metadata = dict(message.metadata)
        extra = metadata.pop("extra", {})
        others = {name: value for name, value in extra.items() if name not in _PART_FIELDS}
        if others:
            metadata["extra"] = others
        if message.content or metadata:
            self.add(message.model_copy(update={"metadata": metadata}))


def _wrappers(stream: "Iterable[ChunkWrapper[Any] | ResponseStreamEvent]") -> Iterable[ChunkWrapper[Any]]:
    decoder = ResponsesDecoder()
    for each in stream:
        if isinstance(each, ChunkWrapper):
            yield each
        else:
            yield from decoder.wrap(json_object(each))


def _content_part(part: object) -> ContentPart:
    """Read one entry of a user message's content: an object or plain text."""
    if isinstance(part, str):
        return ContentPartText(text=part)
    fields = json_object(part)
    file = file_part(fields)
    if file is not None:
        return file
    return ContentPartText(
        text=content_texts(fields, *_TEXT_TYPES)[0], metadata=own_metadata(KEY, fields, "type", "text")
    )


def _assistant_part(part: object) -> Fields:
    """Return one entry of an assistant message's content as an object."""
    if isinstance(part, str):
        return {"type": "output_text", "text": part}
    fields = json_object(part)
    return {**fields, "type": "output_text"} if fields.get("type") in ("input_text", "text") else fields

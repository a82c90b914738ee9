"""Conversion between the common history and Responses input items.

Each request of `ResponsesModel` contains the complete conversation. Encrypted reasoning and other items are sent in their
original positions. The system message becomes the first item. Its role is ``system``, because all servers accept this role. A
request may also have the parameter ``instructions``.

Content that the API cannot represent is replaced or omitted, as the following list states. `to_history` restores all other content,
except details such as the names of images.

- ``History.context`` is sent as a user message.
- Calls and results are matched and repaired (see `tailrace.wrappers.conversion.result_repair`). Call ids with
  more than 64 characters are replaced.
- Reasoning is sent only if it comes from this API, and has an id and encrypted content. Reasoning at the end of a message is
  omitted, because the API rejects it.
- The ids and statuses of messages and function calls are not sent. No server requires them, and some servers reject even ids that
  they have created themselves.
- Calls of server tools, their results, generated images and other items are sent unchanged if they come from this API, otherwise
  omitted.
- Calls of built-in tools that the application ran (computer, shell, patch, …) are also sent unchanged. If a result is not valid
  in the API's format for the tool, the call and the result are sent as a function call and its output.
- A data part is sent as JSON in a text part. If the metadata of a model's data part contains an item of this API, the item is
  sent instead.
- A user's file is sent as an image, as audio (WAV, MP3) or as a file. A file of a model that is not a generated image becomes a
  text part: ``[name](url)`` for a URL, otherwise ``[file name, media type, size]``.
- Empty texts of a model are omitted. A refusal is sent after all other content.
- Arguments of a function call that are not a JSON object are sent as ``{"input": text}``, because some servers parse them.
- Tool output that is not text is sent as JSON, unless it is a list of the API's content parts. The output of a failed tool is
  sent as ``{"error": output}``. `to_history` returns both as text.
- If a message has tool results and other parts, the results become separate messages.
- Other metadata is not sent, except ``metadata["openai-responses"]``: the fields of the API's object that the common format does
  not have (``phase``, ``annotations``, ``namespace``, …).

`ResponsesConverter.to_history` joins all system and developer messages, and merges adjacent output items into one message.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel

from tailrace.wrappers.assembly.complete_message import assemble_message
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.history_converter import HistoryConverter
from tailrace.wrappers.conversion.history_reader import HistoryReader
from tailrace.wrappers.conversion.message_objects import Fields, content_entries, content_texts, own_metadata
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
from tailrace.wrappers.openai_responses.decoder import ResponsesDecoder, ResponsesEventWrapper, wrap_chunk
from tailrace.wrappers.openai_responses.files import file_part
from tailrace.wrappers.openai_responses.input_items import input_items, output_item
from tailrace.wrappers.openai_responses.tool_items import (
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
from tailrace.wrappers.openai_responses.tool_results import result_item

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
    """Converter between conversations and Responses input items."""

    name_rule: ClassVar[NameRule | None] = LETTERS_DIGITS_DASHES

    def from_history(self, history: History) -> "list[ResponseInputItemParam]":
        """Return the member ``input`` of the request: the system message, the context, and then the conversation.

        Raises:
            ValueError: A message contains a tool call, but its role is not MODEL.
        """
        return cast("list[ResponseInputItemParam]", input_items(history))

    def to_history(self, messages: "Sequence[ResponseInputItemParam | ResponseOutputItem]") -> History:
        """Convert the input items of a request to the common history. The items may be objects of the ``openai`` package.

        Raises:
            ValueError: An item or a content part is invalid.
        """
        return _HistoryReader().read(messages)

    def to_message(
        self,
        response: "Iterable[ChunkWrapper[Any] | ResponseStreamEvent] | Response | Mapping[str, Any]",
    ) -> Message:
        """Convert a stream, or a complete response, to a message.

        Args:
            response: A stream (chunk wrappers, or events of the ``openai`` package), a complete ``Response``, or one item of its
                output (an object of the package or a JSON object).
        """
        if isinstance(response, Mapping | BaseModel):
            fields = json_object(cast("object", response))
            if "type" in fields:
                fields = {"output": [fields]}
            return assemble_message(
                ResponsesDecoder().wrap({**fields, "object": "response"}), think_tags=False
            )
        return assemble_message(_wrappers(response))

    def tool_result_messages(
        self, results: Sequence[ContentPartToolResult]
    ) -> "list[ResponseInputItemParam]":
        """Return one item for each result: the original item if the metadata contains it, otherwise a ``function_call_output``.

        The items for results of custom and built-in tools depend on the calls. Convert them with `from_history`.
        """
        return cast("list[ResponseInputItemParam]", [output_item(result) for result in results])

    def create_chunk_wrapper(self, chunk: "ResponseStreamEvent | Mapping[str, Any]") -> ResponsesEventWrapper:
        """Return the first chunk wrapper of one event, with the limitations of `wrap_chunk`."""
        wrappers = wrap_chunk(chunk)
        return wrappers[0] if wrappers else ResponsesEventWrapper(json_object(chunk))


# --- to the common format ---------------------------------------------------------------------------------------


class _HistoryReader(HistoryReader):
    entry = "item"

    def __init__(self) -> None:
        super().__init__()
        self._output: list[Fields] = []  # the output items of the current message of the model
        self._calls: dict[str, Fields] = {}

    def read_message(self, message: object) -> None:
        fields = json_object(message)
        kind = as_text(fields.get("type")) or ("message" if "role" in fields else "")
        if not kind:
            raise ValueError("an item with neither a type nor a role")
        if is_output(kind) and self._is_application_result(kind, fields):
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

    def _is_application_result(self, kind: str, fields: Fields) -> bool:
        """Return True if the application sent a result, False if the provider sent it."""
        if kind in _FUNCTION_OUTPUTS or kind == "mcp_approval_response":
            return True
        result = output_result(fields)
        call = self._calls.get(result.id)
        # Without a known call, an output without a call id comes from a server tool.
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
            # Metadata with the item is not needed if the output is enough to create the item again.
            return bare if call is not None and result_item(call, bare) == fields else result
        output = fields.get("output")
        result_id = as_text(fields.get("call_id"))
        call = self._calls.get(result_id, {})
        name = as_text(call.get("name")) if as_text(call.get("type")) in FUNCTION_CALLS else call_name(call)
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
        if not self._output:
            return
        response = {"object": "response", "output": self._output}
        self._output = []
        message = assemble_message(ResponsesDecoder().wrap(response), think_tags=False)
        metadata = dict(message.metadata)
        extra = metadata.pop("extra", {})
        other_fields = {name: value for name, value in extra.items() if name not in _PART_FIELDS}
        if other_fields:
            metadata["extra"] = other_fields
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
    if isinstance(part, str):
        return {"type": "output_text", "text": part}
    fields = json_object(part)
    return {**fields, "type": "output_text"} if fields.get("type") in ("input_text", "text") else fields

"""Conversion between the common history and messages of Ollama's ``/api/chat``.

Content that the target format cannot represent is converted to its nearest equivalent. The following list is complete;
apart from these cases, ``to_history(from_history(history)) == history``.

- ``History.context`` is sent as a user message and read back as one.
- A message has one text: texts are joined with blank lines, except blocks of one text (see
  `tailrace.wrappers.conversion.texts`), and read back as one part. Data is included as JSON, a refusal as text. Empty
  texts are omitted.
- In a model's message reasoning is first, then text, images and tool calls, regardless of their position; any model's
  reasoning is read back as one part without its signature.
- An image is sent by value and read back after the text, without a name, with the type detected from its bytes. Any
  other file, and an image's URL, is named in the text: ``[name](url)``, ``[file name, media type, size]``.
- Every call is sent as a function call. Arguments that are not an object, and a custom tool's text, are sent as
  ``{"input": text}``. The API transports arguments as objects, so the model's white space, escapes and repeated keys are
  unknown, and another provider's are lost.
- Missing and duplicate call ids are replaced, see `tailrace.wrappers.conversion.tool_ids`. The mark of a synthetic id is
  lost.
- A tool's output that is not text is sent as JSON, that of a failed tool as ``{"error": output}``; both are read back
  as text. An unknown tool name is read back from the call with the same id.
- In a message that mixes tool results with other parts, the results become separate messages.
- Server tool calls (kind ``"server"``), their results, and results without a call in a model's message are omitted.
- Metadata is not sent, except ``metadata["ollama"]`` of a message, call or result: further fields of Ollama's
  object, returned unchanged.

In the other direction, system messages are joined, adjacent tool messages are merged, and a tool message without an id
is matched with the first open call.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from tailrace.wrappers.assembly.folding import fold_message
from tailrace.wrappers.assembly.tool_calls import arguments_object
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.converter import HistoryConverter
from tailrace.wrappers.conversion.files import essence, file_note
from tailrace.wrappers.conversion.history_reader import HistoryReader
from tailrace.wrappers.conversion.objects import (
    Fields,
    check_calls,
    compact_json,
    own_fields,
    own_metadata,
    result_text,
)
from tailrace.wrappers.conversion.texts import is_same_text, join_texts
from tailrace.wrappers.conversion.tool_ids import with_matched_ids
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_object, as_text
from tailrace.wrappers.messages import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.ollama.decoder import OllamaWrapper, image_type, wrap_chunk

_NO_NAMES = ("", "unknown")  # placeholders of missing tool names


class OllamaConverter(HistoryConverter[Fields, Mapping[str, Any]]):
    """Stateless converter between conversations and ``/api/chat`` messages."""

    def from_history(self, history: History) -> list[Fields]:
        """Return the request's messages: system, context, then the conversation.

        Raises:
            ValueError: A tool call is in a message that is not the model's.
        """
        check_calls(history)
        messages: list[Fields] = []
        if history.system_message is not None:
            messages.append({"role": "system", "content": history.system_message})
        if history.context is not None:
            messages.append({"role": "user", "content": history.context})
        functions: set[str] = set()
        servers: set[str] = set()
        for message in with_matched_ids(history).conversation:
            for call in message.tool_calls:
                (servers if call.kind == "server" else functions).add(call.id)
            is_model = message.role is Role.MODEL
            results = [
                _tool_message(result)
                for result in message.tool_results
                if result.id in functions or not (is_model or result.id in servers)
            ]
            if is_model:
                messages += [_assistant_message(message), *results]
            else:
                # Chat templates require results directly after the calls; other content follows.
                messages += [*results, *_user_message(message)]
        return messages

    def to_history(self, messages: Sequence[Fields | Any]) -> History:
        """Return the common history of a request's messages, as JSON objects or objects of the ollama package.

        Raises:
            ValueError: A message has a role or content that ``/api/chat`` does not define.
        """
        return _HistoryReader(self).read(messages)

    def to_message(self, response: Iterable[ChunkWrapper[Any]] | Any) -> Message:
        """Return the complete message of a stream's wrappers or of a complete response.

        Args:
            response: Wrappers; a response of ``/api/chat`` or ``/api/generate``, or its message, as JSON object or as
                the ollama package's object.
        """
        fields = as_object(response)
        if fields is None:
            return fold_message(response)
        wrapper = self.create_chunk_wrapper(
            fields if fields.keys() & {"message", "response"} else {"message": fields}
        )
        # Each entry is a separate call regardless of its id, which a stream expresses by its index.
        wrapper.calls = tuple(
            msgspec.structs.replace(call, index=index) for index, call in enumerate(wrapper.calls)
        )
        return fold_message([wrapper])

    def tool_result_messages(self, results: Sequence[ContentPartToolResult]) -> list[Fields]:
        """Return one ``tool`` message for each result."""
        return [_tool_message(result) for result in results]

    def create_chunk_wrapper(self, chunk: Mapping[str, Any]) -> OllamaWrapper:
        """Wrap one line of a stream: its JSON object or the ollama package's object."""
        fields = as_object(chunk) or {}
        return wrap_chunk(fields) or OllamaWrapper(fields)


# --- from the common format -------------------------------------------------------------------------------------


def _assistant_message(message: Message) -> Fields:
    refusal = as_text(message.metadata.get("refusal"))
    fields: Fields = {"role": "assistant", **_content((*message.content, *_texts(refusal)), Role.MODEL)}
    if message.reasoning:
        fields["thinking"] = message.reasoning
    calls = [_tool_call(call) for call in message.tool_calls if call.kind != "server"]
    if calls:
        fields["tool_calls"] = calls
    return {**own_fields(message.metadata, "ollama"), **fields}


def _user_message(message: Message) -> list[Fields]:
    """Return the user message for a message's parts other than tool results; empty if there are none."""
    fields = _content(message.content, message.role)
    if fields == {"content": ""} and (message.role is Role.TOOL or message.tool_results):
        return []
    return [{**own_fields(message.metadata, "ollama"), "role": "user", **fields}]


def _content(parts: Iterable[ContentPart], role: Role) -> Fields:
    """Return a message's fields for its text and images."""
    texts: list[str] = []
    images: list[str] = []
    before: ContentPart | None = None
    for part in parts:
        if isinstance(part, ContentPartText):
            if role is Role.MODEL and before is not None and is_same_text(before, part):
                texts[-1] += part.text
            else:
                texts.append(part.text)
        elif isinstance(part, ContentPartData):
            texts.append(compact_json(part.data))
        elif isinstance(part, ContentPartFile) and part.data is not None and _is_image(part.media_type):
            images.append(base64.b64encode(part.data).decode("ascii"))
        elif isinstance(part, ContentPartFile):
            texts.append(file_note(part))
        before = part
    fields: Fields = {"content": join_texts(texts)}
    if images:
        fields["images"] = images
    return fields


def _is_image(media_type: str) -> bool:
    kind = essence(media_type)
    return kind.startswith("image/") and kind != "image/svg+xml"


def _tool_call(call: ContentPartToolCall) -> Fields:
    own = own_fields(call.metadata, "ollama")
    function = {
        **(as_mapping(own.get("function")) or {}),
        "name": call.name,
        "arguments": arguments_object(call),
    }
    return {**own, "id": call.id, "function": function}


def _tool_message(result: ContentPartToolResult) -> Fields:
    fields: Fields = {"role": "tool", "content": result_text(result)}
    if result.name not in _NO_NAMES:
        fields["tool_name"] = result.name
    if result.id:
        fields["tool_call_id"] = result.id
    return {**own_fields(result.metadata, "ollama"), **fields}


# --- to the common format ---------------------------------------------------------------------------------------


class _HistoryReader(HistoryReader):
    def __init__(self, converter: OllamaConverter) -> None:
        super().__init__()
        self._converter = converter

    def read_message(self, message: object) -> None:
        fields = as_object(message) or {}
        role = as_text(fields.get("role")).lower()
        content = fields.get("content")
        if not isinstance(content, str | None):
            raise ValueError(f"content of type {type(content).__name__} is not text")
        if role == "tool":
            self.add_result(self._tool_result(fields))
        elif role == "system":
            self.add_system(content or "")
        elif role == "user":
            parts = (*_texts(content or ""), *_images(fields.get("images")))
            metadata = own_metadata("ollama", fields, "role", "content", "images")
            self.add(Message(role=Role.USER, content=parts, metadata=metadata))
        elif role == "assistant":
            known = ("role", "content", "thinking", "images", "tool_calls")
            response = self._converter.to_message({name: fields[name] for name in known if name in fields})
            self.add(response.model_copy(update={"metadata": own_metadata("ollama", fields, *known)}))
        else:
            raise ValueError(f"the role {fields.get('role')!r} is not defined by /api/chat")

    def _tool_result(self, fields: Fields) -> ContentPartToolResult:
        name = as_text(fields.get("tool_name"))
        call_id = self.call_id(as_text(fields.get("tool_call_id")), name)
        return ContentPartToolResult(
            id=call_id,
            name=name or self.names.get(call_id) or "unknown",
            output=as_text(fields.get("content")),
            metadata=own_metadata("ollama", fields, "role", "content", "tool_name", "tool_call_id"),
        )


def _texts(text: str) -> tuple[ContentPartText, ...]:
    return (ContentPartText(text=text),) if text else ()


def _images(images: object) -> list[ContentPartFile]:
    parts: list[ContentPartFile] = []
    for image in cast("list[object]", images) if isinstance(images, list) else []:
        part = ContentPartFile.model_validate({"data": image})
        parts.append(part.model_copy(update={"media_type": image_type(part.data or b"")}))
    return parts

"""Conversion between the common history and messages of Ollama's ``/api/chat``.

Content that the API cannot represent is replaced or omitted, as the following list states. `to_history` restores all other content,
except details such as the names of images.

- ``History.context`` is sent as a user message.
- A message has a single text. Several texts are joined with blank lines; blocks of one text are joined without a separator (see
  `tailrace.wrappers.conversion.text_joining`). Data is appended to the text as JSON, and a refusal is appended as text.
- The order in a message of the model is reasoning, text, images, tool calls. Reasoning becomes one part without a signature.
- The bytes of an image (not SVG) are sent. Any other file, and an image with a URL, becomes a text: ``[name](url)`` for a URL,
  otherwise ``[file name, media type, size]``.
- Every call of a client tool is sent as a function call. Arguments that are not a JSON object, and the text for a custom tool,
  are sent as ``{"input": text}``. `OllamaModel` sends the original text of the arguments, but `to_history` does not restore it.
- Missing and duplicate call ids are replaced (see `tailrace.wrappers.conversion.tool_ids`).
- Tool output that is not text is sent as JSON. The output of a failed tool is sent as ``{"error": output}``. `to_history` returns
  both as text.
- If a message has tool results and other parts, the results become separate messages.
- Calls of server tools, their results, and results without a call in a model's message are omitted.
- Metadata is not sent, except ``metadata["ollama"]`` of a message, call or result: the fields of Ollama's object that the common
  format does not have.

`OllamaConverter.to_history` joins system messages, and merges adjacent tool messages. A tool message without an id belongs to the
first call of the same tool that has no result.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from tailrace.wrappers.assembly.complete_message import assemble_message
from tailrace.wrappers.assembly.tool_calls import arguments_object
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.files import bare_media_type, file_description
from tailrace.wrappers.conversion.history_converter import HistoryConverter
from tailrace.wrappers.conversion.history_reader import HistoryReader
from tailrace.wrappers.conversion.message_objects import (
    Fields,
    check_calls,
    compact_json,
    own_fields,
    own_metadata,
    result_text,
)
from tailrace.wrappers.conversion.text_joining import belong_to_one_text, join_texts
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

_NO_NAMES = ("", "unknown")  # placeholders for a missing tool name


class OllamaConverter(HistoryConverter[Fields, Mapping[str, Any]]):
    """Stateless converter between conversations and ``/api/chat`` messages."""

    def from_history(self, history: History) -> list[Fields]:
        """Return the messages of the request: the system message, the context, and then the conversation.

        Raises:
            ValueError: A message with a role other than MODEL contains a tool call.
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
                # Chat templates require tool results directly after the calls.
                messages += [*results, *_user_message(message)]
        return messages

    def to_history(self, messages: Sequence[Fields | Any]) -> History:
        """Convert the messages of a request (JSON objects or objects of the ``ollama`` package) to the common history.

        Raises:
            ValueError: ``/api/chat`` does not define the role or the content of a message, or an image is not valid
                base64.
        """
        return _HistoryReader(self).read(messages)

    def to_message(self, response: Iterable[ChunkWrapper[Any]] | Any) -> Message:
        """Convert the chunk wrappers of a stream, or a complete response, to a message.

        Args:
            response: The chunk wrappers of a stream, a response of ``/api/chat`` or ``/api/generate``, or the message in a
                response (a JSON object or an object of the ``ollama`` package).
        """
        fields = as_object(response)
        if fields is None:
            return assemble_message(response)
        wrapper = self.create_chunk_wrapper(
            fields if fields.keys() & {"message", "response"} else {"message": fields}
        )
        # Each entry is a separate call, even if two entries have the same id: different indexes prevent a merge.
        wrapper.calls = tuple(
            msgspec.structs.replace(call, index=index) for index, call in enumerate(wrapper.calls)
        )
        return assemble_message([wrapper])

    def tool_result_messages(self, results: Sequence[ContentPartToolResult]) -> list[Fields]:
        """Return one ``tool`` message for each result."""
        return [_tool_message(result) for result in results]

    def create_chunk_wrapper(self, chunk: Mapping[str, Any]) -> OllamaWrapper:
        """Wrap one line of a stream, which is a JSON object or an object of the ``ollama`` package."""
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
    """Return the user message with all parts except tool results; none if there are only tool results."""
    fields = _content(message.content, message.role)
    if fields == {"content": ""} and (message.role is Role.TOOL or message.tool_results):
        return []
    return [{**own_fields(message.metadata, "ollama"), "role": "user", **fields}]


def _content(parts: Iterable[ContentPart], role: Role) -> Fields:
    """Return the fields of a message with its text and images."""
    texts: list[str] = []
    images: list[str] = []
    before: ContentPart | None = None
    for part in parts:
        if isinstance(part, ContentPartText):
            if role is Role.MODEL and before is not None and belong_to_one_text(before, part):
                texts[-1] += part.text
            else:
                texts.append(part.text)
        elif isinstance(part, ContentPartData):
            texts.append(compact_json(part.data))
        elif isinstance(part, ContentPartFile) and part.data is not None and _is_image(part.media_type):
            images.append(base64.b64encode(part.data).decode("ascii"))
        elif isinstance(part, ContentPartFile):
            texts.append(file_description(part))
        before = part
    fields: Fields = {"content": join_texts(texts)}
    if images:
        fields["images"] = images
    return fields


def _is_image(media_type: str) -> bool:
    kind = bare_media_type(media_type)
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

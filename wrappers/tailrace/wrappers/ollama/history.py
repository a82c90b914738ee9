"""Between the common history and the messages of Ollama's ``/api/chat``.

What the one side cannot say is converted to the nearest thing that the other can. These are all the losses; in all
else ``to_history(from_history(history)) == history``.

- ``History.context`` goes out as a user message, and comes back as one.
- A message has one text: texts that stand together are joined as they are, others with a blank line between. Data
  goes out in it as JSON, a refusal as it is. Empty texts are nothing.
- In a model's message reasoning goes first, then text, then images, then tool calls, wherever they stood; all
  reasoning comes back as one part, whoever the model was, without its signature.
- An image goes out by value, and comes back behind the text, without a name, and with the type that its bytes tell.
  Any other file, and an image's address, is named in the text: ``[name](url)``, ``[file name, media type, size]``.
- Every call is a function's, whatever its kind. Its arguments have to be an object: those that are none, and a
  custom tool's text, go out as ``{"input": text}``.
- A call's id is changed where it is missing or an earlier call's, see `tailrace.wrappers.tool_ids`. That it was
  made here is forgotten.
- A tool's output that is not text goes out as its JSON, that of a failed tool as ``{"error": output}``; both come
  back as text. A name that says nothing comes back from the call with the same id.
- In a message that mixes tool results with other parts, these become a message of their own.
- Tools that a provider ran by itself are left out: calls of kind ``"server"``, their results, and results inside a
  model's message that answer no other call.
- Metadata stays here, except ``metadata["ollama"]`` of a message, call or result: further fields of Ollama's
  object, kept and sent as they are.

The other way, system messages are joined in one, tool messages that stand together become one, and a tool message
without an id answers the first call that it can.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.files import essence, file_note
from tailrace.wrappers.folding import fold_message
from tailrace.wrappers.history import HistoryConverter
from tailrace.wrappers.loose_json import as_mapping, as_text
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
from tailrace.wrappers.ollama.chunks import OllamaWrapper, image_type, wrap_chunk
from tailrace.wrappers.tool_calls import arguments_object
from tailrace.wrappers.tool_ids import with_matched_ids

Fields = dict[str, Any]

_UNKNOWN = ("", "unknown")  # names of tools that say nothing


class OllamaConverter(HistoryConverter[Fields, Mapping[str, Any]]):
    """Converts conversations to the messages of ``/api/chat`` and back. Holds no state."""

    def from_history(self, history: History) -> list[Fields]:
        """The request's messages: system, then context, then the conversation.

        Raises:
            ValueError: A tool call stands in a message that is not the model's.
        """
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
                # Templates want results directly after the calls, so what else was said follows them.
                messages += [*results, *_user_message(message)]
        return messages

    def to_history(self, messages: Sequence[Fields | Any]) -> History:
        """The common history of a request's messages (or of the ollama package's objects).

        Raises:
            ValueError: A message has a role or content that ``/api/chat`` does not define.
        """
        return _HistoryReader(self).read(messages)

    def to_message(self, response: Iterable[ChunkWrapper[Any]] | Any) -> Message:
        """The complete message of a stream's wrappers, or of a whole response.

        Args:
            response: Wrappers; a response of ``/api/chat`` or ``/api/generate``, or its message, as JSON object or as
                the ollama package's object.
        """
        fields = _fields(response)
        if fields is None:
            return fold_message(response)
        wrapper = self.create_chunk_wrapper(
            fields if fields.keys() & {"message", "response"} else {"message": fields}
        )
        # Each entry is a call of its own, whatever its id: that is what an index says in a stream.
        wrapper.calls = tuple(
            msgspec.structs.replace(call, index=index) for index, call in enumerate(wrapper.calls)
        )
        return fold_message([wrapper])

    def tool_result_messages(self, results: Sequence[ContentPartToolResult]) -> list[Fields]:
        """One ``tool`` message for each result."""
        return [_tool_message(result) for result in results]

    def create_chunk_wrapper(self, chunk: Mapping[str, Any]) -> OllamaWrapper:
        """A wrapper over one line of a stream, as JSON object or as the ollama package's object."""
        fields = _fields(chunk) or {}
        return wrap_chunk(fields) or OllamaWrapper(fields)


# --- from the common format -------------------------------------------------------------------------------------


def _assistant_message(message: Message) -> Fields:
    refusal = as_text(message.metadata.get("refusal"))
    fields: Fields = {"role": "assistant", **_content((*message.content, *_texts(refusal)))}
    if message.reasoning:
        fields["thinking"] = message.reasoning
    calls = [_tool_call(call) for call in message.tool_calls if call.kind != "server"]
    if calls:
        fields["tool_calls"] = calls
    return {**_own_fields(message.metadata), **fields}


def _user_message(message: Message) -> list[Fields]:
    """The user message for what a message holds besides tool results; none when that is nothing."""
    for call in message.tool_calls:
        raise ValueError(
            f"the tool call {call.id!r} stands in a message of role {message.role}, not the model's"
        )
    fields = _content(message.content)
    if fields == {"content": ""} and (message.role is Role.TOOL or message.tool_results):
        return []
    return [{**_own_fields(message.metadata), "role": "user", **fields}]


def _content(parts: Iterable[ContentPart]) -> Fields:
    """The fields of a message for its text and its images."""
    paragraphs: list[list[str]] = []
    images: list[str] = []
    begins = True
    for part in parts:
        if isinstance(part, ContentPartText):
            if begins:
                paragraphs.append([])
            paragraphs[-1].append(part.text)
            begins = False
            continue
        begins = True
        if isinstance(part, ContentPartData):
            paragraphs.append([json.dumps(part.data, ensure_ascii=False, separators=(",", ":"))])
        elif isinstance(part, ContentPartFile) and part.data is not None and _is_image(part.media_type):
            images.append(base64.b64encode(part.data).decode("ascii"))
        elif isinstance(part, ContentPartFile):
            paragraphs.append([file_note(part)])
    texts = ["".join(pieces) for pieces in paragraphs]
    fields: Fields = {"content": "\n\n".join(text for text in texts if text)}
    if images:
        fields["images"] = images
    return fields


def _is_image(media_type: str) -> bool:
    kind = essence(media_type)
    return kind.startswith("image/") and kind != "image/svg+xml"


def _tool_call(call: ContentPartToolCall) -> Fields:
    own = _own_fields(call.metadata)
    function = {
        **(as_mapping(own.get("function")) or {}),
        "name": call.name,
        "arguments": arguments_object(call),
    }
    return {**own, "id": call.id, "function": function}


def _tool_message(result: ContentPartToolResult) -> Fields:
    output = result.output
    if result.is_error and "error" not in (as_mapping(output) or {}):
        output = {"error": output}
    content = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    fields: Fields = {"role": "tool", "content": content}
    if result.name not in _UNKNOWN:
        fields["tool_name"] = result.name
    if result.id:
        fields["tool_call_id"] = result.id
    return {**_own_fields(result.metadata), **fields}


def _own_fields(metadata: Mapping[str, Any]) -> Fields:
    return dict(as_mapping(metadata.get("ollama")) or {})


# --- to the common format ---------------------------------------------------------------------------------------


class _HistoryReader:
    """Reads a request's messages from first to last; remembers the calls that results will refer to."""

    def __init__(self, converter: OllamaConverter) -> None:
        self._converter = converter
        self._system: list[str] = []
        self._conversation: list[Message] = []
        self._results: list[ContentPartToolResult] = []
        self._names: dict[str, str] = {}
        self._unanswered: list[ContentPartToolCall] = []

    def read(self, messages: Iterable[Any]) -> History:
        for position, message in enumerate(messages):
            try:
                self._read_message(_fields(message) or {})
            except ValueError as error:
                raise ValueError(f"message {position}: {error}") from None
        self._end_results()
        return History(
            system_message="\n\n".join(self._system) if self._system else None,
            conversation=tuple(self._conversation),
        )

    def _read_message(self, fields: Fields) -> None:
        role = as_text(fields.get("role")).lower()
        content = fields.get("content")
        if not isinstance(content, str | None):
            raise ValueError(f"content of type {type(content).__name__}, not text")
        if role == "tool":
            self._results.append(self._tool_result(fields))
            return
        self._end_results()
        if role == "system":
            self._system.append(content or "")
        elif role == "user":
            parts = (*_texts(content or ""), *_images(fields.get("images")))
            metadata = _metadata(fields, "role", "content", "images")
            self._conversation.append(Message(role=Role.USER, content=parts, metadata=metadata))
        elif role == "assistant":
            self._read_assistant(fields)
        else:
            raise ValueError(f"the role {fields.get('role')!r} is not one of /api/chat")

    def _read_assistant(self, fields: Fields) -> None:
        known = ("role", "content", "thinking", "images", "tool_calls")
        message = self._converter.to_message({name: fields[name] for name in known if name in fields})
        message = message.model_copy(update={"metadata": _metadata(fields, *known)})
        self._unanswered = list(message.tool_calls)
        self._names |= {call.id: call.name for call in message.tool_calls}
        self._conversation.append(message)

    def _tool_result(self, fields: Fields) -> ContentPartToolResult:
        name = as_text(fields.get("tool_name"))
        call_id = as_text(fields.get("tool_call_id"))
        if not call_id:
            call_id = next((call.id for call in self._unanswered if name in ("", call.name)), "")
        self._unanswered = [call for call in self._unanswered if call.id != call_id]
        return ContentPartToolResult(
            id=call_id,
            name=name or self._names.get(call_id) or "unknown",
            output=as_text(fields.get("content")),
            metadata=_metadata(fields, "role", "content", "tool_name", "tool_call_id"),
        )

    def _end_results(self) -> None:
        if self._results:
            self._conversation.append(Message(role=Role.TOOL, content=tuple(self._results)))
            self._results = []


def _texts(text: str) -> tuple[ContentPartText, ...]:
    return (ContentPartText(text=text),) if text else ()


def _images(images: object) -> list[ContentPartFile]:
    parts: list[ContentPartFile] = []
    for image in cast("list[object]", images) if isinstance(images, list) else []:
        part = ContentPartFile.model_validate({"data": image})
        parts.append(part.model_copy(update={"media_type": image_type(part.data or b"")}))
    return parts


def _metadata(fields: Mapping[str, Any], *known: str) -> Fields:
    """What an object holds beyond the known fields, under the key that sends it back."""
    rest = {name: value for name, value in fields.items() if name not in known and value is not None}
    return {"ollama": rest} if rest else {}


def _fields(value: Any) -> Fields | None:
    """A message or a response as a JSON object; None for anything else."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True, warnings=False)
    return None

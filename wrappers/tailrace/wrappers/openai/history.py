"""Between the common history and the messages of Chat Completions requests.

What the one side cannot say is converted to the nearest thing that the other can. These are all the losses; in all
else ``to_history(from_history(history)) == history``.

- ``History.context`` goes out as a user message, and comes back as one.
- Reasoning is left out: Chat Completions takes none back.
- A data part goes out as its JSON, in a text part.
- A file goes out as an image, audio (WAV, MP3) or file part. One that has no such form is named in a text part: a
  link that is not an image as ``[name](url)``, a file of the model's as ``[file name, media type, size]``. Images,
  audio and uploaded files lose their name; a file without a name or a type gets one.
- A model's text goes out before its tool calls, wherever it stood, and comes back as one part.
- A tool's output that is not text goes out as its JSON, that of a failed tool as ``{"error": output}``; both come
  back as text. The name of a tool comes back from the call with the same id.
- In a message that mixes tool results with other parts, these become a message of their own.
- Metadata stays here, except: a tool call's, which is sent (thought signatures must be), a model's ``refusal``, and
  ``metadata["openai"]`` of a message or part: further fields of OpenAI's object, kept and sent as they are.

The other way, system and developer messages are joined in one, the legacy function role and ``function_call`` become
tool calls and results, and tool messages that stand together become one.
"""

import base64
import json
import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel

from tailrace.wrappers.assembly import MessageAssembly
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.history import HistoryConverter
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
from tailrace.wrappers.openai.chunks import ChoiceDelta, ChoiceDeltaWrapper, wrap_chunk

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionMessageParam
    from openai.types.chat.chat_completion_chunk import ChoiceDelta as PackageChoiceDelta

_AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/wave": "wav",
    "audio/x-wav": "wav",
    "audio/vnd.wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
_AUDIO_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_IMAGE_TYPES = {
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
}
_FILE_ID = "openai-file:"  # a file uploaded before, which the API knows by its id alone

Fields = dict[str, Any]


class OpenAIConverter(HistoryConverter["ChatCompletionMessageParam", "ChoiceDelta | PackageChoiceDelta"]):
    """Converts conversations to the messages of Chat Completions and back. Holds no state."""

    def from_history(self, history: History) -> "list[ChatCompletionMessageParam]":
        """The request's messages: system, then context, then the conversation; content as lists of parts.

        Raises:
            ValueError: A tool call stands in a message that is not the model's.
        """
        messages: list[Fields] = []
        if history.system_message is not None:
            messages.append({"role": "system", "content": [_text_param(history.system_message)]})
        if history.context is not None:
            messages.append({"role": "user", "content": [_text_param(history.context)]})
        for message in history.conversation:
            results = [_tool_message(part) for part in message.tool_results]
            if message.role is Role.MODEL:
                # Results inside a model's message are those of tools that the provider ran.
                messages += [_assistant_message(message), *results]
            else:
                # The API wants results directly after the calls, so what else was said follows them.
                messages += [*results, *_user_message(message)]
        return cast("list[ChatCompletionMessageParam]", messages)

    def to_history(self, messages: "Sequence[ChatCompletionMessageParam | ChatCompletionMessage]") -> History:
        """The common history of a request's messages (or of the package's answers among them).

        Raises:
            ValueError: A message has a role, or a content part a type, that Chat Completions does not define.
        """
        return _HistoryReader(self).read(messages)

    def to_message(
        self,
        response: "Iterable[ChunkWrapper[Any]] | ChatCompletion | ChatCompletionMessage | Mapping[str, Any]",
    ) -> Message:
        """The complete message of a stream's wrappers, or of a whole response.

        Args:
            response: Wrappers; a ``ChatCompletion`` or its JSON object; an assistant message or its JSON
                object. Only the first choice counts.
        """
        if isinstance(response, Mapping | BaseModel):
            fields = _fields(cast("object", response))
            return _fold(wrap_chunk({"choices": [_first_choice(fields)]}))
        return _fold(response)

    def tool_result_messages(
        self, results: Sequence[ContentPartToolResult]
    ) -> "list[ChatCompletionMessageParam]":
        """One ``tool`` message for each result."""
        return cast("list[ChatCompletionMessageParam]", [_tool_message(result) for result in results])

    def create_chunk_wrapper(self, chunk: "ChoiceDelta | PackageChoiceDelta") -> ChoiceDeltaWrapper:
        """A wrapper over one delta of the openai package, or of our decoder."""
        return ChoiceDeltaWrapper(chunk)


# --- from the common format -------------------------------------------------------------------------------------


def arguments_text(call: ContentPartToolCall) -> str:
    """A call's arguments as the text that Chat Completions carries: the model's own where it was kept."""
    if call.arguments_text is not None:
        return call.arguments_text
    if call.kind == "custom" and not call.arguments:
        return ""
    return json.dumps(call.arguments, ensure_ascii=False)


def tool_call_param(call: ContentPartToolCall) -> Fields:
    """One entry of ``tool_calls``, with the provider's own fields of the call."""
    if call.kind == "custom":
        return _merge(
            call.metadata,
            {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": arguments_text(call)}},
        )
    function = {"name": call.name, "arguments": arguments_text(call)}
    return _merge(call.metadata, {"id": call.id, "type": call.kind, "function": function})


def content_param(part: ContentPartText | ContentPartData | ContentPartFile) -> Fields:
    """One entry of a user message's ``content``; the module's docstring says what becomes of each part."""
    if isinstance(part, ContentPartText):
        return _merge(_own_fields(part.metadata), _text_param(part.text))
    if isinstance(part, ContentPartData):
        return _text_param(_compact_json(part.data))
    media_type = _essence(part.media_type)
    if part.url is not None:
        if part.url.startswith(_FILE_ID):
            fields = {"type": "file", "file": {"file_id": part.url.removeprefix(_FILE_ID)}}
        elif media_type.startswith("image/") or (not media_type and _image_type(part.url)):
            fields = {"type": "image_url", "image_url": {"url": part.url}}
        else:
            return _text_param(f"[{part.filename or part.url}]({part.url})")
    else:
        data = base64.b64encode(part.data or b"").decode("ascii")
        url = f"data:{part.media_type or 'application/octet-stream'};base64,{data}"
        if media_type.startswith("image/"):
            fields = {"type": "image_url", "image_url": {"url": url}}
        elif media_type in _AUDIO_FORMATS:
            fields = {
                "type": "input_audio",
                "input_audio": {"data": data, "format": _AUDIO_FORMATS[media_type]},
            }
        else:
            # The API refuses a file without a name.
            filename = part.filename or f"file{mimetypes.guess_extension(media_type) or ''}"
            fields = {"type": "file", "file": {"file_data": url, "filename": filename}}
    return _merge(_own_fields(part.metadata), fields)


def _text_param(text: str) -> Fields:
    return {"type": "text", "text": text}


def _user_message(message: Message) -> list[Fields]:
    """The user message for what a message holds besides tool results; none when that is nothing."""
    content: list[Fields] = []
    for part in message.content:
        if isinstance(part, ContentPartToolCall):
            raise ValueError(
                f"the tool call {part.id!r} stands in a message of role {message.role}, not the model's"
            )
        if isinstance(part, ContentPartText | ContentPartData | ContentPartFile):
            content.append(content_param(part))
    if not content and (message.role is Role.TOOL or message.tool_results):
        return []
    return [_merge(_own_fields(message.metadata), {"role": "user", "content": content or ""})]


def _assistant_message(message: Message) -> Fields:
    content: list[Fields] = []
    for part in message.content:
        if isinstance(part, ContentPartFile):
            content.append(_text_param(_file_note(part)))
        elif isinstance(part, ContentPartText | ContentPartData):
            content.append(content_param(part))
    fields: Fields = {"role": "assistant"}
    if message.tool_calls:
        fields["tool_calls"] = [tool_call_param(call) for call in message.tool_calls]
    refusal = message.metadata.get("refusal")
    if refusal and isinstance(refusal, str):
        fields["refusal"] = refusal
    # Without calls or a refusal the API demands content.
    fields["content"] = content or (None if len(fields) > 1 else "")
    return _merge(_own_fields(message.metadata), fields)


def _file_note(part: ContentPartFile) -> str:
    if part.url is not None:
        return f"[{part.filename or part.url}]({part.url})"
    facts = (f"file {part.filename}".rstrip(), part.media_type, f"{len(part.data or b'')} bytes")
    return f"[{', '.join(fact for fact in facts if fact)}]"


def _tool_message(result: ContentPartToolResult) -> Fields:
    output = result.output
    if result.is_error and "error" not in _mapping(output):
        output = {"error": output}
    content = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return _merge(
        _own_fields(result.metadata), {"role": "tool", "tool_call_id": result.id, "content": content}
    )


def _own_fields(metadata: Mapping[str, Any]) -> Fields:
    return dict(_mapping(metadata.get("openai")))


def _merge(own: Mapping[str, Any], fields: Fields) -> Fields:
    """``fields`` with those of the provider's own beside them, inside objects too; ours win."""
    merged = {**own, **fields}
    for name, value in fields.items():
        if isinstance(value, dict) and isinstance(own.get(name), dict):
            merged[name] = {**own[name], **value}
    return merged


def _compact_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- to the common format ---------------------------------------------------------------------------------------


class _HistoryReader:
    """Reads a request's messages from first to last; remembers the calls that results will refer to."""

    def __init__(self, converter: OpenAIConverter) -> None:
        self._converter = converter
        self._system: list[str] = []
        self._conversation: list[Message] = []
        self._results: list[ContentPartToolResult] = []
        self._names: dict[str, str] = {}
        self._unanswered: list[ContentPartToolCall] = []

    def read(self, messages: Iterable[object]) -> History:
        for position, message in enumerate(messages):
            try:
                self._read_message(_fields(message))
            except ValueError as error:
                raise ValueError(f"message {position}: {error}") from None
        self._end_results()
        return History(
            system_message="\n\n".join(self._system) if self._system else None,
            conversation=tuple(self._conversation),
        )

    def _read_message(self, fields: Fields) -> None:
        role = fields.get("role")
        if role in ("tool", "function"):
            self._results.append(self._tool_result(fields))
            return
        self._end_results()
        if role in ("system", "developer"):
            self._system.append("\n\n".join(_texts(fields.get("content"))))
        elif role == "user":
            content = tuple(_content_part(part) for part in _entries(fields.get("content")))
            metadata = _metadata(fields, "role", "content")
            self._conversation.append(Message(role=Role.USER, content=content, metadata=metadata))
        elif role == "assistant":
            self._read_assistant(fields)
        else:
            raise ValueError(f"the role {role!r} is not one of Chat Completions")

    def _read_assistant(self, fields: Fields) -> None:
        # Only the name is for us: whatever else a provider adds is folded as it is in a stream.
        name = fields.pop("name", None)
        message = self._converter.to_message(fields)
        if name is not None:
            metadata = {**message.metadata, "openai": {"name": name}}
            message = message.model_copy(update={"metadata": metadata})
        self._unanswered = list(message.tool_calls)
        self._names |= {call.id: call.name for call in message.tool_calls}
        self._conversation.append(message)

    def _tool_result(self, fields: Fields) -> ContentPartToolResult:
        name = _text(fields.get("name"))
        call_id = _text(fields.get("tool_call_id"))
        if not call_id:
            # The legacy role has no ids, and some clients send none: it answers the first call that it can.
            call_id = next((call.id for call in self._unanswered if name in ("", call.name)), "")
        self._unanswered = [call for call in self._unanswered if call.id != call_id]
        return ContentPartToolResult(
            id=call_id,
            name=self._names.get(call_id) or name or "unknown",
            output="".join(_texts(fields.get("content"))),
            metadata=_metadata(fields, "role", "content", "tool_call_id", "name"),
        )

    def _end_results(self) -> None:
        if self._results:
            self._conversation.append(Message(role=Role.TOOL, content=tuple(self._results)))
            self._results = []


def _fold(wrappers: Iterable[ChunkWrapper[Any]]) -> Message:
    assembly = MessageAssembly()
    for wrapper in wrappers:
        if wrapper.choice == 0:
            assembly.add(wrapper)
    assembly.close()
    return assembly.message()


def _first_choice(response: Fields) -> Fields:
    """The first choice of a whole response, or of one made of a single message, in the form of a chunk's."""
    choices = response.get("choices")
    if isinstance(choices, list):
        choice = dict(_mapping(cast("list[object]", choices)[0])) if choices else {}
        message = dict(_mapping(choice.get("message")))
    else:
        choice, message = {}, response
    calls = message.get("tool_calls")
    if isinstance(calls, list | tuple):
        # Each entry is a call of its own, whatever its id: that is what an index says in a stream.
        entries = cast("Sequence[object]", calls)
        message["tool_calls"] = [{**_mapping(call), "index": index} for index, call in enumerate(entries)]
    content = message.get("content")
    if isinstance(content, list | tuple):
        parts = [
            _text_param(part) if isinstance(part, str) else dict(_mapping(part))
            for part in cast("Sequence[object]", content)
        ]
        message["content"] = parts
        refusals = [_text(part.get("refusal")) for part in parts if part.get("type") == "refusal"]
        if refusals and not message.get("refusal"):
            message["refusal"] = "".join(refusals)
    return {**choice, "index": 0, "message": message}


def _content_part(part: object) -> ContentPart:
    """One entry of a user message's content. Text may stand there without an object around it."""
    if isinstance(part, str):
        return ContentPartText(text=part)
    fields = _mapping(part)
    kind = fields.get("type")
    if kind == "text":
        return ContentPartText(text=_text(fields.get("text")), metadata=_metadata(fields, "type", "text"))
    inner = fields.get(kind) if isinstance(kind, str) else None
    if kind == "image_url":
        image = {"url": inner} if isinstance(inner, str) else _mapping(inner)
        metadata = _inner_metadata(fields, image, "url")
        url = _text(image.get("url"))
        if url.startswith("data:"):
            media_type, data = _read_data_url(url)
            return ContentPartFile(data=data, media_type=media_type, metadata=metadata)
        return ContentPartFile(url=url, media_type=_image_type(url) or "image/*", metadata=metadata)
    if kind == "input_audio":
        audio = _mapping(inner)
        return ContentPartFile.model_validate(
            {
                "data": _text(audio.get("data")),
                "media_type": _AUDIO_TYPES.get(_text(audio.get("format")), f"audio/{audio.get('format')}"),
                "metadata": _inner_metadata(fields, audio, "data", "format"),
            }
        )
    if kind == "file":
        file = _mapping(inner)
        metadata = _inner_metadata(fields, file, "file_id", "file_data", "filename")
        filename = _text(file.get("filename"))
        if file.get("file_id"):
            return ContentPartFile(url=f"{_FILE_ID}{file['file_id']}", filename=filename, metadata=metadata)
        media_type, data = _read_data_url(_text(file.get("file_data")))
        return ContentPartFile(data=data, media_type=media_type, filename=filename, metadata=metadata)
    raise ValueError(f"a content part of type {kind!r} is not one of Chat Completions")


def _read_data_url(url: str) -> tuple[str, bytes]:
    """Media type and bytes of a data URL (RFC 2397); base64 alone counts as one without a type."""
    header, comma, body = url.partition(",")
    if not comma:
        header, body = "data:;base64", url
    media_type = header.removeprefix("data:")
    if not media_type.endswith(";base64"):
        return media_type, unquote_to_bytes(body)
    part = ContentPartFile.model_validate({"data": body})
    return media_type.removesuffix(";base64"), part.data or b""


def _texts(content: object) -> list[str]:
    """The texts of content that may hold nothing but text."""
    texts: list[str] = []
    for part in _entries(content):
        fields = _text_param(part) if isinstance(part, str) else _mapping(part)
        if fields.get("type") != "text":
            raise ValueError(f"a content part of type {fields.get('type')!r} where only text may stand")
        texts.append(_text(fields.get("text")))
    return texts


def _entries(content: object) -> list[object]:
    """Content as a list of parts, whichever of its forms it has; the empty text and null are no parts."""
    if content is None or content == "":
        return []
    if isinstance(content, str | Mapping):
        return [cast("object", content)]
    if isinstance(content, Iterable):
        return list(cast("Iterable[object]", content))
    raise ValueError(f"content of type {type(content).__name__}")


def _metadata(fields: Mapping[str, Any], *known: str) -> Fields:
    """What an object holds beyond the known fields, under the key that sends it back."""
    rest = {name: value for name, value in fields.items() if name not in known and value is not None}
    return {"openai": rest} if rest else {}


def _inner_metadata(fields: Mapping[str, Any], inner: Mapping[str, Any], *known: str) -> Fields:
    kind = fields["type"]
    rest = {name: value for name, value in inner.items() if name not in known and value is not None}
    return _metadata({**fields, kind: rest or None}, "type")


def _fields(message: object) -> Fields:
    if isinstance(message, BaseModel):
        # The package builds its objects without validation, so that odd values are no reason to warn.
        return message.model_dump(mode="json", exclude_unset=True, warnings=False)
    return dict(_mapping(message))


def _image_type(url: str) -> str:
    path = url.partition("#")[0].partition("?")[0].lower()
    return next((kind for ending, kind in _IMAGE_TYPES.items() if path.endswith(ending)), "")


def _essence(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""

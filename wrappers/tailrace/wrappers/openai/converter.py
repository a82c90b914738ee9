"""Conversion between the common history and Chat Completions messages.

The models for Chat Completions use `OpenAIConverter` for requests. The server uses it to read the requests of clients.

Content that the API cannot represent is replaced or omitted, as the following list states. `to_history` restores all other content,
except details such as the names of images.

- ``History.context`` is sent as a user message.
- Sealed (encrypted or signed) reasoning is sent. Reasoning text is sent only in turns with tool calls (see
  `tailrace.wrappers.openai.reasoning`). `to_history` returns reasoning before the text.
- A data part is sent as JSON in a text part.
- A file is sent as an image, audio (WAV, MP3) or file part. A URL that is not the URL of an image, and each file of a model,
  becomes a text: ``[name](url)`` for a URL, otherwise ``[file name, media type, size]``.
- The text of a model is sent before its tool calls. Blocks of one text are sent as one part (see
  `tailrace.wrappers.conversion.text_joining`).
- Call arguments that are not a JSON object are sent as ``{"input": text}``, because some servers parse the arguments.
- Tool output that is not text is sent as JSON. The output of a failed tool is sent as ``{"error": output}``. `to_history` returns
  both as text.
- If a message has tool results and other parts, the results become separate messages.
- Calls of server tools, and their results, are omitted. So is a model's message without other content, because servers reject
  empty messages.
- Metadata is not sent, except sealed reasoning, the ``refusal`` of a model, and ``metadata["openai"]``: the fields of the API's
  object that the common format does not have.

`OpenAIConverter.to_history` joins system and developer messages, and merges adjacent tool messages. It also reads the legacy role
``function`` and the legacy ``function_call``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel

from tailrace.wrappers.assembly.complete_message import assemble_message
from tailrace.wrappers.assembly.tool_calls import arguments_json
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.files import file_description
from tailrace.wrappers.conversion.history_converter import HistoryConverter
from tailrace.wrappers.conversion.history_reader import HistoryReader
from tailrace.wrappers.conversion.message_objects import (
    Fields,
    check_calls,
    compact_json,
    content_entries,
    content_texts,
    merged_fields,
    own_fields,
    own_metadata,
    result_text,
    text_entry,
)
from tailrace.wrappers.conversion.text_joining import belong_to_one_text, join_texts
from tailrace.wrappers.conversion.tool_names import LETTERS_DIGITS_DASHES, NameRule
from tailrace.wrappers.decoding.lenient_json import as_index, as_mapping, as_mappings, as_object, as_text
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
    shortened,
)
from tailrace.wrappers.openai.decoder import ChoiceDelta, ChoiceDeltaWrapper, wrap_chunk
from tailrace.wrappers.openai.files import file_param, file_part
from tailrace.wrappers.openai.reasoning import client_calls, reasoning_fields

if TYPE_CHECKING:
    from openai.types.chat import (
        ChatCompletion,
        ChatCompletionChunk,
        ChatCompletionMessage,
        ChatCompletionMessageParam,
    )
    from openai.types.chat.chat_completion_chunk import ChoiceDelta as PackageChoiceDelta

    StreamedChunk = ChunkWrapper[Any] | ChatCompletionChunk | PackageChoiceDelta


class OpenAIConverter(HistoryConverter["ChatCompletionMessageParam", "ChoiceDelta | PackageChoiceDelta"]):
    """Stateless converter between conversations and Chat Completions messages.

    Args:
        reasoning_field: See `tailrace.wrappers.openai.client.ChatCompletionsModel`.
    """

    id_pattern: ClassVar[re.Pattern[str] | None] = re.compile(r"[^\x00-\x1f]{1,64}")
    name_rule: ClassVar[NameRule | None] = LETTERS_DIGITS_DASHES

    def __init__(self, *, reasoning_field: str | None = None) -> None:
        self._reasoning_field = reasoning_field

    def from_history(self, history: History) -> "list[ChatCompletionMessageParam]":
        """Return the messages of the request: the system message, the context, and then the conversation.

        The content of user and assistant messages is a list of parts (see `plain_content`). The content of ``tool`` messages is
        text.

        Raises:
            ValueError: A message with a role other than MODEL contains a tool call.
        """
        check_calls(history)
        messages: list[Fields] = []
        if history.system_message is not None:
            messages.append({"role": "system", "content": [text_entry(history.system_message)]})
        if history.context is not None:
            messages.append({"role": "user", "content": [text_entry(history.context)]})
        reasoning = reasoning_fields(history.conversation, self._reasoning_field)
        for message, reasoning_members in zip(history.conversation, reasoning, strict=True):
            if message.role is Role.MODEL:
                call_ids = {call.id for call in client_calls(message)}
                results = [_tool_message(part) for part in message.tool_results if part.id in call_ids]
                messages += [*_assistant_message(message, reasoning_members), *results]
            else:
                # The API requires tool results directly after the calls.
                results = [_tool_message(part) for part in message.tool_results]
                messages += [*results, *_user_message(message)]
        return cast("list[ChatCompletionMessageParam]", messages)

    def to_history(self, messages: "Sequence[ChatCompletionMessageParam | ChatCompletionMessage]") -> History:
        """Convert the messages of a request to the common history. Objects of the ``openai`` package are accepted.

        Raises:
            ValueError: Chat Completions does not define the role of a message or the type of a content part, or a file is
                invalid.
        """
        return _HistoryReader(self).read(messages)

    def to_message(
        self,
        response: "Iterable[StreamedChunk] | ChatCompletion | ChatCompletionMessage | Mapping[str, Any]",
        *,
        choice: int | None = 0,
    ) -> Message:
        """Convert the chunks of a stream, or a complete response, to a message.

        Args:
            response: A stream (chunk wrappers, or chunks or deltas of the ``openai`` package), a ``ChatCompletion`` or an
                assistant message (an object of the ``openai`` package or a JSON object).
            choice: Index of the choice to read. If it is missing, the message is empty. None to merge all choices, because some
                servers distribute one response over several choices.
        """
        if isinstance(response, Mapping | BaseModel):
            fields = as_object(cast("object", response)) or {}
            choices = _choices(fields, choice)
            message = assemble_message(wrap_chunk({"choices": choices}) if choices else ())
            return with_text_parts(message, fields.get("content"))
        return assemble_message(_wrap_all(response), choice=choice)

    def tool_result_messages(
        self, results: Sequence[ContentPartToolResult]
    ) -> "list[ChatCompletionMessageParam]":
        """Return one ``tool`` message for each result."""
        return cast("list[ChatCompletionMessageParam]", [_tool_message(result) for result in results])

    def create_chunk_wrapper(self, chunk: "ChoiceDelta | PackageChoiceDelta") -> ChoiceDeltaWrapper:
        """Wrap one delta of the ``openai`` package or of tailrace's decoder."""
        return ChoiceDeltaWrapper(chunk)


def _wrap_all(chunks: "Iterable[StreamedChunk]") -> Iterator[ChunkWrapper[Any]]:
    for chunk in chunks:
        if isinstance(chunk, ChunkWrapper):
            yield chunk
        elif hasattr(chunk, "choices"):
            yield from wrap_chunk(cast("ChatCompletionChunk", chunk))
        else:
            yield ChoiceDeltaWrapper(cast("PackageChoiceDelta", chunk))


def plain_content(message: Mapping[str, Any], *, parts: bool = True) -> Fields:
    """Replace a ``content`` that has only text with a string, because some servers do not accept a list.

    Empty texts are omitted. If a user message has several texts, its content remains a list. In other roles, several texts are
    joined with blank lines.

    Args:
        message: A message. Its ``content`` may be text, a list of parts, or null.
        parts: False to join the texts of user messages, too.
    """
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    entries = cast("list[Fields]", content)
    if any(entry.keys() != {"type", "text"} for entry in entries):
        return dict(message)
    texts = [entry["text"] for entry in entries if entry["text"]]
    if parts and message.get("role") == "user" and len(texts) > 1:
        return {**message, "content": [text_entry(each) for each in texts]}
    return {**message, "content": join_texts(texts)}


def with_text_parts(message: Message, content: object) -> Message:
    """Restore the separate text parts of an assistant message, which the message assembly has merged.

    Args:
        message: The assembled message.
        content: The member ``content`` of the assistant message.
    """
    if not isinstance(content, list | tuple) or len(cast("Sequence[object]", content)) < 2:
        return message
    runs: list[list[str]] = [[]]
    for entry in cast("Sequence[object]", content):
        fields = text_entry(entry) if isinstance(entry, str) else as_mapping(entry) or {}
        if fields.get("type") != "text":
            runs.append([])
        elif text := as_text(fields.get("text")):
            runs[-1].append(text)
    texts = iter([run for run in runs if run])
    parts: list[ContentPart] = []
    for part in message.content:
        run = next(texts, list[str]()) if isinstance(part, ContentPartText) else []
        if isinstance(part, ContentPartText) and len(run) > 1 and "".join(run) == part.text:
            # The last text gets the metadata of the part.
            parts += [ContentPartText(text=text) for text in run[:-1]]
            parts.append(part.model_copy(update={"text": run[-1]}))
        else:
            parts.append(part)
    return message.model_copy(update={"content": tuple(parts)})


# --- from the common format -------------------------------------------------------------------------------------


def arguments_text(call: ContentPartToolCall) -> str:
    """Return the arguments of a call as text: the model's original text if it was stored."""
    if call.arguments_text is not None:
        return call.arguments_text
    if call.kind == "custom" and not call.arguments:
        return ""
    return arguments_json(call)


def tool_call_param(call: ContentPartToolCall, arguments: str | None = None) -> Fields:
    """Return one entry of ``tool_calls``, with the Chat Completions fields in the metadata of the call.

    Args:
        call: The call.
        arguments: Text that replaces the arguments, but not the input of a custom tool; None for the original arguments.
    """
    own = own_fields(call.metadata, "openai")
    own.pop("legacy", None)
    if call.kind == "custom":
        return merged_fields(
            own,
            {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": arguments_text(call)}},
        )
    function = {"name": call.name, "arguments": arguments_text(call) if arguments is None else arguments}
    return merged_fields(own, {"id": call.id, "type": call.kind, "function": function})


def content_param(part: ContentPartText | ContentPartData | ContentPartFile) -> Fields:
    """Return one entry for the ``content`` of a message. The module docstring lists the conversions."""
    if isinstance(part, ContentPartText):
        return merged_fields(own_fields(part.metadata, "openai"), text_entry(part.text))
    if isinstance(part, ContentPartData):
        return text_entry(compact_json(part.data))
    fields = file_param(part)
    if fields is None:
        return text_entry(file_description(part))
    return merged_fields(own_fields(part.metadata, "openai"), fields)


def _user_message(message: Message) -> list[Fields]:
    """Return the user message with all parts except tool results; none if there are only tool results."""
    content = [
        content_param(part)
        for part in message.content
        if isinstance(part, ContentPartText | ContentPartData | ContentPartFile)
    ]
    if not content and (message.role is Role.TOOL or message.tool_results):
        return []
    return [merged_fields(own_fields(message.metadata, "openai"), {"role": "user", "content": content or ""})]


def _assistant_message(message: Message, reasoning: Mapping[str, Any]) -> list[Fields]:
    """Return the assistant message; none if the message has no content that can be sent."""
    content: list[Fields] = []
    before: ContentPart | None = None
    for part in message.content:
        if isinstance(part, ContentPartFile):
            content.append(text_entry(file_description(part)))
        elif isinstance(part, ContentPartText | ContentPartData):
            param = content_param(part)
            if before is not None and belong_to_one_text(before, part):
                param = {**content[-1], **param, "text": content[-1]["text"] + param["text"]}
                content.pop()
            content.append(param)
        before = part
    fields: Fields = {"role": "assistant"}
    calls = client_calls(message)
    if calls:
        fields["tool_calls"] = [tool_call_param(call, arguments_json(call)) for call in calls]
    refusal = message.metadata.get("refusal")
    if refusal and isinstance(refusal, str):
        fields["refusal"] = refusal
    own = own_fields(message.metadata, "openai")
    if not content and len(fields) == 1 and not own.keys() - {"name"}:
        return []
    # Without calls and a refusal, the API requires content.
    fields["content"] = content or (None if len(fields) > 1 else "")
    return [merged_fields(own, {**fields, **reasoning})]


def _tool_message(result: ContentPartToolResult) -> Fields:
    fields: Fields = {"role": "tool", "tool_call_id": result.id, "content": result_text(result)}
    return merged_fields(own_fields(result.metadata, "openai"), fields)


# --- to the common format ---------------------------------------------------------------------------------------


class _HistoryReader(HistoryReader):
    def __init__(self, converter: OpenAIConverter) -> None:
        super().__init__()
        self._converter = converter

    def read_message(self, message: object) -> None:
        fields = as_object(message) or {}
        role = fields.get("role")
        if role in ("tool", "function"):
            self.add_result(self._tool_result(fields))
        elif role in ("system", "developer"):
            self.add_system("\n\n".join(content_texts(fields.get("content"))))
        elif role == "user":
            content = tuple(_content_part(part) for part in content_entries(fields.get("content")))
            metadata = own_metadata("openai", fields, "role", "content")
            self.add(Message(role=Role.USER, content=content, metadata=metadata))
        elif role == "assistant":
            self._read_assistant(fields)
        else:
            raise ValueError(f"the role {shortened(role)} is not defined by Chat Completions")

    def _read_assistant(self, fields: Fields) -> None:
        # The other fields are read like a chunk of a stream.
        name = fields.pop("name", None)
        message = self._converter.to_message(fields)
        if name is not None:
            metadata = {**message.metadata, "openai": {"name": name}}
            message = message.model_copy(update={"metadata": metadata})
        self.add(message)

    def _tool_result(self, fields: Fields) -> ContentPartToolResult:
        name = as_text(fields.get("name"))
        call_id = self.call_id(as_text(fields.get("tool_call_id")), name)
        return ContentPartToolResult(
            id=call_id,
            name=self.names.get(call_id) or name or "unknown",
            output=join_texts(content_texts(fields.get("content"))),
            metadata=own_metadata("openai", fields, "role", "content", "tool_call_id", "name"),
        )


def _choices(response: Fields, index: int | None) -> list[Fields]:
    """Return the selected choices of a complete response as choices of a chunk. A single message counts as a choice."""
    choices = response.get("choices")
    if not isinstance(choices, list):
        return [{"index": 0, "message": _message_fields(response)}]
    selected: list[Fields] = []
    for position, entry in enumerate(select_choice(as_mappings(cast("object", choices)), index)):
        message = _message_fields(as_mapping(entry.get("message")) or {}, position << 32)
        # To merge all choices, each is read as a delta: only the first of several complete messages would be used.
        selected.append(
            {**entry, "index": 0, "message": None, "delta" if index is None else "message": message}
        )
    return selected


def select_choice(choices: Sequence[Mapping[str, Any]], index: int | None) -> Sequence[Mapping[str, Any]]:
    """Select a choice by its index. If a choice has no index, its position is its index.

    For None, select all choices. For 0, select the first choice if no choice has the index 0.
    """
    if index is None:
        return choices
    matching = [
        choice for position, choice in enumerate(choices) if as_index(choice.get("index", position)) == index
    ]
    return (matching or (choices if index == 0 else []))[:1]


def _message_fields(source: Mapping[str, Any], first_index: int = 0) -> Fields:
    message = dict(source)
    calls = message.get("tool_calls")
    if isinstance(calls, list | tuple):
        # Each entry is a separate call, even if two entries have the same id: different indexes prevent a merge.
        entries = cast("Sequence[object]", calls)
        message["tool_calls"] = [
            {**(as_mapping(call) or {}), "index": index} for index, call in enumerate(entries, first_index)
        ]
    content = message.get("content")
    if isinstance(content, list | tuple):
        parts = [
            text_entry(part) if isinstance(part, str) else dict(as_mapping(part) or {})
            for part in cast("Sequence[object]", content)
        ]
        message["content"] = parts
        refusals = [as_text(part.get("refusal")) for part in parts if part.get("type") == "refusal"]
        if refusals and not message.get("refusal"):
            message["refusal"] = "".join(refusals)
    return message


def _content_part(part: object) -> ContentPart:
    """Convert one item of the content of a user message (an object or text) to a part."""
    if isinstance(part, str):
        return ContentPartText(text=part)
    fields = as_mapping(part) or {}
    kind = fields.get("type")
    if kind == "text":
        return ContentPartText(
            text=as_text(fields.get("text")), metadata=own_metadata("openai", fields, "type", "text")
        )
    file = file_part(fields)
    if file is not None:
        return file
    raise ValueError(f"a content part of type {shortened(kind)} is not defined by Chat Completions")

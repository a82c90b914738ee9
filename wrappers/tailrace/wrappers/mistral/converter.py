"""Conversion between the common history and Mistral's Chat Completions messages.

The messages are those of OpenAI (see `tailrace.wrappers.openai.converter`), with four differences: Mistral has its own content
parts, requests contain earlier thinking, tool results have tool names, and the order of messages is stricter.

Content that the API cannot represent is replaced or omitted, as the following list states. `to_history` restores all other content,
except details such as the names of images.

- ``History.context`` is sent as a user message.
- Reasoning of Mistral is sent as a ``thinking`` part in the same position. Other reasoning is omitted.
- A data part is sent as JSON in a text part. If the data is a content part of Mistral, the content part itself is sent.
- A user's file is sent as an image, a document or audio, with its bytes or its URL. A file of another type, an empty file, and
  each file of a model become a text part: ``[name](url)`` for a URL, otherwise ``[file name, media type, size]``.
- Empty text and empty thinking of a model are omitted.
- The text and thinking of a model are sent before its tool calls.
- Invalid tool names are replaced (see `tailrace.wrappers.conversion.tool_names`). Arguments that are not a JSON object, and the
  input of a custom tool, are sent as ``{"input": text}``.
- Calls of server tools and their results are omitted. If a model's message contains the result of another tool, the result is
  sent after the message.
- Tool output that is not text is sent as JSON. The output of a failed tool is sent as ``{"error": output}``. `to_history` returns
  both as text.
- If a message has tool results and other parts, the results become separate messages. Between tool results and the next user
  message, Mistral requires a message of the model: the text `MistralConverter.bridge` is inserted.
- The ``refusal`` of a model is sent as text.
- Other metadata is not sent, except ``metadata["mistral"]`` of a message or part: the fields of Mistral's message or content part
  that the common format does not have.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel

from tailrace.wrappers.assembly.complete_message import assemble_message
from tailrace.wrappers.assembly.tool_calls import arguments_json
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.files import file_description
from tailrace.wrappers.conversion.message_objects import (
    Fields,
    check_calls,
    compact_json,
    own_fields,
    own_metadata,
    text_entry,
)
from tailrace.wrappers.conversion.tool_names import LETTERS_DIGITS_DASHES
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_mappings, as_object, as_text
from tailrace.wrappers.messages import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.mistral.content_parts import KEY, file_param, read_part
from tailrace.wrappers.mistral.decoder import MistralDecoder
from tailrace.wrappers.openai.converter import OpenAIConverter, select_choice, with_text_parts

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionMessageParam

    from tailrace.wrappers.openai.converter import StreamedChunk


class MistralConverter(OpenAIConverter):
    """Stateless converter between conversations and Mistral's messages.

    Attributes:
        bridge: Text of the message that is inserted between tool results and the next user message.
    """

    id_pattern: ClassVar[re.Pattern[str] | None] = re.compile(r"[a-zA-Z0-9]{9}")
    bridge: ClassVar[str] = "(The tools have answered.)"

    def from_history(self, history: History) -> "list[ChatCompletionMessageParam]":
        """Return the messages of the request: the system message, the context, and then the conversation.

        Content is a list of parts. ``tool`` messages and inserted messages have text instead. Content without parts is the empty
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
        for message in history.conversation:
            if message.role is Role.MODEL:
                messages += self._model_messages(message)
            else:
                messages += [self._tool_message(result) for result in message.tool_results]
                messages += _user_messages(message)
        ordered: list[Fields] = []
        for message in messages:
            if message["role"] == "user" and ordered and ordered[-1]["role"] == "tool":
                ordered.append({"role": "assistant", "content": self.bridge})
            ordered.append(message)
        return cast("list[ChatCompletionMessageParam]", ordered)

    def to_history(self, messages: "Sequence[ChatCompletionMessageParam | ChatCompletionMessage]") -> History:
        """Convert the messages of a request to the common history.

        Raises:
            ValueError: A message has an unknown role or invalid content.
        """
        fields = [as_object(message) or {} for message in messages]
        # User messages can have content parts that OpenAI does not define. The OpenAI converter converts everything else.
        contents = iter(
            [
                _read_content(message, position)
                for position, message in enumerate(fields)
                if message.get("role") == "user"
            ]
        )
        bare = [
            {**message, "content": ""} if message.get("role") == "user" else message for message in fields
        ]
        history = super().to_history(cast("Sequence[ChatCompletionMessageParam]", bare))
        conversation = tuple(
            _with_own_metadata(
                message, content=next(contents) if message.role is Role.USER else message.content
            )
            for message in history.conversation
        )
        return history.model_copy(update={"conversation": conversation})

    def to_message(
        self,
        response: "Iterable[StreamedChunk] | ChatCompletion | ChatCompletionMessage | Mapping[str, Any]",
        *,
        choice: int | None = 0,
    ) -> Message:
        """Convert the chunk wrappers of a stream, or a complete response, to a message.

        Args:
            response: A stream (chunk wrappers, or chunks of the ``openai`` package), a complete response or an assistant message
                (an object of the ``openai`` package or a JSON object).
            choice: See `OpenAIConverter.to_message`.
        """
        if not isinstance(response, Mapping | BaseModel):
            return super().to_message(response, choice=choice)
        fields = as_object(cast("object", response)) or {}
        own: Fields = {}
        if "choices" in fields:
            choices: Sequence[Mapping[str, Any]] = select_choice(as_mappings(fields["choices"] or []), choice)
        else:
            choices = [{"message": fields}]
            own = own_metadata(KEY, fields, "role", "content", "tool_calls")
        wrappers: list[ChunkWrapper[Any]] = []
        for position, each in enumerate(choices):
            content = as_mapping(each.get("message")) or {}
            # Each entry is a separate call, even if two entries have the same id: different indexes prevent a merge.
            calls = [
                {**call, "index": index}
                for index, call in enumerate(as_mappings(content.get("tool_calls") or []), position << 32)
            ]
            delta = {"content": content.get("content"), "tool_calls": calls}
            wrappers += MistralDecoder().wrap({"choices": [{**each, "index": 0, "message": delta}]})
        message = with_text_parts(assemble_message(wrappers), fields.get("content"))
        return message.model_copy(update={"metadata": {**message.metadata, **own}}) if own else message

    def tool_result_messages(
        self, results: Sequence[ContentPartToolResult]
    ) -> "list[ChatCompletionMessageParam]":
        """Return one ``tool`` message for each result."""
        return cast("list[ChatCompletionMessageParam]", [self._tool_message(result) for result in results])

    def _tool_message(self, result: ContentPartToolResult) -> Fields:
        result_only = result.model_copy(update={"metadata": {}})
        (message,) = cast("list[Fields]", super().tool_result_messages([result_only]))
        name = (
            {"name": LETTERS_DIGITS_DASHES.valid_name(result.name)}
            if result.name not in ("", "unknown")
            else {}
        )
        return {**own_fields(result.metadata, KEY), **message, **name}

    def _model_messages(self, message: Message) -> list[Fields]:
        """Return a message of the model, if it has content that can be sent, and then the tool results in it."""
        content: list[Fields] = []
        calls: list[Fields] = []
        results: list[Fields] = []
        server_call_ids = {call.id for call in message.tool_calls if call.kind == "server"}
        for part in message.content:
            if isinstance(part, ContentPartToolCall):
                calls += [_call(part)] if part.kind != "server" else []
            elif isinstance(part, ContentPartToolResult):
                results += [self._tool_message(part)] if part.id not in server_call_ids else []
            else:
                content += _model_content(part)
        refusal = as_text(message.metadata.get("refusal"))
        if refusal:
            content.append(text_entry(refusal))
        if not (content or calls):
            return results
        fields = {**own_fields(message.metadata, KEY), "role": "assistant", "content": content or ""}
        return [{**fields, "tool_calls": calls} if calls else fields, *results]


# --- from the common format -------------------------------------------------------------------------------------


def _user_messages(message: Message) -> list[Fields]:
    """Return the user message with all parts except tool results; none if there are only tool results."""
    content: list[Fields] = []
    for part in message.content:
        if isinstance(part, ContentPartText):
            content.append({**own_fields(part.metadata, KEY), **text_entry(part.text)})
        elif isinstance(part, ContentPartFile):
            content.append(file_param(part) or text_entry(file_description(part)))
        elif isinstance(part, ContentPartData):
            content.append(_data(part))
    if not content and (message.role is Role.TOOL or message.tool_results):
        return []
    return [{**own_fields(message.metadata, KEY), "role": "user", "content": content or ""}]


def _model_content(
    part: ContentPartText | ContentPartReasoning | ContentPartData | ContentPartFile,
) -> list[Fields]:
    """Return the content parts for text, thinking, data or a file of a model; none if the part is not sent."""
    own = own_fields(part.metadata, KEY)
    if isinstance(part, ContentPartReasoning):
        return [{**own, "type": "thinking", "thinking": [text_entry(part.text)]}] if own and part.text else []
    if isinstance(part, ContentPartData):
        return [_data(part)]
    if isinstance(part, ContentPartFile):
        return [text_entry(file_description(part))]
    references = [dict(reference) for reference in as_mappings(own.pop("references", None) or [])]
    return [{**own, **text_entry(part.text)}, *references] if part.text else references


def _data(part: ContentPartData) -> Fields:
    if KEY in part.metadata and as_mapping(part.data) is not None:
        return part.data
    return text_entry(compact_json(part.data))


def _call(call: ContentPartToolCall) -> Fields:
    if call.kind == "custom" and not call.arguments and call.arguments_text is None:
        arguments = '{"input": ""}'
    else:
        arguments = arguments_json(call)
    function = {"name": LETTERS_DIGITS_DASHES.valid_name(call.name), "arguments": arguments}
    return {**own_fields(call.metadata, KEY), "id": call.id, "type": "function", "function": function}


# --- to the common format ---------------------------------------------------------------------------------------


def _read_content(message: Mapping[str, Any], position: int) -> tuple[ContentPart, ...]:
    """Convert the content of a user message (text or a list of parts) to parts.

    Raises:
        ValueError: The content is neither text nor a list, or a part is neither text nor an object with a type.
    """
    content = message.get("content")
    if isinstance(content, str):
        return (ContentPartText(text=content),) if content else ()
    if content is not None and not isinstance(content, list | tuple):
        raise ValueError(
            f"message {position}: content of type {type(content).__name__} is neither text nor a list"
        )
    parts: list[ContentPart] = []
    for part in cast("Sequence[object]", content or ()):
        fields = text_entry(part) if isinstance(part, str) else as_mapping(part)
        if fields is None or not as_text(fields.get("type")):
            raise ValueError(f"message {position}: a content part is neither text nor an object with a type")
        parts.append(read_part(fields))
    return tuple(parts)


def _with_own_metadata(message: Message, content: Sequence[ContentPart]) -> Message:
    """Return a message with new content. Its ``"openai"`` metadata, and that of its tool results, becomes ``"mistral"`` metadata.

    Existing ``"mistral"`` metadata remains. All other metadata of the message and of its tool results is dropped.
    """
    parts = tuple(
        part.model_copy(update={"metadata": _own_metadata(part.metadata)})
        if isinstance(part, ContentPartToolResult)
        else part
        for part in content
    )
    return Message(role=message.role, content=parts, metadata=_own_metadata(message.metadata))


def _own_metadata(metadata: Mapping[str, Any]) -> Fields:
    own = {**own_fields(metadata, "openai"), **own_fields(metadata, KEY)}
    return {KEY: own} if own else {}

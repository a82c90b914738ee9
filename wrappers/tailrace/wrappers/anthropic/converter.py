"""Conversion between the common history and messages of the Anthropic Messages API.

Messages of the roles ``user`` and ``assistant`` alternate, and the first message has the role ``user``. The system prompt is a
separate member of the request.

Content that the API cannot represent is replaced or omitted, as the following list states. `to_history` restores all other content,
except details such as the names of images.

- ``History.system_message`` is sent separately (see `AnthropicConverter.system_prompt`), and is an argument of `to_history`.
- ``History.context`` is sent as the first text of the user. If the first message is the model's, a user message with the text
  `AnthropicConverter.opening_text` is inserted before it.
- Adjacent messages with the same role are merged. Tool results come first in the merged message.
- Blank text is omitted, because the API rejects it. White space at the end of the conversation is
  removed if the last message is the model's.
- Text after a call of a client tool is sent before the call, because the API requires that a message ends with such calls.
- Reasoning is sent only if this API produced and signed it. Reasoning at the end of a message is omitted, because the API rejects
  it.
- Calls of server tools and their results are sent only if this API produced them. A result without its call is omitted. A call
  without its result is omitted if a message of the user follows that does not begin with tool results.
- If a model's message contains the result of a client tool, the result is sent in the next user message.
- A data part is sent as JSON in a text block. If the data is a content block of this API, the block itself is sent.
- A user's file is sent as an image (JPEG, PNG, GIF, WebP) or a document (PDF, plain text). Any other file, and each file of a
  model, becomes a text block: ``[name](url)`` for a URL, otherwise ``[file name, media type, size]``.
- Arguments that are not a JSON object are sent as ``{"input": arguments}``. The ``anthropic`` package encodes other arguments, so
  that the model's original text is not preserved.
- Tool output that is text is sent as text. A list of content blocks is sent as blocks if at least one block is not text. Any
  other output is sent as JSON, and `to_history` returns the JSON as text.
- The ``refusal`` of a model is sent as text.
- Metadata is not sent, except ``metadata["anthropic"]`` of a part: the fields of the API's content block that the common format
  does not have.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel

from tailrace.wrappers.anthropic.decoder import wrap_chunk
from tailrace.wrappers.anthropic.events import KEY, AnthropicEventWrapper, MessageEvents
from tailrace.wrappers.anthropic.files import file_block, file_note, file_part
from tailrace.wrappers.assembly.complete_message import assemble_message
from tailrace.wrappers.assembly.tool_calls import verbatim_arguments
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.history_converter import HistoryConverter
from tailrace.wrappers.conversion.history_reader import HistoryReader
from tailrace.wrappers.conversion.message_objects import (
    Fields,
    check_calls,
    compact_json,
    own_fields,
    own_metadata,
    text_entry,
)
from tailrace.wrappers.conversion.text_joining import join_texts
from tailrace.wrappers.conversion.tool_names import LETTERS_DIGITS_DASHES, NameRule
from tailrace.wrappers.decoding.extra_fields import plain_json
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_object, as_text
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

if TYPE_CHECKING:
    from anthropic.types import Message as PackageMessage
    from anthropic.types import MessageParam, RawMessageStreamEvent

_THINKING = ("thinking", "redacted_thinking")
# Types of content blocks other than text in tool results.
_RESULT_BLOCKS = frozenset({"browser_state", "document", "image", "search_result", "tool_reference"})


class AnthropicConverter(HistoryConverter["MessageParam", "RawMessageStreamEvent | Mapping[str, Any]"]):
    """Stateless converter between conversations and messages of the Messages API.

    Attributes:
        opening_text: Text of the user message that is inserted before a first message of the model.
    """

    id_pattern: ClassVar[re.Pattern[str] | None] = re.compile(r"[a-zA-Z0-9_-]+")
    name_rule: ClassVar[NameRule | None] = LETTERS_DIGITS_DASHES
    opening_text: ClassVar[str] = "(The assistant speaks first.)"

    def __init_subclass__(cls, **options: Any) -> None:
        """Accept ``opening``, the deprecated name of ``opening_text``; to be removed in 0.3."""
        super().__init_subclass__(**options)
        cls.opening_text = vars(cls).get("opening", cls.opening_text)

    def system_prompt(self, history: History) -> str | None:
        """Return the member ``system`` of the request; None if the system message is missing or blank."""
        system = history.system_message
        return system if system is not None and system.strip() else None

    def from_history(self, history: History) -> "list[MessageParam]":
        """Return the messages of the request: the context, and then the conversation.

        Raises:
            ValueError: A message with a role other than MODEL contains a tool call.
        """
        check_calls(history)
        turns = _Turns()
        calls = [call for message in history.conversation for call in message.tool_calls]
        server_call_ids = {call.id for call in calls if call.kind == "server"}
        server_call_ids -= {call.id for call in calls if call.kind != "server"}
        if history.context is not None:
            turns.add("user", [text_entry(history.context)])
        for message in history.conversation:
            if message.role is Role.MODEL:
                turns.add("assistant", _assistant_blocks(message))
                turns.add("user", _client_tool_results(message))
            else:
                turns.add("user", _user_blocks(message, server_call_ids))
        return cast("list[MessageParam]", turns.messages(self.opening_text))

    def to_history(
        self,
        messages: "Sequence[MessageParam | PackageMessage]",
        *,
        system: "str | Sequence[Mapping[str, Any]] | None" = None,
    ) -> History:
        """Convert the messages of a request to the common history.

        Args:
            messages: The messages, oldest first. Objects of the ``anthropic`` package are accepted. The text of messages of the
                role ``system`` is appended to the system message.
            system: The member ``system`` of the request, as text or as a list of text blocks; None for none.

        Raises:
            ValueError: The API does not define the role of a message, or the content of a message or of ``system`` is invalid.
        """
        reader = _HistoryReader()
        if system is not None:
            reader.add_system(_joined_text(_entries(system)))
        return reader.read(messages)

    def to_message(
        self, response: "Iterable[ChunkWrapper[Any]] | PackageMessage | Mapping[str, Any]"
    ) -> Message:
        """Convert the chunk wrappers of a stream, or a complete response, to a message.

        Args:
            response: The chunk wrappers of a stream, a ``Message`` of the ``anthropic`` package or its JSON object, or an
                assistant message of a request.
        """
        if isinstance(response, Mapping | BaseModel):
            return assemble_message(MessageEvents().wrap(_complete_message(cast("object", response))))
        return assemble_message(response)

    def tool_result_messages(self, results: Sequence[ContentPartToolResult]) -> "list[MessageParam]":
        """Return one user message that has all results; none if there are no results."""
        if not results:
            return []
        content = [_result_block(result) for result in results]
        return cast("list[MessageParam]", [{"role": "user", "content": content}])

    def create_chunk_wrapper(
        self, chunk: "RawMessageStreamEvent | Mapping[str, Any]"
    ) -> AnthropicEventWrapper:
        """Wrap one event of a stream of the ``anthropic`` package. An event without content becomes an empty wrapper.

        The wrapper contains only the first delta of the event, with the limitations of `wrap_chunk`.
        """
        wrappers = wrap_chunk(chunk)
        return wrappers[0] if wrappers else AnthropicEventWrapper(as_object(chunk) or {})


# --- from the common format -------------------------------------------------------------------------------------


class _Turns:
    """Builder of the messages of a request. Adjacent messages with the same role are merged."""

    def __init__(self) -> None:
        self._messages: list[tuple[str, list[Fields]]] = []

    def add(self, role: str, blocks: Iterable[Fields]) -> None:
        for block in blocks:
            if block["type"] == "text" and not as_text(block.get("text")).strip():
                continue
            if not self._messages or self._messages[-1][0] != role:
                self._messages.append((role, []))
            self._insert(self._messages[-1][1], block)

    def _insert(self, content: list[Fields], block: Fields) -> None:
        """Insert a block at the position that the API requires.

        Results of client tools are inserted before all other blocks, and text before calls of client tools.
        """
        position = len(content)
        if block["type"] == "text":
            while position and content[position - 1]["type"] == "tool_use":
                position -= 1
        elif block["type"] == "tool_result":
            while position and content[position - 1]["type"] != "tool_result":
                position -= 1
        content.insert(position, block)

    def messages(self, opening: str) -> list[Fields]:
        self._drop_unmatched()
        turns = _Turns()
        for role, content in self._messages:
            end = len(content)
            while role == "assistant" and end and content[end - 1]["type"] in _THINKING:
                end -= 1
            turns.add(role, content[:end])
        messages: list[Fields] = [{"role": role, "content": content} for role, content in turns._messages]
        if messages and messages[0]["role"] == "assistant":
            messages.insert(0, {"role": "user", "content": [text_entry(opening)]})
        if messages and messages[-1]["role"] == "assistant":
            last = messages[-1]["content"][-1]
            if last["type"] == "text":
                messages[-1]["content"][-1] = {**last, "text": last["text"].rstrip()}
        return messages

    def _drop_unmatched(self) -> None:
        """Remove server tool calls without a result, and results without a call, which the API rejects.

        A call without a result is valid at the end of the conversation (for example in a paused response), and if the next message
        begins with tool results.
        """
        call_ids: set[object] = set()
        completed_ids: set[object] = set()
        for _, content in self._messages:
            for block in content:
                if _is_server_call(block):
                    call_ids.add(block["id"])
                elif _is_server_result(block) and block["tool_use_id"] in call_ids:
                    completed_ids.add(block["tool_use_id"])
        call_ids.clear()
        for position, (role, content) in enumerate(self._messages):
            if role != "assistant":
                continue
            _, following = self._messages[position + 1] if position + 1 < len(self._messages) else ("", [])
            pending = not following or following[0]["type"] == "tool_result"
            matched: list[Fields] = []
            for block in content:
                if _is_server_call(block):
                    if not (pending or block["id"] in completed_ids):
                        continue
                    call_ids.add(block["id"])
                elif _is_server_result(block) and block["tool_use_id"] not in call_ids:
                    continue
                matched.append(block)
            content[:] = matched


def _is_server_call(block: Fields) -> bool:
    return block["type"] != "tool_use" and block["type"].endswith("tool_use") and "id" in block


def _is_server_result(block: Fields) -> bool:
    return block["type"].endswith("_tool_result") and "tool_use_id" in block


def _assistant_blocks(message: Message) -> list[Fields]:
    blocks: list[Fields] = []
    for part in message.content:
        own = own_fields(part.metadata, KEY)
        kind = as_text(own.get("type"))
        if isinstance(part, ContentPartText):
            blocks.append({**own, **text_entry(part.text)})
        elif isinstance(part, ContentPartReasoning):
            if kind == "redacted_thinking":
                blocks.append(own)
            elif own and part.signature:
                seal = {"type": "thinking", "thinking": part.text, "signature": part.signature}
                blocks.append({**own, **seal})
        elif isinstance(part, ContentPartToolCall):
            call: Fields = {"id": part.id, "name": part.name, "input": verbatim_arguments(part)}
            if part.kind != "server":
                blocks.append({**own, "type": "tool_use", **call})
            elif kind.endswith("tool_use"):
                blocks.append({**own, **call})
        elif isinstance(part, ContentPartToolResult):
            if _is_server_tool_result(part):
                blocks.append(own)
        elif isinstance(part, ContentPartFile):
            blocks.append(text_entry(file_note(part)))
        else:
            blocks.append(_data_block(part))
    refusal = message.metadata.get("refusal")
    if isinstance(refusal, str):
        blocks.append(text_entry(refusal))
    return blocks


def _client_tool_results(message: Message) -> list[Fields]:
    """Return the results of client tools in a model's message. Other APIs permit such results."""
    call_ids = {call.id for call in message.tool_calls if call.kind != "server"}
    return [
        _result_block(result)
        for result in message.tool_results
        if result.id in call_ids and not _is_server_tool_result(result)
    ]


def _user_blocks(message: Message, server_call_ids: AbstractSet[str]) -> list[Fields]:
    """Return the blocks of a message of the user or of a tool.

    Args:
        message: The message.
        server_call_ids: Ids of the calls of server tools, whose results are omitted.
    """
    blocks: list[Fields] = []
    for part in message.content:
        if isinstance(part, ContentPartText):
            blocks.append({**own_fields(part.metadata, KEY), **text_entry(part.text)})
        elif isinstance(part, ContentPartFile):
            blocks.append(file_block(part))
        elif isinstance(part, ContentPartData):
            blocks.append(_data_block(part))
        elif (
            isinstance(part, ContentPartToolResult)
            and part.id not in server_call_ids
            and not _is_server_tool_result(part)
        ):
            blocks.append(_result_block(part))
    return blocks


def _is_server_tool_result(result: ContentPartToolResult) -> bool:
    return as_text(own_fields(result.metadata, KEY).get("type")).endswith("_tool_result")


def _data_block(part: ContentPartData) -> Fields:
    own = own_fields(part.metadata, KEY)
    return own if as_text(own.get("type")) else text_entry(compact_json(part.data))


def _result_block(result: ContentPartToolResult) -> Fields:
    block: Fields = {**own_fields(result.metadata, KEY), "type": "tool_result", "tool_use_id": result.id}
    if isinstance(result.output, str):
        block["content"] = result.output
    else:
        block["content"] = _content_blocks(result.output) or json.dumps(result.output, ensure_ascii=False)
    if result.is_error:
        block["is_error"] = True
    return block


def _content_blocks(output: object) -> list[Fields]:
    """Return the output of a tool as content blocks; empty if it contains only text, or is not a list of blocks."""
    if not isinstance(output, list):
        return []
    blocks = [dict(as_mapping(item) or {}) for item in cast("list[object]", output)]
    kinds = {as_text(block.get("type")) for block in blocks}
    if not kinds & _RESULT_BLOCKS or not kinds <= _RESULT_BLOCKS | {"text"}:
        return []
    if any("source" not in block for block in blocks if block["type"] in ("document", "image")):
        return []  # the type ``image`` of MCP has another format
    return [block for block in blocks if block["type"] != "text" or as_text(block.get("text")).strip()]


# --- to the common format ---------------------------------------------------------------------------------------


class _HistoryReader(HistoryReader):
    def read_message(self, message: object) -> None:
        fields = _message_fields(message)
        role, content = fields.get("role"), fields["content"]
        if role == "user":
            self._read_user(content)
        elif role == "assistant":
            # The reasoning is already separated from the text.
            self.add(assemble_message(MessageEvents().wrap(_complete_message(fields)), think_tags=False))
        elif role == "system":
            self.add_system(_joined_text(content))
        else:
            raise ValueError(f"the role {role!r} is not defined by the Messages API")

    def _read_user(self, content: list[Fields]) -> None:
        results = [block for block in content if block["type"] == "tool_result"]
        for block in results:
            self.add_result(self._tool_result(block))
        if not results or len(results) < len(content):
            parts = tuple(_user_part(block) for block in content if block["type"] != "tool_result")
            self.add(Message(role=Role.USER, content=parts))

    def _tool_result(self, block: Fields) -> ContentPartToolResult:
        call_id = as_text(block.get("tool_use_id"))
        output = _entries(block.get("content"))
        only_text = all(each["type"] == "text" for each in output)
        return ContentPartToolResult(
            id=call_id,
            name=self.names.get(call_id, "unknown"),
            output=_joined_text(output) if only_text else plain_json(output),
            is_error=block.get("is_error") is True,
            metadata=_metadata(block, "type", "tool_use_id", "content", "is_error"),
        )


def _complete_message(response: object) -> Fields:
    """Return a response, or an assistant message of a request, as a JSON object. Invalid blocks become empty objects."""
    fields = {**(as_object(response) or {}), "type": "message"}
    content: object = fields.get("content")
    if isinstance(content, Iterable) and not isinstance(content, str):
        fields["content"] = [as_object(block) or {} for block in cast("Iterable[object]", content)]
    return fields


def _user_part(block: Fields) -> ContentPart:
    if block["type"] == "text":
        return ContentPartText(text=as_text(block.get("text")), metadata=_metadata(block, "type", "text"))
    file = file_part(block) if block["type"] in ("document", "image") else None
    if file is not None:
        return file
    plain = plain_json(block)
    return ContentPartData(data=plain, metadata={KEY: plain})


def _message_fields(message: object) -> Fields:
    """Return a message as a JSON object with a list of blocks. It may be an object of the ``anthropic`` package."""
    fields = as_object(message) or {}
    return {**fields, "content": _entries(fields.get("content"))}


def _entries(content: object) -> list[Fields]:
    """Return the content of a message as a list of blocks; an empty list for empty text and for null.

    Raises:
        ValueError: The content is neither text nor a list of blocks with the member ``type``.
    """
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [text_entry(content)]
    if isinstance(content, Mapping) or not isinstance(content, Iterable):
        raise ValueError(
            f"content of type {type(cast('object', content)).__name__} is neither text nor a list of blocks"
        )
    items = cast("Iterable[object]", content)
    blocks = [text_entry(each) if isinstance(each, str) else as_object(each) or {} for each in items]
    for block in blocks:
        if not as_text(block.get("type")):
            raise ValueError(
                f"a content block of type {block.get('type')!r} is not defined by the Messages API"
            )
    return blocks


def _joined_text(blocks: list[Fields]) -> str:
    for block in blocks:
        if block["type"] != "text":
            raise ValueError(f"a content block of type {block['type']!r} where only text is allowed")
    return join_texts(as_text(block.get("text")) for block in blocks)


def _metadata(block: Mapping[str, Any], *standard: str) -> Fields:
    """Return metadata with all fields of the block that are not standard fields."""
    return plain_json(own_metadata(KEY, block, *standard))

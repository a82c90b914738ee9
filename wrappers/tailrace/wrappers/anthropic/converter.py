"""Conversion between the common history and Messages API messages.

The API has two roles that alternate, beginning with the user. The system prompt is a separate field of the request, see
`AnthropicConverter.system_prompt`.

Content that the target format cannot represent is converted to its nearest equivalent. The following list is complete;
apart from these cases, ``to_history(from_history(history)) == history``.

- ``History.system_message`` is not part of the messages; `AnthropicConverter.to_history` takes it as an argument.
- ``History.context`` is sent as the user's first text. A conversation that does not begin with the user gets
  `AnthropicConverter.opening` as its first message.
- Adjacent messages of one role are merged, including a user message that follows tool results. Results come first in
  the merged message.
- Blank text is omitted, and so is a message without other content: the API rejects both. Trailing white space is
  removed from a final model message.
- Text that the model wrote after a call to a client tool is sent before it: the API requires such calls to be last.
- Reasoning is returned only if this API produced and sealed it; at the end of a message it is omitted, because the API
  rejects it there. Elsewhere it keeps its position.
- Calls of server tools and their results are returned only if this API produced them. A call without its result is
  omitted once the user has continued, and a result without its call always. The result of a client tool in a model's
  message is sent after that message.
- A data part is sent as JSON in a text part; a block of this API without another equivalent is returned unchanged.
- A user's file is sent as an image (JPEG, PNG, GIF, WebP) or a document (PDF, plain text). A file of another type is
  named in a text part: a link as ``[name](url)``, otherwise ``[file name, media type, size]``; the same applies to a
  model's files. Images lose their name, text its media type; a linked file gets the media type of its URL.
- Arguments that are not an object are sent as ``{"input": arguments}``. Requests encoded by
  `tailrace.wrappers.decoding.verbatim_json` contain the original text; the anthropic package encodes the object as
  compact JSON, which preserves order, numbers and characters but not white space, escapes and repeated keys. Of a
  call's kind, only server tools are preserved; the mark of a synthetic id is lost.
- A tool's output is sent as text; as blocks if it is a list of content blocks with more than text; any other output as
  JSON, which is read back as text. A tool's name is read back from the call with the same id.
- A model's ``refusal`` is sent as text.
- Metadata is not sent, except ``metadata["anthropic"]`` of a part: further fields of the API's object, returned
  unchanged.
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
from tailrace.wrappers.assembly.folding import fold_message
from tailrace.wrappers.assembly.tool_calls import verbatim_arguments
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.converter import HistoryConverter
from tailrace.wrappers.conversion.history_reader import HistoryReader
from tailrace.wrappers.conversion.objects import (
    Fields,
    check_calls,
    compact_json,
    own_fields,
    own_metadata,
    text_entry,
)
from tailrace.wrappers.conversion.texts import join_texts
from tailrace.wrappers.conversion.tool_names import LETTERS_DIGITS_DASHES, NameRule
from tailrace.wrappers.decoding.fields import plain_json
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
# Types of content blocks, besides text, that a tool result may contain.
_RESULT_BLOCKS = frozenset({"browser_state", "document", "image", "search_result", "tool_reference"})


class AnthropicConverter(HistoryConverter["MessageParam", "RawMessageStreamEvent | Mapping[str, Any]"]):
    """Stateless converter between conversations and Messages API messages.

    Ids of tool calls are sent unchanged.

    Attributes:
        id_pattern: Pattern of valid tool call ids.
        opening: The user's message in a conversation that begins with the model, because the API requires a user
            message first.
    """

    id_pattern: ClassVar[re.Pattern[str] | None] = re.compile(r"[a-zA-Z0-9_-]+")
    name_rule: ClassVar[NameRule | None] = LETTERS_DIGITS_DASHES
    opening: ClassVar[str] = "(The assistant speaks first.)"

    def system_prompt(self, history: History) -> str | None:
        """Return the request's ``system``; None for missing or blank instructions."""
        system = history.system_message
        return system if system is not None and system.strip() else None

    def from_history(self, history: History) -> "list[MessageParam]":
        """Return the request's messages, alternating and beginning with the user's: context, then the conversation.

        The system message is not included, see `system_prompt`.

        Raises:
            ValueError: A tool call is in a message that is not the model's.
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
        return cast("list[MessageParam]", turns.messages(self.opening))

    def to_history(
        self,
        messages: "Sequence[MessageParam | PackageMessage]",
        *,
        system: "str | Sequence[Mapping[str, Any]] | None" = None,
    ) -> History:
        """Return the common history of a request's messages, which may include response messages of the package.

        Args:
            messages: The messages, oldest first. Those of role ``system``, which newer models accept in the middle of
                a conversation, are joined with the instructions.
            system: The request's ``system``, as text or as text blocks.

        Raises:
            ValueError: A message has a role that the API does not define, or invalid content.
        """
        reader = _HistoryReader()
        if system is not None:
            reader.add_system(_joined_text(_entries(system)))
        return reader.read(messages)

    def to_message(
        self, response: "Iterable[ChunkWrapper[Any]] | PackageMessage | Mapping[str, Any]"
    ) -> Message:
        """Return the complete message of a stream's wrappers or of a complete response.

        Args:
            response: Wrappers; a ``Message`` of the package, or its JSON object; an assistant message of a request.
        """
        if isinstance(response, Mapping | BaseModel):
            return fold_message(MessageEvents().wrap(_complete_message(cast("object", response))))
        return fold_message(response)

    def tool_result_messages(self, results: Sequence[ContentPartToolResult]) -> "list[MessageParam]":
        """Return one user message with all results; an empty list if there are none."""
        if not results:
            return []
        content = [_result_block(result) for result in results]
        return cast("list[MessageParam]", [{"role": "user", "content": content}])

    def create_chunk_wrapper(
        self, chunk: "RawMessageStreamEvent | Mapping[str, Any]"
    ) -> AnthropicEventWrapper:
        """Wrap one event of the package's stream; the wrapper is empty for an event without content.

        The limitations of `wrap_chunk` apply. Only the first delta of an event with several (a non-empty
        ``message_start``) is returned; `wrap_chunk` returns all of them.
        """
        wrappers = wrap_chunk(chunk)
        return wrappers[0] if wrappers else AnthropicEventWrapper(as_object(chunk) or {})


# --- from the common format -------------------------------------------------------------------------------------


class _Turns:
    """Builder of a request's messages, which merges adjacent messages of one role.

    The result is valid for any conversation: the API rejects the whole request for one invalid block.
    """

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
        """Append a block, but text before calls of client tools, and their results before all else."""
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
        """Remove server tool calls without a result, and results without a call.

        The API rejects them; interrupted responses leave them behind. A call may be pending until the user
        continues: when the response paused, or when a program that the model runs calls client tools.
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
    """Return the blocks of a model's message, without other providers' blocks and results of client tools."""
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
    """Return the results of client tools in a model's message, which other APIs allow."""
    call_ids = {call.id for call in message.tool_calls if call.kind != "server"}
    return [
        _result_block(result)
        for result in message.tool_results
        if result.id in call_ids and not _is_server_tool_result(result)
    ]


def _user_blocks(message: Message, server_call_ids: AbstractSet[str]) -> list[Fields]:
    """Return the blocks of a message that is not the model's.

    Args:
        message: The message.
        server_call_ids: Ids of calls that a provider ran; their results are omitted.
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
    """Return True for the result of a server tool of this API."""
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
    """Return a tool's output as blocks if it is a list of blocks with more than text; otherwise an empty list."""
    if not isinstance(output, list):
        return []
    blocks = [dict(as_mapping(item) or {}) for item in cast("list[object]", output)]
    kinds = {as_text(block.get("type")) for block in blocks}
    if not kinds & _RESULT_BLOCKS or not kinds <= _RESULT_BLOCKS | {"text"}:
        return []
    if any("source" not in block for block in blocks if block["type"] in ("document", "image")):
        return []  # another format: MCP uses the same type name for images
    return [block for block in blocks if block["type"] != "text" or as_text(block.get("text")).strip()]


# --- to the common format ---------------------------------------------------------------------------------------


class _HistoryReader(HistoryReader):
    def read_message(self, message: object) -> None:
        fields = _message_fields(message)
        role, content = fields.get("role"), fields["content"]
        if role == "user":
            self._read_user(content)
        elif role == "assistant":
            # Reasoning was separated from the text of this message before.
            self.add(fold_message(MessageEvents().wrap(_complete_message(fields)), think_tags=False))
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
    """Return a response or an assistant message of a request in the API's form; invalid blocks become empty."""
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
    """Return a message of any form as a JSON object whose content is a list of blocks."""
    fields = as_object(message) or {}
    return {**fields, "content": _entries(fields.get("content"))}


def _entries(content: object) -> list[Fields]:
    """Return content as a list of blocks; empty for the empty text and null.

    Raises:
        ValueError: The content is neither text nor a list of blocks with a type.
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


def _metadata(block: Mapping[str, Any], *known: str) -> Fields:
    """Return metadata with the block's fields other than the known ones."""
    return plain_json(own_metadata(KEY, block, *known))

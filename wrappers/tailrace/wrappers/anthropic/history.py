"""Between the common history and the messages of Messages API requests.

The API knows two roles that take turns, beginning with the user's. Instructions are no message: the request has a field
of its own for them, see `AnthropicConverter.system_prompt`.

What the one side cannot say is converted to the nearest thing that the other can. These are all the losses; in all
else ``to_history(from_history(history)) == history``.

- ``History.system_message`` is not among the messages; `AnthropicConverter.to_history` takes it beside them.
- ``History.context`` goes out as the user's first words. A conversation that does not begin with the user's gets
  `AnthropicConverter.opening` as its first message.
- Messages of one role that stand together become one, and so does a message of the user's that follows results of
  tools. Results come first there, wherever they stood.
- Text of nothing but white space is left out, and so is a message of which nothing remains: the API refuses both. When
  the model spoke last, white space at the very end is left out.
- Text that the model wrote after a call to a tool of ours goes before it: the API wants such calls last.
- Reasoning is sent back only when it is this API's and sealed; at a message's end it is left out, where the API
  refuses it. Elsewhere it stays where it stood, unchanged.
- Calls of tools that a provider ran, and their results, are sent back only when they are this API's. A call without
  its result is left out as soon as the user has gone on, and a result without its call always. The result of a tool
  of ours that stands in a model's message follows it.
- A data part goes out as its JSON, in a text part; a block of this API's that has no other form as it was.
- A file of the user's goes out as an image (JPEG, PNG, GIF, WebP) or a document (PDF, plain text). One that has no such
  form is named in a text part: a link as ``[name](url)``, else ``[file name, media type, size]``, and so is any file of
  the model's. Images lose their name, text its media type; a file behind an address gets the type that this says.
- Arguments that are no object go out as ``{"input": arguments}``. A call's kind, other than a tool of the provider's,
  and that its id was made here, are forgotten.
- A tool's output goes out as text or, where it is a list of content blocks that holds more than text, as these; any
  other as its JSON. The name of a tool comes back from the call with the same id.
- A model's ``refusal`` goes out as text.
- Metadata stays here, except ``metadata["anthropic"]`` of a part: further fields of the API's object, kept and sent as
  they are.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel

from tailrace.wrappers.anthropic.chunks import package_fields, wrap_chunk
from tailrace.wrappers.anthropic.events import KEY, AnthropicEventWrapper, MessageEvents
from tailrace.wrappers.anthropic.files import file_block, file_note, file_part
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.fields import plain_json
from tailrace.wrappers.folding import fold_message
from tailrace.wrappers.history import HistoryConverter
from tailrace.wrappers.loose_json import as_mapping, as_text
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
from tailrace.wrappers.tool_calls import arguments_object
from tailrace.wrappers.tool_names import LETTERS_DIGITS_DASHES, NameRule

if TYPE_CHECKING:
    from anthropic.types import Message as PackageMessage
    from anthropic.types import MessageParam, RawMessageStreamEvent

Fields = dict[str, Any]

_THINKING = ("thinking", "redacted_thinking")
# What the content of a tool's result may be made of besides text.
_RESULT_BLOCKS = frozenset({"browser_state", "document", "image", "search_result", "tool_reference"})


class AnthropicConverter(HistoryConverter["MessageParam", "RawMessageStreamEvent | Mapping[str, Any]"]):
    """Converts conversations to the messages of the Messages API and back. Holds no state.

    Ids of tool calls are sent as they are.

    Attributes:
        id_pattern: What the API takes as the id of a tool call.
        opening: What the user says in a conversation that begins with the model, since the API wants that the
            user speaks first.
    """

    id_pattern: ClassVar[re.Pattern[str] | None] = re.compile(r"[a-zA-Z0-9_-]+")
    name_rule: ClassVar[NameRule | None] = LETTERS_DIGITS_DASHES
    opening: ClassVar[str] = "(The assistant speaks first.)"

    def system_prompt(self, history: History) -> str | None:
        """The request's ``system``; None where the history has no instructions, or only white space."""
        system = history.system_message
        return system if system is not None and system.strip() else None

    def from_history(self, history: History) -> "list[MessageParam]":
        """The request's messages, in turns and beginning with the user's: context, then the conversation.

        The system message is not among them, see `system_prompt`.

        Raises:
            ValueError: A tool call stands in a message that is not the model's.
        """
        turns = _Turns()
        calls = [call for message in history.conversation for call in message.tool_calls]
        ran = {call.id for call in calls if call.kind == "server"}
        ran -= {call.id for call in calls if call.kind != "server"}
        if history.context is not None:
            turns.add("user", [_text_block(history.context)])
        for position, message in enumerate(history.conversation):
            if message.role is Role.MODEL:
                turns.add("assistant", _assistant_blocks(message))
                turns.add("user", _late_results(message))
            else:
                turns.add("user", _user_blocks(message, position, ran))
        return cast("list[MessageParam]", turns.messages(self.opening))

    def to_history(
        self,
        messages: "Sequence[MessageParam | PackageMessage]",
        *,
        system: "str | Sequence[Mapping[str, Any]] | None" = None,
    ) -> History:
        """The common history of a request's messages (or of the package's answers among them).

        Args:
            messages: The messages, oldest first. Those of role ``system``, which newer models take in the middle of
                a conversation, are joined with the instructions.
            system: The request's ``system``, as text or as text blocks.

        Raises:
            ValueError: A message has a role that the API does not define, or content that is none.
        """
        return _HistoryReader().read(messages, system)

    def to_message(
        self, response: "Iterable[ChunkWrapper[Any]] | PackageMessage | Mapping[str, Any]"
    ) -> Message:
        """The complete message of a stream's wrappers, or of a whole response.

        Args:
            response: Wrappers; a ``Message`` of the package, or its JSON object; an assistant message of a request.
        """
        if isinstance(response, Mapping | BaseModel):
            return fold_message(MessageEvents().wrap(_whole_message(cast("object", response))))
        return fold_message(response)

    def tool_result_messages(self, results: Sequence[ContentPartToolResult]) -> "list[MessageParam]":
        """One user message with all results; none where there are none."""
        if not results:
            return []
        content = [_result_block(result) for result in results]
        return cast("list[MessageParam]", [{"role": "user", "content": content}])

    def create_chunk_wrapper(
        self, chunk: "RawMessageStreamEvent | Mapping[str, Any]"
    ) -> AnthropicEventWrapper:
        """A wrapper over one event of the package's stream; an empty one for an event that says nothing.

        What is said of `wrap_chunk` holds here too, and an event that begins with content (a ``message_start``
        that is not empty) is that function's business: here only its first delta counts.
        """
        wrappers = wrap_chunk(chunk)
        return wrappers[0] if wrappers else AnthropicEventWrapper(package_fields(chunk))


# --- from the common format -------------------------------------------------------------------------------------


class _Turns:
    """The messages of a request while they are put together: neighbours of one role are one message.

    Whatever a conversation holds, the API takes what comes out, which it would refuse as a whole for one bad block.
    """

    def __init__(self) -> None:
        self._messages: list[tuple[str, list[Fields]]] = []

    def add(self, role: str, blocks: Iterable[Fields]) -> None:
        for block in blocks:
            if block["type"] == "text" and not as_text(block.get("text")).strip():
                continue
            if not self._messages or self._messages[-1][0] != role:
                self._messages.append((role, []))
            self._place(self._messages[-1][1], block)

    def _place(self, content: list[Fields], block: Fields) -> None:
        """Append a block, but text before calls of our tools, and results of these before all else."""
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
            messages.insert(0, {"role": "user", "content": [_text_block(opening)]})
        if messages and messages[-1]["role"] == "assistant":
            last = messages[-1]["content"][-1]
            if last["type"] == "text":
                messages[-1]["content"][-1] = {**last, "text": last["text"].rstrip()}
        return messages

    def _drop_unmatched(self) -> None:
        """Leave out a call of the provider's tools without its result, and a result without its call.

        Such remain of answers that broke off, and the API refuses them. A call may wait for its result as long as
        the user has not gone on: when the answer paused, or when a program that the model runs calls our tools.
        """
        asked: set[object] = set()
        answered: set[object] = set()
        for _, content in self._messages:
            for block in content:
                if _is_own_call(block):
                    asked.add(block["id"])
                elif _is_own_result(block) and block["tool_use_id"] in asked:
                    answered.add(block["tool_use_id"])
        asked.clear()
        for position, (role, content) in enumerate(self._messages):
            if role != "assistant":
                continue
            _, following = self._messages[position + 1] if position + 1 < len(self._messages) else ("", [])
            waits = not following or following[0]["type"] == "tool_result"
            kept: list[Fields] = []
            for block in content:
                if _is_own_call(block):
                    if not (waits or block["id"] in answered):
                        continue
                    asked.add(block["id"])
                elif _is_own_result(block) and block["tool_use_id"] not in asked:
                    continue
                kept.append(block)
            content[:] = kept


def _is_own_call(block: Fields) -> bool:
    return block["type"] != "tool_use" and block["type"].endswith("tool_use") and "id" in block


def _is_own_result(block: Fields) -> bool:
    return block["type"].endswith("_tool_result") and "tool_use_id" in block


def _assistant_blocks(message: Message) -> list[Fields]:
    """The blocks of a message of the model's; what is another provider's, and results of our tools, is not in it."""
    blocks: list[Fields] = []
    for part in message.content:
        own = _own_fields(part)
        kind = as_text(own.get("type"))
        if isinstance(part, ContentPartText):
            blocks.append({**own, **_text_block(part.text)})
        elif isinstance(part, ContentPartReasoning):
            if kind == "redacted_thinking":
                blocks.append(own)
            elif own and part.signature:
                seal = {"type": "thinking", "thinking": part.text, "signature": part.signature}
                blocks.append({**own, **seal})
        elif isinstance(part, ContentPartToolCall):
            call: Fields = {"id": part.id, "name": part.name, "input": arguments_object(part)}
            if part.kind != "server":
                blocks.append({**own, "type": "tool_use", **call})
            elif kind.endswith("tool_use"):
                blocks.append({**own, **call})
        elif isinstance(part, ContentPartToolResult):
            if _is_own(part):
                blocks.append(own)
        elif isinstance(part, ContentPartFile):
            blocks.append(_text_block(file_note(part)))
        else:
            blocks.append(_data_block(part))
    refusal = message.metadata.get("refusal")
    if isinstance(refusal, str):
        blocks.append(_text_block(refusal))
    return blocks


def _late_results(message: Message) -> list[Fields]:
    """The results of our own tools that stand in a message of the model's, which others allow."""
    ours = {call.id for call in message.tool_calls if call.kind != "server"}
    return [
        _result_block(result) for result in message.tool_results if result.id in ours and not _is_own(result)
    ]


def _user_blocks(message: Message, position: int, ran: AbstractSet[str]) -> list[Fields]:
    """The blocks of a message that is not the model's; ``ran`` are the ids of calls that a provider ran."""
    blocks: list[Fields] = []
    for part in message.content:
        if isinstance(part, ContentPartToolCall):
            raise ValueError(
                f"message {position}: the tool call {part.id!r} stands in a message of role {message.role}, "
                "not the model's"
            )
        if isinstance(part, ContentPartText):
            blocks.append({**_own_fields(part), **_text_block(part.text)})
        elif isinstance(part, ContentPartFile):
            blocks.append(file_block(part))
        elif isinstance(part, ContentPartData):
            blocks.append(_data_block(part))
        elif isinstance(part, ContentPartToolResult) and part.id not in ran and not _is_own(part):
            blocks.append(_result_block(part))
    return blocks


def _is_own(result: ContentPartToolResult) -> bool:
    """Whether it is the result of a tool that this API's provider ran."""
    return as_text(_own_fields(result).get("type")).endswith("_tool_result")


def _text_block(text: str) -> Fields:
    return {"type": "text", "text": text}


def _data_block(part: ContentPartData) -> Fields:
    own = _own_fields(part)
    return own if as_text(own.get("type")) else _text_block(_compact_json(part.data))


def _result_block(result: ContentPartToolResult) -> Fields:
    block: Fields = {**_own_fields(result), "type": "tool_result", "tool_use_id": result.id}
    if isinstance(result.output, str):
        block["content"] = result.output
    else:
        block["content"] = _content_blocks(result.output) or json.dumps(result.output, ensure_ascii=False)
    if result.is_error:
        block["is_error"] = True
    return block


def _content_blocks(output: object) -> list[Fields]:
    """A tool's output as blocks, where it is a list of such and holds more than text; else none."""
    if not isinstance(output, list):
        return []
    blocks = [dict(as_mapping(item) or {}) for item in cast("list[object]", output)]
    kinds = {as_text(block.get("type")) for block in blocks}
    if not kinds & _RESULT_BLOCKS or not kinds <= _RESULT_BLOCKS | {"text"}:
        return []
    if any("source" not in block for block in blocks if block["type"] in ("document", "image")):
        return []  # of somebody else's making: MCP's images have the same name
    return [block for block in blocks if block["type"] != "text" or as_text(block.get("text")).strip()]


def _own_fields(part: ContentPart) -> Fields:
    return dict(as_mapping(part.metadata.get(KEY)) or {})


def _compact_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- to the common format ---------------------------------------------------------------------------------------


class _HistoryReader:
    """Reads a request's messages from first to last; remembers the calls that results will refer to."""

    def __init__(self) -> None:
        self._system: list[str] = []
        self._conversation: list[Message] = []
        self._results: list[ContentPartToolResult] = []
        self._names: dict[str, str] = {}

    def read(self, messages: Iterable[object], system: object) -> History:
        if system is not None:
            self._system.append(_joined_text(_entries(system)))
        for position, message in enumerate(messages):
            try:
                self._read_message(_message_fields(message))
            except ValueError as error:
                raise ValueError(f"message {position}: {error}") from None
        self._end_results()
        return History(
            system_message="\n\n".join(self._system) if self._system else None,
            conversation=tuple(self._conversation),
        )

    def _read_message(self, fields: Fields) -> None:
        role, content = fields.get("role"), fields["content"]
        if role == "user":
            self._read_user(content)
        elif role == "assistant":
            self._end_results()
            # Whatever text the conversation holds, it was told from reasoning before.
            message = fold_message(MessageEvents().wrap(_whole_message(fields)), think_tags=False)
            self._names |= {call.id: call.name for call in message.tool_calls}
            self._conversation.append(message)
        elif role == "system":
            self._end_results()
            self._system.append(_joined_text(content))
        else:
            raise ValueError(f"the role {role!r} is not one of the Messages API")

    def _read_user(self, content: list[Fields]) -> None:
        results = [block for block in content if block["type"] == "tool_result"]
        self._results += [self._tool_result(block) for block in results]
        if results and len(results) == len(content):
            return
        self._end_results()
        parts = tuple(_user_part(block) for block in content if block["type"] != "tool_result")
        self._conversation.append(Message(role=Role.USER, content=parts))

    def _tool_result(self, block: Fields) -> ContentPartToolResult:
        call_id = as_text(block.get("tool_use_id"))
        output = _entries(block.get("content"))
        only_text = all(each["type"] == "text" for each in output)
        return ContentPartToolResult(
            id=call_id,
            name=self._names.get(call_id, "unknown"),
            output=_joined_text(output) if only_text else plain_json(output),
            is_error=block.get("is_error") is True,
            metadata=_metadata(block, "type", "tool_use_id", "content", "is_error"),
        )

    def _end_results(self) -> None:
        if self._results:
            self._conversation.append(Message(role=Role.TOOL, content=tuple(self._results)))
            self._results = []


def _whole_message(response: object) -> Fields:
    """A response, or an assistant message of a request, as the API sends one; blocks that are none are left out."""
    fields = {**package_fields(response), "type": "message"}
    content: object = fields.get("content")
    if isinstance(content, Iterable) and not isinstance(content, str):
        fields["content"] = [package_fields(block) for block in cast("Iterable[object]", content)]
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
    """A message as a JSON object whose content is a list of blocks, whatever both were made of."""
    fields = package_fields(message)
    return {**fields, "content": _entries(fields.get("content"))}


def _entries(content: object) -> list[Fields]:
    """Content as a list of blocks; the empty text and null are none."""
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [_text_block(content)]
    if isinstance(content, Mapping) or not isinstance(content, Iterable):
        raise ValueError(f"content of type {type(cast('object', content)).__name__}")
    items = cast("Iterable[object]", content)
    blocks = [_text_block(each) if isinstance(each, str) else package_fields(each) for each in items]
    for block in blocks:
        if not as_text(block.get("type")):
            raise ValueError(f"a content block of type {block.get('type')!r}")
    return blocks


def _joined_text(blocks: list[Fields]) -> str:
    for block in blocks:
        if block["type"] != "text":
            raise ValueError(f"a content block of type {block['type']!r} where only text may stand")
    return "".join(as_text(block.get("text")) for block in blocks)


def _metadata(block: Mapping[str, Any], *known: str) -> Fields:
    """What a block holds beyond the known fields, under the key that sends it back."""
    rest = {name: value for name, value in block.items() if name not in known and value is not None}
    return {KEY: plain_json(rest)} if rest else {}

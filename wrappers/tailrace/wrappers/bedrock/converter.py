"""Conversion between the common history and Bedrock Converse messages.

Converse requires a separate system prompt (see `BedrockConverter.system_prompt`), alternating user and assistant
messages beginning with the user, tool results at the start of the message after their calls, no blank text, and unique
document names with a limited character set. Its models require calls at the end of their message, and no reasoning
there.

Content that the target format cannot represent is converted to its nearest equivalent. The following list is complete;
apart from these cases, ``to_history(from_history(history)) == history``.

- ``History.system_message`` is not part of the messages; `BedrockConverter.to_history` takes it as an argument. A blank
  one is omitted. ``History.context`` is sent as the user's first text.
- Adjacent messages of one side are merged: users and tools, and models. When read back, tool results become a message
  of role TOOL, followed by one of role USER with the other content. A conversation that begins with the model gets
  `BedrockConverter.opening` as its first message.
- Blank text is omitted, and so is a message without other content. Trailing white space is removed from a final model
  message.
- Text that the model wrote after a tool call is sent before it.
- Reasoning is returned only if Bedrock sealed it (signed or redacted), and not at the end of a message.
- Calls of server tools and their results are returned only if Bedrock ran them. The result of any other tool in a
  model's message is sent after that message.
- A data part is sent as JSON in a text block; a Bedrock block without another equivalent is returned unchanged.
- A user's file is sent by value or as an ``s3://`` URL. Other URLs, empty files and types unknown to Converse are named
  in a text block: a link as ``[name](url)``, otherwise ``[file name, media type, size]``; the same applies to a model's
  files. Text of an unknown type is sent as plain text, and a file without a type by its name's extension. Images, video
  and audio lose their name. A document's name loses invalid characters, gets a number if it is not unique, and is read
  back with the extension of its format. Documents without any text are sent with `BedrockConverter.documents`.
- Invalid tool names are replaced (see `tailrace.wrappers.conversion.tool_names`). Arguments that are not an object are
  sent as ``{"input": arguments}``; the original text of others is sent, and not read back. Of a call's kind, only server
  tools are preserved; the mark of a synthetic id is lost.
- A tool's output that is neither text nor an object, or is blank, is sent as JSON and read back as text. A tool's name
  is read back from the call with the same id.
- Metadata is not sent, except ``metadata["bedrock"]`` of a part: Bedrock's further fields, returned unchanged.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

from tailrace.wrappers.assembly.folding import fold_message
from tailrace.wrappers.assembly.tool_calls import verbatim_arguments
from tailrace.wrappers.bedrock.blocks import FORMATS, KEY, read_part, read_tool_result
from tailrace.wrappers.bedrock.decoder import wrap_chunk
from tailrace.wrappers.bedrock.events import ConverseEvents
from tailrace.wrappers.bedrock.wrapper import BedrockWrapper
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.converter import HistoryConverter
from tailrace.wrappers.conversion.files import essence, file_note
from tailrace.wrappers.conversion.history_reader import HistoryReader
from tailrace.wrappers.conversion.objects import Fields, check_calls, compact_json, own_fields, result_output
from tailrace.wrappers.conversion.tool_names import LETTERS_DIGITS_DASHES, NameRule
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_mappings, as_text
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

# Block type and format by media type, and by file name extension.
_BY_TYPE = {media: (kind, name) for kind, formats in FORMATS.items() for name, media in formats.items()}
_BY_ENDING = {
    **{f".{name}": (kind, name) for kind in reversed(tuple(FORMATS)) for name in FORMATS[kind]},
    ".htm": ("document", "html"),
    ".jpg": ("image", "jpeg"),
}
_S3 = "s3://"
_MAX_NAME = 200
_INVALID_IN_NAMES = re.compile(r"[^A-Za-z0-9 \-()\[\]]+")


class BedrockConverter(HistoryConverter[Fields, Mapping[str, Any]]):
    """Stateless converter between conversations and Converse messages.

    Args:
        result_status: Mark failed tool results with ``"status": "error"``, which Anthropic's and Amazon's models accept
            and others reject. False sends ``{"error": output}`` instead, which is read back as such.

    Attributes:
        id_pattern: Pattern of valid tool call ids, which are sent unchanged.
        opening: The user's message before a conversation that begins with the model.
        documents: The user's text beside documents without any text.
    """

    id_pattern: ClassVar[re.Pattern[str] | None] = re.compile(r"[a-zA-Z0-9_-]{1,64}")
    name_rule: ClassVar[NameRule | None] = LETTERS_DIGITS_DASHES
    opening: ClassVar[str] = "(The assistant speaks first.)"
    documents: ClassVar[str] = "(See the attached documents.)"

    def __init__(self, *, result_status: bool = True) -> None:
        self._result_status = result_status

    def from_history(self, history: History) -> list[Fields]:
        """Return the request's ``messages``: context, then the conversation. For ``system`` see `system_prompt`.

        Raises:
            ValueError: A tool call is in a message that is not the model's.
        """
        check_calls(history)
        request = _Request(self, result_status=self._result_status)
        if history.context is not None:
            request.add("user", _text_blocks(history.context))
        for message in history.conversation:
            request.add_message(message)
        return request.messages()

    def system_prompt(self, history: History) -> list[Fields]:
        """Return the request's ``system``; empty if there is none."""
        return _text_blocks(history.system_message or "")

    def to_history(
        self, messages: Sequence[Mapping[str, Any]], *, system: Sequence[Mapping[str, Any]] = ()
    ) -> History:
        """Return the common history of a request's messages.

        Args:
            messages: The request's ``messages``, as JSON or in boto3's form (with raw bytes).
            system: The request's ``system``; content other than text is ignored.

        Raises:
            ValueError: A message has a role, or content of a form, that Converse does not define.
        """
        reader = _HistoryReader()
        texts = [as_text(block.get("text")) for block in system if "text" in block]
        if texts:
            reader.add_system("\n\n".join(texts))
        return reader.read(messages)

    def to_message(self, response: Iterable[ChunkWrapper[Any]] | Mapping[str, Any]) -> Message:
        """Return the complete message of a stream's wrappers or of a complete response.

        Args:
            response: Wrappers; the response of ``converse``; or an assistant's message.
        """
        if isinstance(response, Mapping):
            fields = cast("Mapping[str, Any]", response)
            if "output" not in fields:
                fields = {"output": {"message": fields}}
            return fold_message(ConverseEvents().wrap_response(fields))
        return fold_message(response)

    def tool_result_messages(self, results: Sequence[ContentPartToolResult]) -> list[Fields]:
        """Return one user message with all results; an empty list if there are none."""
        request = _Request(self, result_status=self._result_status)
        request.add("user", [request.result_block(result) for result in results])
        return request.messages()

    def create_chunk_wrapper(self, chunk: Mapping[str, Any]) -> ChunkWrapper[Any]:
        """Wrap one boto3 event; see `tailrace.wrappers.bedrock.wrap_chunk`."""
        wrappers = wrap_chunk(chunk)
        return wrappers[0] if wrappers else BedrockWrapper(chunk)


# --- from the common format -------------------------------------------------------------------------------------


class _Request:
    """Builder of a request's messages."""

    def __init__(self, converter: BedrockConverter, *, result_status: bool) -> None:
        self._converter = converter
        self._result_status = result_status
        self._messages: list[Fields] = []
        self._names: set[str] = set()  # of documents, in lower case

    def add(self, role: str, blocks: list[Fields]) -> None:
        """Add blocks, to the last message if it has the same role."""
        if not blocks:
            return
        if self._messages and self._messages[-1]["role"] == role:
            self._messages[-1]["content"] += blocks
        else:
            self._messages.append({"role": role, "content": blocks})

    def add_message(self, message: Message) -> None:
        if message.role is Role.MODEL:
            self._add_model_message(message)
            return
        self.add("user", [block for part in message.content for block in self._user_blocks(part)])

    def messages(self) -> list[Fields]:
        """Return the messages in the order and with the text that Converse and its models require."""
        if self._messages and self._messages[0]["role"] == "assistant":
            self._messages.insert(0, {"role": "user", "content": _text_blocks(self._converter.opening)})
        for message in self._messages:
            content = cast("list[Fields]", message["content"])
            if message["role"] == "assistant":
                content.sort(key=_is_call)
                continue
            content.sort(key=lambda block: "toolResult" not in block)
            if any("document" in block for block in content) and not any(
                "text" in block for block in content
            ):
                content += _text_blocks(self._converter.documents)
        if self._messages and self._messages[-1]["role"] == "assistant":
            last: Fields = self._messages[-1]["content"][-1]
            if "text" in last:
                last["text"] = last["text"].rstrip()
        return self._messages

    def result_block(self, result: ContentPartToolResult) -> Fields:
        own = own_fields(result.metadata, KEY)
        fields: Fields = {**own, "toolUseId": result.id}
        output: object = result.output
        if result.is_error and self._result_status:
            fields["status"] = "error"
        else:
            output = result_output(result)
        if "content" not in own:
            fields["content"] = [_output_block(output)]
        return {"toolResult": fields}

    def _user_blocks(self, part: ContentPart) -> list[Fields]:
        if isinstance(part, ContentPartToolResult):
            return [self.result_block(part)]
        if isinstance(part, ContentPartFile):
            return [self._file_block(part)]
        if isinstance(part, ContentPartData):
            return [_data_block(part)]
        return _text_part_blocks(part) if isinstance(part, ContentPartText) else []

    def _add_model_message(self, message: Message) -> None:
        kinds = {call.id: (call.kind, KEY in call.metadata) for call in message.tool_calls}
        blocks: list[Fields] = []
        results: list[Fields] = []
        for part in message.content:
            if isinstance(part, ContentPartToolCall):
                if part.kind != "server" or KEY in part.metadata:
                    blocks.append(_call_block(part))
            elif isinstance(part, ContentPartToolResult):
                kind, own = kinds.get(part.id, ("", False))
                if kind != "server":
                    results.append(self.result_block(part))
                elif own:
                    blocks.append(self.result_block(part))
            elif isinstance(part, ContentPartReasoning):
                blocks += _reasoning_blocks(part)
            elif isinstance(part, ContentPartFile):
                blocks += _text_blocks(file_note(part))
            elif isinstance(part, ContentPartData):
                kind = as_text(own_fields(part.metadata, KEY).get("type"))
                # Only user messages may contain files.
                blocks += _text_blocks(f"[{kind}]") if kind in FORMATS else [_data_block(part)]
            else:
                blocks += _text_part_blocks(part)
        while blocks and "reasoningContent" in blocks[-1]:
            blocks.pop()
        self.add("assistant", blocks)
        self.add("user", results)

    def _file_block(self, part: ContentPartFile) -> Fields:
        block_format = _format(part)
        if block_format is None:
            return {"text": file_note(part)}
        kind, name = block_format
        own = own_fields(part.metadata, KEY)
        location = as_mapping(own.pop("s3Location", None)) or {}
        if part.url is not None:
            source: Fields = {"s3Location": {**location, "uri": part.url}}
        else:
            source = {"bytes": base64.b64encode(part.data or b"").decode("ascii")}
        fields: Fields = {**own, "format": name, "source": source}
        if kind == "document":
            fields["name"] = self._document_name(part.filename, name)
        return {kind: fields}

    def _document_name(self, filename: str, form: str) -> str:
        """Return a valid document name that is unique in the request."""
        name = filename.removesuffix(f".{form}")
        name = " ".join(_INVALID_IN_NAMES.sub(" ", name).split())[:_MAX_NAME].strip() or "document"
        number, unique = 1, name
        while unique.lower() in self._names:
            number += 1
            suffix = f" ({number})"
            unique = name[: _MAX_NAME - len(suffix)] + suffix
        self._names.add(unique.lower())
        return unique


def _text_blocks(text: str) -> list[Fields]:
    """Return a text block; an empty list for blank text, which Converse rejects."""
    return [{"text": text}] if text.strip() else []


def _text_part_blocks(part: ContentPartText) -> list[Fields]:
    own = own_fields(part.metadata, KEY)
    blocks = _text_blocks(part.text)
    return [{"citationsContent": {**own, "content": blocks}}] if own and blocks else blocks


def _data_block(part: ContentPartData) -> Fields:
    kind = as_text(own_fields(part.metadata, KEY).get("type"))
    return {kind: part.data} if kind else {"text": compact_json(part.data)}


def _reasoning_blocks(part: ContentPartReasoning) -> list[Fields]:
    own = own_fields(part.metadata, KEY)
    if "redactedContent" in own:
        return [{"reasoningContent": {"redactedContent": own["redactedContent"]}}]
    if own and part.signature:
        return [{"reasoningContent": {"reasoningText": {"text": part.text, "signature": part.signature}}}]
    return []


def _call_block(call: ContentPartToolCall) -> Fields:
    name = LETTERS_DIGITS_DASHES.valid_name(call.name)
    return {
        "toolUse": {
            **own_fields(call.metadata, KEY),
            "toolUseId": call.id,
            "name": name,
            "input": verbatim_arguments(call),
        }
    }


def _is_call(block: Mapping[str, Any]) -> bool:
    """Return True for a call of a client tool."""
    call = as_mapping(block.get("toolUse"))
    return call is not None and call.get("type") is None


def _output_block(output: object) -> Fields:
    if as_mapping(output) is not None:
        return {"json": output}
    if isinstance(output, str) and output.strip():
        return {"text": output}
    return {"text": json.dumps(output, ensure_ascii=False)}


def _format(part: ContentPartFile) -> tuple[str, str] | None:
    """Return the block type and format of a file; None if Converse has none for it."""
    if part.data is not None and not part.data:
        return None
    if part.url is not None and not part.url.startswith(_S3):
        return None
    media_type = essence(part.media_type)
    block_format = _BY_TYPE.get(media_type)
    if block_format is None and (media_type in ("", "application/octet-stream") or media_type.endswith("/*")):
        name = (part.filename or part.url or "").lower()
        block_format = next((form for ending, form in _BY_ENDING.items() if name.endswith(ending)), None)
    if block_format is None and media_type.startswith("text/"):
        block_format = ("document", "txt")
    return block_format


# --- to the common format ---------------------------------------------------------------------------------------


class _HistoryReader(HistoryReader):
    def read_message(self, message: object) -> None:
        fields = as_mapping(message) or {}
        role = fields.get("role")
        blocks = _blocks(fields.get("content"))
        if role == "assistant":
            events = ConverseEvents()
            wrappers = [events.wrap_block(block, index) for index, block in enumerate(blocks)]
            self.add(Message(role=Role.MODEL, content=fold_message(wrappers).content))
        elif role == "user":
            self._read_user(blocks)
        else:
            raise ValueError(f"the role {role!r} is not defined by Converse")

    def _read_user(self, blocks: Sequence[Mapping[str, Any]]) -> None:
        parts: list[ContentPart] = []
        for block in blocks:
            result = as_mapping(block.get("toolResult"))
            if result is None:
                parts.append(read_part(block))
            else:
                self.add_result(
                    read_tool_result(result, self.names.get(as_text(result.get("toolUseId")), ""))
                )
        if parts or not blocks:
            self.add(Message(role=Role.USER, content=tuple(parts)))


def _blocks(content: object) -> list[Mapping[str, Any]]:
    if not isinstance(content, list | tuple):
        raise ValueError(f"content of type {type(content).__name__}, not a list of blocks")
    for position, block in enumerate(cast("Sequence[object]", content)):
        if not isinstance(block, Mapping) or len(cast("Mapping[str, Any]", block)) != 1:
            raise ValueError(f"block {position} is not an object with one member")
    return as_mappings(list(cast("Sequence[object]", content)))

"""Conversion between the common history and messages of the Bedrock Converse API.

The rules of the Converse API are: The system prompt is a separate member. User and assistant messages alternate, and the first
message is a user message. Tool results are at the start of the message that follows their calls. Blank text is invalid. Document
names are unique, and contain only permitted characters. In addition, the models require that a message has tool calls only at its
end, and no reasoning at its end.

Content that the API cannot represent is replaced or omitted, as the following list states. `to_history` restores all other content,
except details such as the names of images.

- ``History.system_message`` is sent separately (see `BedrockConverter.system_prompt`), and is an argument of `to_history`.
  ``History.context`` is sent as the first text of the user.
- Adjacent messages of users and tools, and adjacent messages of models, are merged. `to_history` returns the tool results of a
  merged message as a separate message. If the first message is the model's, a user message with the text
  `BedrockConverter.opening_text` is inserted before it.
- Blank text is omitted. White space at the end of the conversation is removed if the last message is the model's.
- In a message of the model, content after a tool call is sent before the call.
- Reasoning is sent only if Bedrock signed or redacted it. Reasoning at the end of a message is omitted.
- Calls of server tools and their results are sent only if Bedrock ran the tools. If a model's message contains the result of
  another tool, the result is sent in the next user message.
- A data part is sent as JSON in a text block. If the data is a content block of Bedrock, the block itself is sent.
  In a message of the model, a block with a file becomes the text ``[image]``, ``[document]``, ….
- A user's file is sent with its bytes or with an ``s3://`` URL. A text file of an unknown type is sent as plain text. Any other
  file that Bedrock does not accept, and each file of a model, becomes a text block: ``[name](url)`` for a URL, otherwise
  ``[file name, media type, size]``.
- The name of a document is changed if it is invalid or not unique. If a message has documents but no text, the text
  `BedrockConverter.documents_text` is added.
- Invalid tool names are replaced (see `tailrace.wrappers.conversion.tool_names`). Arguments that are not a JSON object are sent
  as ``{"input": arguments}``.
- Tool output that is blank text, or neither text nor a JSON object, is sent as JSON, which `to_history` returns as text.
- Metadata is not sent, except ``metadata["bedrock"]`` of a part: the fields of Bedrock's block that the common format does not
  have.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

from tailrace.wrappers.assembly.complete_message import assemble_message
from tailrace.wrappers.assembly.tool_calls import verbatim_arguments
from tailrace.wrappers.bedrock.chunk_wrapper import BedrockWrapper
from tailrace.wrappers.bedrock.content_blocks import FORMATS, KEY, read_part, read_tool_result
from tailrace.wrappers.bedrock.decoder import wrap_chunk
from tailrace.wrappers.bedrock.events import ConverseEvents
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.files import bare_media_type, file_description
from tailrace.wrappers.conversion.history_converter import HistoryConverter
from tailrace.wrappers.conversion.history_reader import HistoryReader
from tailrace.wrappers.conversion.message_objects import (
    Fields,
    check_calls,
    compact_json,
    own_fields,
    result_output,
)
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

# Block type and format, by media type and by file name extension.
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
        result_status: True to mark failed tool results with ``"status": "error"``, which only models of Anthropic and Amazon
            accept. False to send ``{"error": output}`` instead, which ``to_history`` does not recognize as a failure.

    Attributes:
        opening_text: Text of the user message that is inserted before a first message of the model.
        documents_text: Text that is added to a user message with documents but without text.
    """

    id_pattern: ClassVar[re.Pattern[str] | None] = re.compile(r"[a-zA-Z0-9_-]{1,64}")
    name_rule: ClassVar[NameRule | None] = LETTERS_DIGITS_DASHES
    opening_text: ClassVar[str] = "(The assistant speaks first.)"
    documents_text: ClassVar[str] = "(See the attached documents.)"

    def __init_subclass__(cls, **options: Any) -> None:
        """Accept ``opening`` and ``documents``, the deprecated names of the texts; to be removed in 0.3."""
        super().__init_subclass__(**options)
        cls.opening_text = vars(cls).get("opening", cls.opening_text)
        cls.documents_text = vars(cls).get("documents", cls.documents_text)

    def __init__(self, *, result_status: bool = True) -> None:
        self._result_status = result_status

    def from_history(self, history: History) -> list[Fields]:
        """Return the member ``messages`` of the request: the context, and then the conversation.

        The system message is not included; see `system_prompt`.

        Raises:
            ValueError: A message with a role other than MODEL contains a tool call.
        """
        check_calls(history)
        request = _Request(self, result_status=self._result_status)
        if history.context is not None:
            request.add("user", _text_blocks(history.context))
        for message in history.conversation:
            request.add_message(message)
        return request.messages()

    def system_prompt(self, history: History) -> list[Fields]:
        """Return the member ``system`` of the request; an empty list if the system message is missing or blank."""
        return _text_blocks(history.system_message or "")

    def to_history(
        self, messages: Sequence[Mapping[str, Any]], *, system: Sequence[Mapping[str, Any]] = ()
    ) -> History:
        """Convert the messages of a request to the common history.

        Args:
            messages: The member ``messages`` of the request, as JSON or as boto3's objects (with ``bytes``).
            system: The member ``system`` of the request. Content other than text is ignored.

        Raises:
            ValueError: Converse does not define the role or the content of a message.
        """
        reader = _HistoryReader()
        texts = [as_text(block.get("text")) for block in system if "text" in block]
        if texts:
            reader.add_system("\n\n".join(texts))
        return reader.read(messages)

    def to_message(self, response: Iterable[ChunkWrapper[Any]] | Mapping[str, Any]) -> Message:
        """Convert the chunk wrappers of a stream, or a complete response, to a message.

        Args:
            response: The chunk wrappers of a stream; a response of ``converse``; or an assistant message.
        """
        if isinstance(response, Mapping):
            fields = cast("Mapping[str, Any]", response)
            if "output" not in fields:
                fields = {"output": {"message": fields}}
            return assemble_message(ConverseEvents().wrap_response(fields))
        return assemble_message(response)

    def tool_result_messages(self, results: Sequence[ContentPartToolResult]) -> list[Fields]:
        """Return one user message that has all results; none if there are no results."""
        request = _Request(self, result_status=self._result_status)
        request.add("user", [request.result_block(result) for result in results])
        return request.messages()

    def create_chunk_wrapper(self, chunk: Mapping[str, Any]) -> ChunkWrapper[Any]:
        """Return the first chunk wrapper of one boto3 event; see `tailrace.wrappers.bedrock.wrap_chunk`."""
        wrappers = wrap_chunk(chunk)
        return wrappers[0] if wrappers else BedrockWrapper(chunk)


# --- from the common format -------------------------------------------------------------------------------------


class _Request:
    """Builder of the messages of a request."""

    def __init__(self, converter: BedrockConverter, *, result_status: bool) -> None:
        self._converter = converter
        self._result_status = result_status
        self._messages: list[Fields] = []
        self._names: set[str] = set()  # names of the documents so far, in lower case

    def add(self, role: str, blocks: list[Fields]) -> None:
        """Add blocks to the last message if it has this role; otherwise to a new message."""
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
        """Return the messages. Their blocks are in the order that the API and the models require."""
        if self._messages and self._messages[0]["role"] == "assistant":
            self._messages.insert(0, {"role": "user", "content": _text_blocks(self._converter.opening_text)})
        for message in self._messages:
            content = cast("list[Fields]", message["content"])
            if message["role"] == "assistant":
                content.sort(key=_is_call)
                continue
            content.sort(key=lambda block: "toolResult" not in block)
            if any("document" in block for block in content) and not any(
                "text" in block for block in content
            ):
                content += _text_blocks(self._converter.documents_text)
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
                blocks += _text_blocks(file_description(part))
            elif isinstance(part, ContentPartData):
                kind = as_text(own_fields(part.metadata, KEY).get("type"))
                # Only messages of the user may contain files.
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
            return {"text": file_description(part)}
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
    """Return a text block; none for blank text, which Converse rejects."""
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
    call = as_mapping(block.get("toolUse"))
    return call is not None and call.get("type") is None


def _output_block(output: object) -> Fields:
    if as_mapping(output) is not None:
        return {"json": output}
    if isinstance(output, str) and output.strip():
        return {"text": output}
    return {"text": json.dumps(output, ensure_ascii=False)}


def _format(part: ContentPartFile) -> tuple[str, str] | None:
    """Return the block type and format of a file; None if Converse does not support the file."""
    if part.data is not None and not part.data:
        return None
    if part.url is not None and not part.url.startswith(_S3):
        return None
    media_type = bare_media_type(part.media_type)
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
            self.add(Message(role=Role.MODEL, content=assemble_message(wrappers).content))
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

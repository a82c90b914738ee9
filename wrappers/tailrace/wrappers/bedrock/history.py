"""Between the common history and the messages of Bedrock's Converse API.

Converse wants the system prompt apart (see `BedrockConverter.system_prompt`), users and assistants taking turns, the
user first, results of tools at the head of the message behind their calls, no blank text, and documents with names of
their own and of few characters; models behind it want calls last in their message, and no reasoning at its end.

What the one side cannot say is converted to the nearest thing that the other can. These are all the losses; in all
else ``to_history(from_history(history)) == history``.

- ``History.system_message`` is not among the messages; `BedrockConverter.to_history` takes it beside them. A blank one
  is none. ``History.context`` goes out as the user's first words.
- Neighbouring messages of one side become one: users and tools on the one, models on the other. Coming back, its
  results are a message of role TOOL, and what else stood there one of role USER behind it. A conversation that the model
  begins gets `BedrockConverter.opening` in front.
- Blank text is left out, and so is a message of which nothing remains. Where the model spoke last, white space at the
  very end is left out.
- What the model said after a call to a tool goes before it.
- Reasoning is sent back only as Bedrock sealed it, signed or redacted, and not at a message's end.
- Calls of tools that a provider ran, and their results, are sent back only when they are Bedrock's. The result of any
  other tool that stands in a model's message follows it.
- A data part goes out as its JSON, in a text block; a block of Bedrock's that has no other form as it was.
- A file of the user's goes out by value, or by an ``s3://`` address. Any other, an empty one, and one of a type that
  Converse does not know is named in a text block: a link as ``[name](url)``, else ``[file name, media type, size]``, and
  so is any file of the model's. Text of an unknown type goes out as plain text, and a file without a type as what its
  name says. Images, video and audio lose their name. A document's name loses what Converse does not allow, gets a
  number where it is taken, and comes back with the ending of its format. Beside documents without any text goes
  `BedrockConverter.documents`.
- The name of a called tool is mended where Converse does not allow it (see `tailrace.wrappers.tool_names`). Arguments that are no object go out as
  ``{"input": arguments}``. A call's kind, other than a tool of the provider's, and that its id was made here, are
  forgotten.
- A tool's output that is neither text nor an object, or is blank, goes out as its JSON and comes back as text. The name
  of a tool comes back from the call with the same id.
- Metadata stays here, except ``metadata["bedrock"]`` of a part: what Bedrock sent beyond the common format, which goes
  back as it came.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

from tailrace.wrappers.bedrock.blocks import FORMATS, KEY, read_part, read_tool_result
from tailrace.wrappers.bedrock.chunks import wrap_chunk
from tailrace.wrappers.bedrock.events import ConverseEvents
from tailrace.wrappers.bedrock.wrapper import BedrockWrapper
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.files import essence, file_note
from tailrace.wrappers.folding import fold_message
from tailrace.wrappers.history import HistoryConverter
from tailrace.wrappers.loose_json import as_mapping, as_mappings, as_text
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

Fields = dict[str, Any]

# The type of block and format for a media type, and for the ending of a name.
_BY_TYPE = {media: (kind, name) for kind, formats in FORMATS.items() for name, media in formats.items()}
_BY_ENDING = {
    **{f".{name}": (kind, name) for kind in reversed(tuple(FORMATS)) for name in FORMATS[kind]},
    ".htm": ("document", "html"),
    ".jpg": ("image", "jpeg"),
}
_S3 = "s3://"
_MAX_NAME = 200
_REFUSED_IN_NAMES = re.compile(r"[^A-Za-z0-9 \-()\[\]]+")


class BedrockConverter(HistoryConverter[Fields, Mapping[str, Any]]):
    """Converts conversations to Converse messages and back. Holds no state.

    Args:
        result_status: Say that a tool failed with ``"status": "error"``, which Anthropic's and Amazon's models take
            and others refuse. False: its output goes out as ``{"error": output}`` and comes back as that.

    Attributes:
        id_pattern: The ids of tool calls that Bedrock takes. They are sent as they are.
        opening: What the user says in front of a conversation that the model begins.
        documents: What the user says beside documents that come without any text.
    """

    id_pattern: ClassVar[re.Pattern[str] | None] = re.compile(r"[a-zA-Z0-9_-]{1,64}")
    name_rule: ClassVar[NameRule | None] = LETTERS_DIGITS_DASHES
    opening: ClassVar[str] = "(The assistant speaks first.)"
    documents: ClassVar[str] = "(See the attached documents.)"

    def __init__(self, *, result_status: bool = True) -> None:
        self._result_status = result_status

    def from_history(self, history: History) -> list[Fields]:
        """The request's ``messages``: context, then the conversation. `system_prompt` gives its ``system``.

        Raises:
            ValueError: A tool call stands in a message that is not the model's.
        """
        request = _Request(self, result_status=self._result_status)
        if history.context is not None:
            request.add("user", _text_blocks(history.context))
        for message in history.conversation:
            request.add_message(message)
        return request.messages()

    def system_prompt(self, history: History) -> list[Fields]:
        """The request's ``system``; empty where there is none."""
        return _text_blocks(history.system_message or "")

    def to_history(
        self, messages: Sequence[Mapping[str, Any]], *, system: Sequence[Mapping[str, Any]] = ()
    ) -> History:
        """The common history of a request's messages.

        Args:
            messages: Its ``messages``, as JSON or as boto3 takes them (with bytes as they are).
            system: Its ``system``; only the text in it is kept.

        Raises:
            ValueError: A message has a role, or content of a form, that Converse does not define.
        """
        reader = _HistoryReader()
        for position, message in enumerate(messages):
            try:
                reader.read(message)
            except ValueError as error:
                raise ValueError(f"message {position}: {error}") from None
        texts = [as_text(block.get("text")) for block in system if "text" in block]
        return History(
            system_message="\n\n".join(texts) if texts else None, conversation=tuple(reader.conversation)
        )

    def to_message(self, response: Iterable[ChunkWrapper[Any]] | Mapping[str, Any]) -> Message:
        """The complete message of a stream's wrappers, or of a whole response.

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
        """One message of the user's with all results; none for none."""
        request = _Request(self, result_status=self._result_status)
        request.add("user", [request.result_block(result) for result in results])
        return request.messages()

    def create_chunk_wrapper(self, chunk: Mapping[str, Any]) -> ChunkWrapper[Any]:
        """A wrapper over one of boto3's events; see `tailrace.wrappers.bedrock.wrap_chunk`."""
        wrappers = wrap_chunk(chunk)
        return wrappers[0] if wrappers else BedrockWrapper(chunk)


# --- from the common format -------------------------------------------------------------------------------------


class _Request:
    """The messages of one request while they are put together."""

    def __init__(self, converter: BedrockConverter, *, result_status: bool) -> None:
        self._converter = converter
        self._result_status = result_status
        self._messages: list[Fields] = []
        self._names: set[str] = set()  # of documents, in lower case

    def add(self, role: str, blocks: list[Fields]) -> None:
        """Add blocks to the last message where it is of the same side."""
        if not blocks:
            return
        if self._messages and self._messages[-1]["role"] == role:
            self._messages[-1]["content"] += blocks
        else:
            self._messages.append({"role": role, "content": blocks})

    def add_message(self, message: Message) -> None:
        if message.role is Role.MODEL:
            self._add_answer(message)
            return
        for part in message.content:
            if isinstance(part, ContentPartToolCall):
                raise ValueError(
                    f"the tool call {part.id!r} stands in a message of role {message.role}, not the model's"
                )
        self.add("user", [block for part in message.content for block in self._user_blocks(part)])

    def messages(self) -> list[Fields]:
        """The messages, in the order and with the text that Converse and the models behind it demand."""
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
        own = _own(result)
        fields: Fields = {**own, "toolUseId": result.id}
        output: object = result.output
        if result.is_error and self._result_status:
            fields["status"] = "error"
        elif result.is_error and "error" not in (as_mapping(output) or {}):
            output = {"error": output}
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

    def _add_answer(self, message: Message) -> None:
        kinds = {call.id: (call.kind, KEY in call.metadata) for call in message.tool_calls}
        blocks: list[Fields] = []
        behind: list[Fields] = []
        for part in message.content:
            if isinstance(part, ContentPartToolCall):
                if part.kind != "server" or KEY in part.metadata:
                    blocks.append(_call_block(part))
            elif isinstance(part, ContentPartToolResult):
                kind, own = kinds.get(part.id, ("", False))
                if kind != "server":
                    behind.append(self.result_block(part))
                elif own:
                    blocks.append(self.result_block(part))
            elif isinstance(part, ContentPartReasoning):
                blocks += _reasoning_blocks(part)
            elif isinstance(part, ContentPartFile):
                blocks += _text_blocks(file_note(part))
            elif isinstance(part, ContentPartData):
                kind = as_text(_own(part).get("type"))
                # Only a user may show files.
                blocks += _text_blocks(f"[{kind}]") if kind in FORMATS else [_data_block(part)]
            else:
                blocks += _text_part_blocks(part)
        while blocks and "reasoningContent" in blocks[-1]:
            blocks.pop()
        self.add("assistant", blocks)
        self.add("user", behind)

    def _file_block(self, part: ContentPartFile) -> Fields:
        found = _format(part)
        if found is None:
            return {"text": file_note(part)}
        kind, name = found
        own = _own(part)
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
        """A name that Converse takes, and that no other document of the request has."""
        name = filename.removesuffix(f".{form}")
        name = " ".join(_REFUSED_IN_NAMES.sub(" ", name).split())[:_MAX_NAME].strip() or "document"
        number, unique = 1, name
        while unique.lower() in self._names:
            number += 1
            suffix = f" ({number})"
            unique = name[: _MAX_NAME - len(suffix)] + suffix
        self._names.add(unique.lower())
        return unique


def _own(part: ContentPart) -> Fields:
    return dict(as_mapping(part.metadata.get(KEY)) or {})


def _text_blocks(text: str) -> list[Fields]:
    """A text block; none for blank text, which Converse refuses."""
    return [{"text": text}] if text.strip() else []


def _text_part_blocks(part: ContentPartText) -> list[Fields]:
    own = _own(part)
    blocks = _text_blocks(part.text)
    return [{"citationsContent": {**own, "content": blocks}}] if own and blocks else blocks


def _data_block(part: ContentPartData) -> Fields:
    kind = as_text(_own(part).get("type"))
    return (
        {kind: part.data}
        if kind
        else {"text": json.dumps(part.data, ensure_ascii=False, separators=(",", ":"))}
    )


def _reasoning_blocks(part: ContentPartReasoning) -> list[Fields]:
    own = _own(part)
    if "redactedContent" in own:
        return [{"reasoningContent": {"redactedContent": own["redactedContent"]}}]
    if own and part.signature:
        return [{"reasoningContent": {"reasoningText": {"text": part.text, "signature": part.signature}}}]
    return []


def _call_block(call: ContentPartToolCall) -> Fields:
    name = LETTERS_DIGITS_DASHES.mend(call.name)
    return {"toolUse": {**_own(call), "toolUseId": call.id, "name": name, "input": arguments_object(call)}}


def _is_call(block: Mapping[str, Any]) -> bool:
    """Whether a block is a call that somebody else has to answer."""
    call = as_mapping(block.get("toolUse"))
    return call is not None and call.get("type") is None


def _output_block(output: object) -> Fields:
    if as_mapping(output) is not None:
        return {"json": output}
    if isinstance(output, str) and output.strip():
        return {"text": output}
    return {"text": json.dumps(output, ensure_ascii=False)}


def _format(part: ContentPartFile) -> tuple[str, str] | None:
    """The type of block, and the format, in which a file goes out; None where there is none."""
    if part.data is not None and not part.data:
        return None
    if part.url is not None and not part.url.startswith(_S3):
        return None
    media_type = essence(part.media_type)
    found = _BY_TYPE.get(media_type)
    if found is None and (media_type in ("", "application/octet-stream") or media_type.endswith("/*")):
        name = (part.filename or part.url or "").lower()
        found = next((form for ending, form in _BY_ENDING.items() if name.endswith(ending)), None)
    if found is None and media_type.startswith("text/"):
        found = ("document", "txt")
    return found


# --- to the common format ---------------------------------------------------------------------------------------


class _HistoryReader:
    """Reads a request's messages from first to last; remembers the calls that results will refer to."""

    def __init__(self) -> None:
        self.conversation: list[Message] = []
        self._names: dict[str, str] = {}

    def read(self, message: Mapping[str, Any]) -> None:
        """Add what a message means to the conversation."""
        role = message.get("role")
        blocks = _blocks(message.get("content"))
        if role == "assistant":
            events = ConverseEvents()
            wrappers = [events.wrap_block(block, index) for index, block in enumerate(blocks)]
            answer = Message(role=Role.MODEL, content=fold_message(wrappers).content)
            self._names |= {call.id: call.name for call in answer.tool_calls}
            self.conversation.append(answer)
        elif role == "user":
            self._read_user(blocks)
        else:
            raise ValueError(f"the role {role!r} is not one of Converse")

    def _read_user(self, blocks: Sequence[Mapping[str, Any]]) -> None:
        results: list[ContentPart] = []
        others: list[ContentPart] = []
        for block in blocks:
            result = as_mapping(block.get("toolResult"))
            if result is not None:
                results.append(
                    read_tool_result(result, self._names.get(as_text(result.get("toolUseId")), ""))
                )
            else:
                others.append(read_part(block))
        if results:
            self.conversation.append(Message(role=Role.TOOL, content=tuple(results)))
        if others or not results:
            self.conversation.append(Message(role=Role.USER, content=tuple(others)))


def _blocks(content: object) -> list[Mapping[str, Any]]:
    if not isinstance(content, list | tuple):
        raise ValueError(f"content of type {type(content).__name__}, not a list of blocks")
    for position, block in enumerate(cast("Sequence[object]", content)):
        if not isinstance(block, Mapping) or len(cast("Mapping[str, Any]", block)) != 1:
            raise ValueError(f"block {position} is not an object with one member")
    return as_mappings(list(cast("Sequence[object]", content)))

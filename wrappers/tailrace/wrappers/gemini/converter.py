"""Conversion between the common history and the contents of generateContent.

A *content* is a message of Gemini's API. Contents of the roles ``user`` and ``model`` alternate. The system prompt is a separate
member of the request.

**Repairs.** The converter repairs conversations that Gemini would reject. A call without a result gets an error result. Results
are moved directly after their calls, in the order of the calls. A result without a call becomes text (see
`tailrace.wrappers.conversion.result_repair`). Adjacent messages with the same role become one content. If the first message is
the model's, a user message is inserted before it. The first function call of a content must have a thought signature. Calls of other
providers, and of older Gemini models, have none. They get the signature ``skip_thought_signature_validator``, which Google
documents for this purpose (https://ai.google.dev/gemini-api/docs/thought-signatures). Gemini's own signatures
(``metadata["gemini"]``) are sent unchanged in their original position. Signatures of other providers are not sent.

Content that the API cannot represent is replaced or omitted, as the following list states. `to_history` restores all other content,
except details such as file names and ids.

- `GeminiConverter.to_history` removes the dummy signature and the inserted user message. Other repairs are not undone.
- A message without any part that can be sent is omitted. ``History.context`` becomes the first text of the user.
- Thoughts are sent only in messages of the model, and only if Gemini signed them.
- A data part is sent as JSON in a text part. If it contains a part of Gemini's API, this part is sent unchanged.
- A file is sent with its bytes or its URL. If Gemini cannot fetch the URL (not ``http``, ``https`` or ``gs``), the text
  ``[name](url)`` is sent instead.
- Calls of the kind ``"server"`` and their results are sent only if Gemini created them. All other calls get the kind
  ``"function"``. Arguments that are not a JSON object are sent as ``{"input": text}``. `GeminiModel` sends the
  original text of the arguments, but `to_history` does not restore it.
- If a message of the model contains the result of a function, the result is sent in a content of the role ``user``.
- Metadata is not sent, except ``metadata["gemini"]`` of a part: the fields of Gemini's object that the common format does not have.
"""

import base64
import mimetypes
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel

from tailrace.wrappers.assembly.complete_message import assemble_message
from tailrace.wrappers.assembly.tool_calls import arguments_object
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.files import file_description, read_data_url
from tailrace.wrappers.conversion.history_converter import HistoryConverter
from tailrace.wrappers.conversion.history_reader import HistoryReader
from tailrace.wrappers.conversion.message_objects import (
    check_calls,
    compact_json,
    merged_fields,
    own_metadata,
)
from tailrace.wrappers.conversion.result_repair import with_repaired_results
from tailrace.wrappers.conversion.tool_ids import with_matched_ids
from tailrace.wrappers.conversion.tool_names import NameRule
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_mappings, as_text
from tailrace.wrappers.gemini.content_parts import (
    CallCounter,
    Fields,
    GeminiPartWrapper,
    PartReader,
    read_content,
)
from tailrace.wrappers.gemini.decoder import GeminiDecoder, read_fields
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
    from google.genai.types import Content, GenerateContentResponse, Part

DUMMY_SIGNATURE = "skip_thought_signature_validator"
"""The signature for calls of other models. Google documents this value."""

OPENING = "(The conversation begins with the model's words.)"
"""Text of the user message that is inserted before a first message of the model."""

_UNKNOWN = "unknown"
_FETCHABLE_SCHEMES = ("http://", "https://", "gs://")
_SERVER_CALLS = ("executableCode", "toolCall")
_SERVER_RESULTS = ("codeExecutionResult", "toolResponse")


class GeminiConverter(HistoryConverter[Fields, "Part | Mapping[str, Any]"]):
    """Stateless converter between conversations and generateContent contents."""

    name_rule: ClassVar[NameRule | None] = NameRule(re.compile(r"[^a-zA-Z0-9_.-]"), letter_first=True)

    def from_history(self, history: History) -> list[Fields]:
        """Return the member ``contents`` of the request as JSON objects: the context, and then the conversation.

        Raises:
            ValueError: A message with a role other than MODEL contains a tool call.
        """
        check_calls(history)
        history = with_repaired_results(_separate_results(with_matched_ids(history)))
        writer = _ContentsWriter(history)
        if history.context:
            writer.add("user", [{"text": history.context}])
        for message in history.conversation:
            writer.write(message)
        return writer.contents

    def system_instruction(self, history: History) -> Fields | None:
        """Return the member ``systemInstruction`` of the request; None if the system prompt is missing or empty."""
        return {"parts": [{"text": history.system_message}]} if history.system_message else None

    def to_history(
        self,
        messages: "Sequence[Mapping[str, Any] | Content]",
        system_instruction: "str | Mapping[str, Any] | Content | None" = None,
    ) -> History:
        """Convert the contents of a request to the common history.

        Args:
            messages: The contents, as JSON objects of the API or as objects of the ``google-genai`` package.
            system_instruction: The system prompt of the request, as text or as a content; None for none.

        Raises:
            ValueError: Gemini does not define the role of a content.
        """
        reader = _HistoryReader()
        if isinstance(system_instruction, str):
            reader.add_system(system_instruction)
        elif system_instruction is not None:
            parts = as_mappings(read_fields(system_instruction).get("parts"))
            reader.add_system("\n\n".join(as_text(part.get("text")) for part in parts))
        return reader.read(messages)

    def to_message(
        self,
        response: "Iterable[ChunkWrapper[Any]] | Content | GenerateContentResponse | Mapping[str, Any]",
        *,
        choice: int | None = 0,
    ) -> Message:
        """Convert the chunk wrappers of a stream, or a complete response, to a message.

        Args:
            response: The chunk wrappers of a stream, a ``GenerateContentResponse``, an interaction, or a content of the model (an
                object of the ``google-genai`` package or a JSON object).
            choice: Index of the candidate to read; None to merge all candidates.
        """
        if not isinstance(response, Mapping | BaseModel):
            return assemble_message(response, choice=choice)
        fields = read_fields(cast("object", response))
        if "parts" in fields:
            fields = {"candidates": [{"content": fields}]}
        decoder = GeminiDecoder()
        return assemble_message(decoder.wrap(fields) + decoder.flush(), choice=choice)

    def tool_result_messages(self, results: Sequence[ContentPartToolResult]) -> list[Fields]:
        """Return one content that has a ``functionResponse`` for each result; none without results."""
        return [{"role": "user", "parts": [_result_part(result) for result in results]}] if results else []

    def create_chunk_wrapper(self, chunk: "Part | Mapping[str, Any]") -> GeminiPartWrapper:
        """Wrap one part, which is an object of the ``google-genai`` package or a JSON object."""
        return PartReader(0, None).read(read_fields(chunk))


# --- from the common format -------------------------------------------------------------------------------------


class _ContentsWriter:
    """Builder of the contents of a request.

    Args:
        history: A history in which each result has a call, and messages of the model contain no results of functions.
    """

    def __init__(self, history: History) -> None:
        self.contents: list[Fields] = []
        self._calls = {call.id: call for message in history.conversation for call in message.tool_calls}
        self._order = {call_id: position for position, call_id in enumerate(self._calls)}

    def add(self, role: str, parts: list[Fields]) -> None:
        """Add parts to the last content if it has this role; otherwise to a new content."""
        if not parts:
            return
        if not self.contents or self.contents[-1]["role"] != role:
            if role == "model" and not self.contents:
                self.contents.append({"role": "user", "parts": [{"text": OPENING}]})
            self.contents.append({"role": role, "parts": []})
        self.contents[-1]["parts"] += parts

    def write(self, message: Message) -> None:
        if message.role is Role.MODEL:
            self._write_model(message)
            return
        other_parts: list[Fields] = []
        for part in message.content:
            if isinstance(part, ContentPartText | ContentPartFile | ContentPartData):
                other_parts += _parts(part)
        # Results of server tools in messages of users and tools belong to no function.
        functions = [part for part in message.tool_results if self._calls[part.id].kind != "server"]
        self._add_results(functions)
        self.add("user", other_parts)

    def _write_model(self, message: Message) -> None:
        parts: list[Fields] = []
        for part in message.content:
            if isinstance(part, ContentPartToolCall):
                parts += self._call_parts(part)
            elif not isinstance(part, ContentPartToolResult):
                parts += _parts(part)
            elif kind := _kind(part, _SERVER_RESULTS):
                parts.append(_server_result(part, kind))
        self.add("model", parts)
        if parts:
            _ensure_signature(self.contents[-1]["parts"])

    def _add_results(self, results: Sequence[ContentPartToolResult]) -> None:
        """Add results in the order of their calls. Gemini matches results without ids by their order."""
        parts: list[Fields] = []
        for result in sorted(results, key=lambda result: self._order[result.id]):
            call = self._calls[result.id]
            part = _result_part(result)
            part["functionResponse"]["name"] = call.name or _UNKNOWN
            if call.synthetic_id:
                del part["functionResponse"]["id"]
            parts.append(part)
        self.add("user", parts)

    def _call_parts(self, call: ContentPartToolCall) -> list[Fields]:
        own = _own(call)
        if call.kind == "server":
            kind = _kind(call, _SERVER_CALLS)
            if not kind:
                return []
            fields = (
                call.arguments
                if kind == "executableCode"
                else {"toolType": call.name, "args": call.arguments}
            )
            return [{**own, kind: {**own[kind], **fields}}]
        function: Fields = {"name": call.name or _UNKNOWN, "args": arguments_object(call)}
        if call.id and not call.synthetic_id:
            function = {"id": call.id, **function}
        return [merged_fields(own, {"functionCall": function})]


def _separate_results(history: History) -> History:
    """Move the results of functions in a message of the model to a separate message after it."""
    functions = {
        call.id for message in history.conversation for call in message.tool_calls if call.kind != "server"
    }
    conversation: list[Message] = []
    for message in history.conversation:
        results = tuple(result for result in message.tool_results if result.id in functions)
        if message.role is Role.MODEL and results:
            remaining = tuple(
                part
                for part in message.content
                if not (isinstance(part, ContentPartToolResult) and part.id in functions)
            )
            conversation += [
                message.model_copy(update={"content": remaining}),
                Message(role=Role.TOOL, content=results),
            ]
        else:
            conversation.append(message)
    return history.model_copy(update={"conversation": tuple(conversation)})


def _parts(
    part: ContentPartText | ContentPartReasoning | ContentPartFile | ContentPartData,
) -> list[Fields]:
    """Convert a part that is neither a call nor a result. Return an empty list if the part is not sent."""
    own = _own(part)
    if isinstance(part, ContentPartText):
        return [{**own, "text": part.text}] if part.text or own else []
    if isinstance(part, ContentPartReasoning):
        return [{**own, "text": part.text, "thought": True}] if "thoughtSignature" in own else []
    if isinstance(part, ContentPartFile):
        return _file_parts(part, own)
    fields = as_mapping(part.data)
    if own.get("part") is True and fields is not None:
        return [dict(fields)]
    return [{"text": compact_json(part.data)}]


def _file_parts(file: ContentPartFile, own: Fields) -> list[Fields]:
    if own.get("thought") is True and "thoughtSignature" not in own:
        return []
    media_type, data = file.media_type, file.data
    if file.url is not None and file.url.startswith("data:"):
        url_type, data = read_data_url(file.url)
        media_type = url_type or media_type
    if data is not None:
        media_type = media_type or mimetypes.guess_type(file.filename)[0] or "application/octet-stream"
        inline = {"mimeType": media_type, "data": base64.b64encode(data).decode("ascii")}
        return [merged_fields(own, {"inlineData": inline})]
    url = file.url or ""
    if not url.startswith(_FETCHABLE_SCHEMES):
        return [{"text": file_description(file)}]
    link = {"fileUri": url}
    if media_type and "*" not in media_type:
        link = {"mimeType": media_type, "fileUri": url}
    return [merged_fields(own, {"fileData": link})]


def _result_part(result: ContentPartToolResult) -> Fields:
    """Return a part with a ``functionResponse``. Its member ``response`` is always an object."""
    fields = as_mapping(result.output)
    if result.is_error:
        fields = {"error": result.output}
    elif fields is None or set(fields) in ({"output"}, {"error"}):
        fields = {"output": result.output}
    response: Fields = {"name": result.name or _UNKNOWN, "response": fields}
    if result.id:
        response = {"id": result.id, **response}
    return merged_fields(_own(result), {"functionResponse": response})


def _server_result(result: ContentPartToolResult, kind: str) -> Fields:
    own = _own(result)
    fields = {"output": result.output}
    if kind == "toolResponse":
        fields = {"toolType": result.name, "response": result.output}
    return {**own, kind: {**own[kind], **fields}}


def _ensure_signature(parts: Sequence[Fields]) -> None:
    """If the first function call has no signature, add the dummy signature. Other calls need none."""
    call = next((part for part in parts if "functionCall" in part), None)
    if call is not None and not call.get("thoughtSignature"):
        call["thoughtSignature"] = DUMMY_SIGNATURE


def _own(part: ContentPart) -> Fields:
    """Return the Gemini fields in the metadata of a part, without nulls."""
    own = as_mapping(part.metadata.get("gemini")) or {}
    return {name: value for name, value in own.items() if value is not None}


def _kind(part: ContentPart, kinds: Iterable[str]) -> str:
    """Return the type of a part that Gemini created if it is one of ``kinds``; otherwise empty."""
    own = _own(part)
    return next((kind for kind in kinds if isinstance(own.get(kind), dict)), "")


# --- to the common format ---------------------------------------------------------------------------------------


class _HistoryReader(HistoryReader):
    entry = "content"

    def __init__(self) -> None:
        super().__init__()
        self._first = True

    def read_message(self, message: object) -> None:
        fields = read_fields(message)
        role = fields.get("role") or "user"
        parts = [dict(part) for part in as_mappings(fields.get("parts"))]
        first, self._first = self._first, False
        if role == "model":
            self.add(_read_model(parts))
        elif role not in ("user", "function"):
            raise ValueError(f"the role {role!r} is not defined by generateContent")
        elif not first or parts != [{"text": OPENING}]:
            self._read_user(parts)

    def _read_user(self, parts: Sequence[Fields]) -> None:
        other_parts: list[ContentPart] = []
        for part in parts:
            if as_mapping(part.get("functionResponse")) is None and isinstance(part.get("text"), str):
                other_parts.append(
                    ContentPartText(text=part["text"], metadata=own_metadata("gemini", part, "text"))
                )
                continue
            content = read_content(part)
            if isinstance(content, ContentPartToolResult):
                # A result without an id belongs to the first open call of the same tool.
                self.add_result(content.model_copy(update={"id": self.call_id(content.id, content.name)}))
            else:
                other_parts.append(content)
        if other_parts or not parts:
            self.add(Message(role=Role.USER, content=tuple(other_parts)))


def _read_model(parts: Sequence[Fields]) -> Message:
    reader = PartReader(0, CallCounter(), separate=True)
    for part in parts:
        # In objects of the package, `read_fields` has replaced ``_`` with ``/``.
        if as_text(part.get("thoughtSignature")).replace("/", "_") == DUMMY_SIGNATURE:
            del part["thoughtSignature"]
    return assemble_message(reader.read(part) for part in parts)

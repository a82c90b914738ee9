"""Between the common history and the contents of generateContent requests.

A request has the system prompt apart: `GeminiConverter.system_instruction` makes it, and `GeminiConverter.to_history`
takes it. Contents alternate between the roles ``user`` and ``model``.

**What is mended on the way out**, since Gemini refuses the request otherwise: calls without a result get one, results
stand directly behind their calls and in their order, and results of nothing become text (see
`tailrace.wrappers.tool_ids`); neighbours of one role become one content; a conversation that begins with the model gets
a word of the user before it; the first function call of a content has a thought signature. Where the model gave none
(another provider's model made the call, or an older Gemini) it is ``skip_thought_signature_validator``, the value that
Google documents for conversations that were begun elsewhere
(https://ai.google.dev/gemini-api/docs/thought-signatures). Real signatures are sent exactly where they stood, and only
those that Gemini made: what stands in metadata under ``"gemini"``.

What the one side cannot say is converted to the nearest thing that the other can. These are all the losses; in all
else ``to_history(from_history(history), system_instruction(history)) == history``.

- What is mended stays so, except the dummy signature and the opening word.
- Messages of one role that stand together come back as one (a user's, behind the results of tools), those without any
  part that can be sent not at all. ``History.context`` is the first of a user's words. An empty system prompt is none.
- Thoughts are left out, unless they are the model's and signed, and so are empty texts.
- A data part goes out as its JSON, in a text part.
- A file loses its name. One by value without a type gets that of its name, else ``application/octet-stream``. A link
  keeps only a type without wildcards; a data URL becomes a file by value, and one that Gemini cannot fetch (neither
  http, https nor gs) is named in a text part as ``[name](url)``.
- An id that was made here is not sent, and comes back as another. A call or result without a name has the name
  ``unknown``, and a result has that of its call.
- Calls of kind ``"server"``, and their results, go out only if Gemini made them. Of all other kinds a call comes back as
  ``"function"``. Arguments that are kept as text go out as ``{"input": text}``.
- The result of a function that stands in a model's message goes out as one of the user's.
- Metadata stays here, except ``metadata["gemini"]`` of a part: further fields of Gemini's object, kept and sent as they
  are.
"""

import base64
import json
import mimetypes
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.files import file_note, read_data_url
from tailrace.wrappers.folding import fold_message
from tailrace.wrappers.gemini.chunks import GeminiDecoder, read_fields
from tailrace.wrappers.gemini.parts import CallCounter, Fields, GeminiPartWrapper, PartReader, read_whole
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
from tailrace.wrappers.tool_ids import with_answers, with_matched_ids
from tailrace.wrappers.tool_names import NameRule

if TYPE_CHECKING:
    from google.genai.types import Content, GenerateContentResponse, Part

DUMMY_SIGNATURE = "skip_thought_signature_validator"
"""What Google documents as the signature of calls that its model has not made."""

OPENING = "(The conversation begins with the model's words.)"
"""What the user says first where a conversation begins with the model."""

_UNKNOWN = "unknown"
_FETCHED = ("http://", "https://", "gs://")
_SERVER_CALLS = ("executableCode", "toolCall")
_SERVER_RESULTS = ("codeExecutionResult", "toolResponse")


class GeminiConverter(HistoryConverter[Fields, "Part | Mapping[str, Any]"]):
    """Converts conversations to the contents of generateContent and back. Holds no state."""

    name_rule: ClassVar[NameRule | None] = NameRule(re.compile(r"[^a-zA-Z0-9_.-]"), letter_first=True)

    def from_history(self, history: History) -> list[Fields]:
        """The request's ``contents``, as JSON objects: context, then the conversation.

        The system prompt is no content: see `system_instruction`.

        Raises:
            ValueError: A tool call stands in a message that is not the model's.
        """
        history = with_answers(_with_results_apart(with_matched_ids(history)))
        writer = _ContentsWriter(history)
        if history.context:
            writer.add("user", [{"text": history.context}])
        for position, message in enumerate(history.conversation):
            try:
                writer.write(message)
            except ValueError as error:
                raise ValueError(f"message {position}: {error}") from None
        return writer.contents

    def system_instruction(self, history: History) -> Fields | None:
        """The request's ``systemInstruction``; None where there is no system prompt, or an empty one."""
        return {"parts": [{"text": history.system_message}]} if history.system_message else None

    def to_history(
        self,
        messages: "Sequence[Mapping[str, Any] | Content]",
        system_instruction: "str | Mapping[str, Any] | Content | None" = None,
    ) -> History:
        """The common history of a request's contents.

        Args:
            messages: JSON objects as the API has them, or the google-genai package's objects.
            system_instruction: The request's system prompt, as text or as a content.

        Raises:
            ValueError: A content has a role that Gemini does not define.
        """
        if isinstance(system_instruction, str) or system_instruction is None:
            system = system_instruction
        else:
            parts = as_mappings(read_fields(system_instruction).get("parts"))
            system = "\n\n".join(as_text(part.get("text")) for part in parts)
        return History(system_message=system, conversation=_read_contents(messages))

    def to_message(
        self,
        response: "Iterable[ChunkWrapper[Any]] | Content | GenerateContentResponse | Mapping[str, Any]",
        *,
        choice: int | None = 0,
    ) -> Message:
        """The complete message of a stream's wrappers, or of a whole response.

        Args:
            response: Wrappers; a ``GenerateContentResponse`` or an interaction, or its JSON object; a content of
                the model's or its JSON object.
            choice: The index of the candidate; None when all that came is one answer.
        """
        if not isinstance(response, Mapping | BaseModel):
            return fold_message(response, choice=choice)
        fields = read_fields(cast("object", response))
        if "parts" in fields:
            fields = {"candidates": [{"content": fields}]}
        decoder = GeminiDecoder()
        return fold_message(decoder.wrap(fields) + decoder.rest(), choice=choice)

    def tool_result_messages(self, results: Sequence[ContentPartToolResult]) -> list[Fields]:
        """One content with a ``functionResponse`` for each result, with the ids that the results have."""
        return [{"role": "user", "parts": [_result_part(result) for result in results]}] if results else []

    def create_chunk_wrapper(self, chunk: "Part | Mapping[str, Any]") -> GeminiPartWrapper:
        """A wrapper over one part: the google-genai package's object, or its JSON object."""
        return PartReader(0, None).read(read_fields(chunk))


# --- from the common format -------------------------------------------------------------------------------------


class _ContentsWriter:
    """Writes contents message by message.

    Args:
        history: One whose results all answer a call, those of functions behind the model's messages.

    Attributes:
        contents: What was written.
    """

    def __init__(self, history: History) -> None:
        self.contents: list[Fields] = []
        self._calls = {call.id: call for message in history.conversation for call in message.tool_calls}
        self._order = {call_id: position for position, call_id in enumerate(self._calls)}

    def add(self, role: str, parts: list[Fields]) -> None:
        """Add parts; to the last content where that is of the same role."""
        if not parts:
            return
        if not self.contents or self.contents[-1]["role"] != role:
            if role == "model" and not self.contents:
                self.contents.append({"role": "user", "parts": [{"text": OPENING}]})
            self.contents.append({"role": role, "parts": []})
        self.contents[-1]["parts"] += parts

    def write(self, message: Message) -> None:
        """Add what a message holds."""
        if message.role is Role.MODEL:
            self._write_model(message)
            return
        others: list[Fields] = []
        for part in message.content:
            if isinstance(part, ContentPartToolCall):
                raise ValueError(
                    f"the tool call {part.id!r} stands in a message of role {message.role}, not the model's"
                )
            # Nobody thinks but the model.
            if not isinstance(part, ContentPartToolResult | ContentPartReasoning):
                others += _parts(part)
        # What a provider ran it has answered among the model's words: elsewhere it answers no function.
        functions = [part for part in message.tool_results if self._calls[part.id].kind != "server"]
        self._add_results(functions)
        self.add("user", others)

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
            _sign(self.contents[-1]["parts"])

    def _add_results(self, results: Sequence[ContentPartToolResult]) -> None:
        """Add results, in the order of their calls: those without ids are told apart by nothing else."""
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
        return [_merge(own, {"functionCall": function})]


def _with_results_apart(history: History) -> History:
    """The history with the results of functions that stand among the model's words in a message behind these."""
    functions = {
        call.id for message in history.conversation for call in message.tool_calls if call.kind != "server"
    }
    conversation: list[Message] = []
    for message in history.conversation:
        answers = tuple(result for result in message.tool_results if result.id in functions)
        if message.role is Role.MODEL and answers:
            said = tuple(
                part
                for part in message.content
                if not (isinstance(part, ContentPartToolResult) and part.id in functions)
            )
            conversation += [
                message.model_copy(update={"content": said}),
                Message(role=Role.TOOL, content=answers),
            ]
        else:
            conversation.append(message)
    return history.model_copy(update={"conversation": tuple(conversation)})


def _parts(
    part: ContentPartText | ContentPartReasoning | ContentPartFile | ContentPartData,
) -> list[Fields]:
    """A part that is no call and no result; none where it is left out."""
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
    return [{"text": json.dumps(part.data, ensure_ascii=False, separators=(",", ":"))}]


def _file_parts(file: ContentPartFile, own: Fields) -> list[Fields]:
    if own.get("thought") is True and "thoughtSignature" not in own:
        return []
    media_type, data = file.media_type, file.data
    if file.url is not None and file.url.startswith("data:"):
        said, data = read_data_url(file.url)
        media_type = said or media_type
    if data is not None:
        media_type = media_type or mimetypes.guess_type(file.filename)[0] or "application/octet-stream"
        inline = {"mimeType": media_type, "data": base64.b64encode(data).decode("ascii")}
        return [_merge(own, {"inlineData": inline})]
    url = file.url or ""
    if not url.startswith(_FETCHED):
        return [{"text": file_note(file)}]
    linked = {"fileUri": url}
    if media_type and "*" not in media_type:
        linked = {"mimeType": media_type, "fileUri": url}
    return [_merge(own, {"fileData": linked})]


def _result_part(result: ContentPartToolResult) -> Fields:
    """A result as a ``functionResponse``, whose ``response`` has to be an object."""
    fields = as_mapping(result.output)
    if result.is_error:
        fields = {"error": result.output}
    elif fields is None or set(fields) in ({"output"}, {"error"}):
        fields = {"output": result.output}
    response: Fields = {"name": result.name or _UNKNOWN, "response": fields}
    if result.id:
        response = {"id": result.id, **response}
    return _merge(_own(result), {"functionResponse": response})


def _server_result(result: ContentPartToolResult, kind: str) -> Fields:
    own = _own(result)
    fields = {"output": result.output}
    if kind == "toolResponse":
        fields = {"toolType": result.name, "response": result.output}
    return {**own, kind: {**own[kind], **fields}}


def _sign(parts: Sequence[Fields]) -> None:
    """See to it that the first function call has a signature: Gemini asks for that one alone."""
    call = next((part for part in parts if "functionCall" in part), None)
    if call is not None and not call.get("thoughtSignature"):
        call["thoughtSignature"] = DUMMY_SIGNATURE


def _own(part: ContentPart) -> Fields:
    """The fields of Gemini's own that a part has."""
    own = as_mapping(part.metadata.get("gemini")) or {}
    return {name: value for name, value in own.items() if value is not None}


def _kind(part: ContentPart, kinds: Iterable[str]) -> str:
    """Which of these kinds a part of Gemini's was; none for a part that Gemini did not make."""
    own = _own(part)
    return next((kind for kind in kinds if isinstance(own.get(kind), dict)), "")


def _merge(own: Fields, fields: Fields) -> Fields:
    """``fields`` with those of Gemini's own beside them, inside objects too; ours win."""
    merged = {**own, **fields}
    for name, value in fields.items():
        if isinstance(own.get(name), dict):
            merged[name] = {**own[name], **value}
    return merged


# --- to the common format ---------------------------------------------------------------------------------------


def _read_contents(contents: Iterable[object]) -> tuple[Message, ...]:
    conversation: list[Message] = []
    unanswered: list[ContentPartToolCall] = []
    for position, content in enumerate(contents):
        fields = read_fields(content)
        role = fields.get("role") or "user"
        parts = [dict(part) for part in as_mappings(fields.get("parts"))]
        if role == "model":
            message = _read_model(parts)
            unanswered = [call for call in message.tool_calls if call.kind != "server"]
            conversation.append(message)
        elif role in ("user", "function"):
            if position == 0 and parts == [{"text": OPENING}]:
                continue
            conversation += _read_user(parts, unanswered)
        else:
            raise ValueError(f"content {position}: the role {role!r} is not one of Gemini")
    return tuple(conversation)


def _read_model(parts: Sequence[Fields]) -> Message:
    reader = PartReader(0, CallCounter(), separate=True)
    for part in parts:
        # The package knows it as the bytes that it would be in base64.
        if as_text(part.get("thoughtSignature")).replace("/", "_") == DUMMY_SIGNATURE:
            del part["thoughtSignature"]
    return fold_message(reader.read(part) for part in parts)


def _read_user(parts: Sequence[Fields], unanswered: list[ContentPartToolCall]) -> list[Message]:
    """The message with the results of tools, and that with everything else."""
    results: list[ContentPart] = []
    said: list[ContentPart] = []
    for part in parts:
        if as_mapping(part.get("functionResponse")) is None and isinstance(part.get("text"), str):
            own = {name: value for name, value in part.items() if name != "text" and value is not None}
            said.append(ContentPartText(text=part["text"], metadata={"gemini": own} if own else {}))
            continue
        whole = read_whole(part)
        if isinstance(whole, ContentPartToolResult):
            results.append(_matched(whole, unanswered))
        else:
            said.append(whole)
    messages: list[Message] = []
    if results:
        messages.append(Message(role=Role.TOOL, content=tuple(results)))
    if said or not results:
        messages.append(Message(role=Role.USER, content=tuple(said)))
    return messages


def _matched(result: ContentPartToolResult, unanswered: list[ContentPartToolCall]) -> ContentPartToolResult:
    """The result with the id of the call that it answers: of the first of its name where it has none."""
    call = next(
        (call for call in unanswered if call.id == result.id or (not result.id and call.name == result.name)),
        None,
    )
    if call is None:
        return result
    unanswered.remove(call)
    return result if result.id else result.model_copy(update={"id": call.id})

"""Between the common history and the messages of Chat Completions requests.

What the one side cannot say is converted to the nearest thing that the other can. These are all the losses; in all
else ``to_history(from_history(history)) == history``.

- ``History.context`` goes out as a user message, and comes back as one.
- Reasoning goes back only to the server that it came from, and only where that wants it: text in a turn in which the
  model called tools, under the name that it came under, and what the server sealed (see
  `tailrace.wrappers.openai.reasoning`). It comes back in front of the answer, in one part for each name.
- A data part goes out as its JSON, in a text part.
- A file goes out as an image, audio (WAV, MP3) or file part. One that has no such form is named in a text part: a
  link that is not an image as ``[name](url)``, a file of the model's as ``[file name, media type, size]``. Images,
  audio and uploaded files lose their name; a file without a name or a type gets one.
- A model's text goes out before its tool calls, wherever it stood, and comes back as one part.
- A call's arguments that are no object go out as ``{"input": text}``: servers that parse them would refuse the
  conversation.
- A tool's output that is not text goes out as its JSON, that of a failed tool as ``{"error": output}``; both come
  back as text. The name of a tool comes back from the call with the same id.
- In a message that mixes tool results with other parts, these become a message of their own.
- Calls of tools that another provider ran by itself (``kind`` ``"server"``) are left out, and so are the results that
  stand in the model's message with them: nobody was to answer them, and the API knows no such tools. A message of the
  model's of which neither text nor calls remain is left out: servers refuse an answer that says nothing.
- Metadata stays here, except a model's ``refusal``, and ``metadata["openai"]`` of a message or part: further fields of
  OpenAI's object, kept and sent as they are (a call's thought signature must be). What other providers' formats keep
  under their names is never sent. That a call came in the legacy form is not sent either: it goes back as a tool call.

The other way, system and developer messages are joined in one, the legacy function role and ``function_call`` become
tool calls and results, and tool messages that stand together become one.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.files import file_note
from tailrace.wrappers.folding import fold_message
from tailrace.wrappers.history import HistoryConverter
from tailrace.wrappers.loose_json import as_index, as_mappings
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
)
from tailrace.wrappers.openai.chunks import ChoiceDelta, ChoiceDeltaWrapper, wrap_chunk
from tailrace.wrappers.openai.files import file_param, file_part, own_metadata
from tailrace.wrappers.openai.reasoning import calls_for_others, reasoning_fields
from tailrace.wrappers.tool_calls import arguments_json
from tailrace.wrappers.tool_names import LETTERS_DIGITS_DASHES, NameRule

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionMessageParam
    from openai.types.chat.chat_completion_chunk import ChoiceDelta as PackageChoiceDelta

Fields = dict[str, Any]


class OpenAIConverter(HistoryConverter["ChatCompletionMessageParam", "ChoiceDelta | PackageChoiceDelta"]):
    """Converts conversations to the messages of Chat Completions and back. Holds no state.

    Args:
        reasoning_field: The only field in which the server takes reasoning, ``""`` if it takes none; None where it takes
            back what it gave, as most do.
    """

    id_pattern: ClassVar[re.Pattern[str] | None] = re.compile(r"[^\x00-\x1f]{1,64}")
    name_rule: ClassVar[NameRule | None] = LETTERS_DIGITS_DASHES

    def __init__(self, *, reasoning_field: str | None = None) -> None:
        self._reasoning_field = reasoning_field

    def from_history(self, history: History) -> "list[ChatCompletionMessageParam]":
        """The request's messages: system, then context, then the conversation; content as lists of parts.

        Raises:
            ValueError: A tool call stands in a message that is not the model's.
        """
        messages: list[Fields] = []
        if history.system_message is not None:
            messages.append({"role": "system", "content": [_text_param(history.system_message)]})
        if history.context is not None:
            messages.append({"role": "user", "content": [_text_param(history.context)]})
        reasoning = reasoning_fields(history.conversation, self._reasoning_field)
        for message, sent_back in zip(history.conversation, reasoning, strict=True):
            if message.role is Role.MODEL:
                called = {call.id for call in calls_for_others(message)}
                answered = [_tool_message(part) for part in message.tool_results if part.id in called]
                messages += [*_assistant_message(message, sent_back), *answered]
            else:
                # The API wants results directly after the calls, so what else was said follows them.
                results = [_tool_message(part) for part in message.tool_results]
                messages += [*results, *_user_message(message)]
        return cast("list[ChatCompletionMessageParam]", messages)

    def to_history(self, messages: "Sequence[ChatCompletionMessageParam | ChatCompletionMessage]") -> History:
        """The common history of a request's messages (or of the package's answers among them).

        Raises:
            ValueError: A message has a role, or a content part a type, that Chat Completions does not define.
        """
        return _HistoryReader(self).read(messages)

    def to_message(
        self,
        response: "Iterable[ChunkWrapper[Any]] | ChatCompletion | ChatCompletionMessage | Mapping[str, Any]",
        *,
        choice: int | None = 0,
    ) -> Message:
        """The complete message of a stream's wrappers, or of a whole response.

        Args:
            response: Wrappers; a ``ChatCompletion`` or its JSON object; an assistant message or its JSON
                object.
            choice: Which of several answers, by its index; None when all that came is one answer, though the server
                spread it over several choices. The first, unless told otherwise. One that is not there is empty.
        """
        if isinstance(response, Mapping | BaseModel):
            choices = _choices(_fields(cast("object", response)), choice)
            return fold_message(wrap_chunk({"choices": choices}) if choices else ())
        return fold_message(response, choice=choice)

    def tool_result_messages(
        self, results: Sequence[ContentPartToolResult]
    ) -> "list[ChatCompletionMessageParam]":
        """One ``tool`` message for each result."""
        return cast("list[ChatCompletionMessageParam]", [_tool_message(result) for result in results])

    def create_chunk_wrapper(self, chunk: "ChoiceDelta | PackageChoiceDelta") -> ChoiceDeltaWrapper:
        """A wrapper over one delta of the openai package, or of our decoder."""
        return ChoiceDeltaWrapper(chunk)


# --- from the common format -------------------------------------------------------------------------------------


def arguments_text(call: ContentPartToolCall) -> str:
    """A call's arguments as the text that Chat Completions carries: the model's own where it was kept."""
    if call.arguments_text is not None:
        return call.arguments_text
    if call.kind == "custom" and not call.arguments:
        return ""
    return json.dumps(call.arguments, ensure_ascii=False)


def tool_call_param(call: ContentPartToolCall, arguments: str | None = None) -> Fields:
    """One entry of ``tool_calls``, with the further fields of Chat Completions that the call came with.

    Args:
        call: The call.
        arguments: Its arguments, if not as the model wrote them; a custom tool's input is always that.
    """
    own = _own_fields(call.metadata)
    own.pop("legacy", None)
    if call.kind == "custom":
        return _merge(
            own,
            {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": arguments_text(call)}},
        )
    function = {"name": call.name, "arguments": arguments_text(call) if arguments is None else arguments}
    return _merge(own, {"id": call.id, "type": call.kind, "function": function})


def content_param(part: ContentPartText | ContentPartData | ContentPartFile) -> Fields:
    """One entry of a user message's ``content``; the module's docstring says what becomes of each part."""
    if isinstance(part, ContentPartText):
        return _merge(_own_fields(part.metadata), _text_param(part.text))
    if isinstance(part, ContentPartData):
        return _text_param(_compact_json(part.data))
    fields = file_param(part)
    if fields is None:
        return _text_param(file_note(part))
    return _merge(_own_fields(part.metadata), fields)


def _text_param(text: str) -> Fields:
    return {"type": "text", "text": text}


def _user_message(message: Message) -> list[Fields]:
    """The user message for what a message holds besides tool results; none when that is nothing."""
    content: list[Fields] = []
    for part in message.content:
        if isinstance(part, ContentPartToolCall):
            raise ValueError(
                f"the tool call {part.id!r} stands in a message of role {message.role}, not the model's"
            )
        if isinstance(part, ContentPartText | ContentPartData | ContentPartFile):
            content.append(content_param(part))
    if not content and (message.role is Role.TOOL or message.tool_results):
        return []
    return [_merge(_own_fields(message.metadata), {"role": "user", "content": content or ""})]


def _assistant_message(message: Message, reasoning: Mapping[str, Any]) -> list[Fields]:
    """The model's message, with the fields in which its reasoning goes back; none where nothing is left of it."""
    content: list[Fields] = []
    for part in message.content:
        if isinstance(part, ContentPartFile):
            content.append(_text_param(file_note(part)))
        elif isinstance(part, ContentPartText | ContentPartData):
            content.append(content_param(part))
    fields: Fields = {"role": "assistant"}
    calls = calls_for_others(message)
    if calls:
        fields["tool_calls"] = [tool_call_param(call, arguments_json(call)) for call in calls]
    refusal = message.metadata.get("refusal")
    if refusal and isinstance(refusal, str):
        fields["refusal"] = refusal
    own = _own_fields(message.metadata)
    if not content and len(fields) == 1 and not own.keys() - {"name"}:
        return []
    # Without calls or a refusal the API demands content.
    fields["content"] = content or (None if len(fields) > 1 else "")
    return [_merge(own, {**fields, **reasoning})]


def _tool_message(result: ContentPartToolResult) -> Fields:
    output = result.output
    if result.is_error and "error" not in _mapping(output):
        output = {"error": output}
    content = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return _merge(
        _own_fields(result.metadata), {"role": "tool", "tool_call_id": result.id, "content": content}
    )


def _own_fields(metadata: Mapping[str, Any]) -> Fields:
    return dict(_mapping(metadata.get("openai")))


def _merge(own: Mapping[str, Any], fields: Fields) -> Fields:
    """``fields`` with those of the provider's own beside them, inside objects too; ours win."""
    merged = {**own, **fields}
    for name, value in fields.items():
        if isinstance(value, dict) and isinstance(own.get(name), dict):
            merged[name] = {**own[name], **value}
    return merged


def _compact_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- to the common format ---------------------------------------------------------------------------------------


class _HistoryReader:
    """Reads a request's messages from first to last; remembers the calls that results will refer to."""

    def __init__(self, converter: OpenAIConverter) -> None:
        self._converter = converter
        self._system: list[str] = []
        self._conversation: list[Message] = []
        self._results: list[ContentPartToolResult] = []
        self._names: dict[str, str] = {}
        self._unanswered: list[ContentPartToolCall] = []

    def read(self, messages: Iterable[object]) -> History:
        for position, message in enumerate(messages):
            try:
                self._read_message(_fields(message))
            except ValueError as error:
                raise ValueError(f"message {position}: {error}") from None
        self._end_results()
        return History(
            system_message="\n\n".join(self._system) if self._system else None,
            conversation=tuple(self._conversation),
        )

    def _read_message(self, fields: Fields) -> None:
        role = fields.get("role")
        if role in ("tool", "function"):
            self._results.append(self._tool_result(fields))
            return
        self._end_results()
        if role in ("system", "developer"):
            self._system.append("\n\n".join(_texts(fields.get("content"))))
        elif role == "user":
            content = tuple(_content_part(part) for part in _entries(fields.get("content")))
            metadata = own_metadata(fields, "role", "content")
            self._conversation.append(Message(role=Role.USER, content=content, metadata=metadata))
        elif role == "assistant":
            self._read_assistant(fields)
        else:
            raise ValueError(f"the role {role!r} is not one of Chat Completions")

    def _read_assistant(self, fields: Fields) -> None:
        # Only the name is for us: whatever else a provider adds is folded as it is in a stream.
        name = fields.pop("name", None)
        message = self._converter.to_message(fields)
        if name is not None:
            metadata = {**message.metadata, "openai": {"name": name}}
            message = message.model_copy(update={"metadata": metadata})
        self._unanswered = list(message.tool_calls)
        self._names |= {call.id: call.name for call in message.tool_calls}
        self._conversation.append(message)

    def _tool_result(self, fields: Fields) -> ContentPartToolResult:
        name = _text(fields.get("name"))
        call_id = _text(fields.get("tool_call_id"))
        if not call_id:
            # The legacy role has no ids, and some clients send none: it answers the first call that it can.
            call_id = next((call.id for call in self._unanswered if name in ("", call.name)), "")
        self._unanswered = [call for call in self._unanswered if call.id != call_id]
        return ContentPartToolResult(
            id=call_id,
            name=self._names.get(call_id) or name or "unknown",
            output="".join(_texts(fields.get("content"))),
            metadata=own_metadata(fields, "role", "content", "tool_call_id", "name"),
        )

    def _end_results(self) -> None:
        if self._results:
            self._conversation.append(Message(role=Role.TOOL, content=tuple(self._results)))
            self._results = []


def _choices(response: Fields, index: int | None) -> list[Fields]:
    """The choices that an answer is made of, of a whole response or of a single message, in the form of a chunk's.

    Args:
        response: The response, or the message.
        index: Of the choice; None for all, as one.
    """
    given = response.get("choices")
    if not isinstance(given, list):
        return [{"index": 0, "message": _message_fields(response)}]
    found: list[Fields] = []
    for position, entry in enumerate(chosen(as_mappings(cast("object", given)), index)):
        message = _message_fields(_mapping(entry.get("message")), position << 32)
        # A whole message says all again that was said so far: where there are several, each adds to those before.
        found.append({**entry, "index": 0, "message": None, "delta" if index is None else "message": message})
    return found


def chosen(choices: Sequence[Mapping[str, Any]], index: int | None) -> Sequence[Mapping[str, Any]]:
    """The choice with an index, by default its position; for 0 the first if none has it, for None all of them."""
    if index is None:
        return choices
    found = [
        choice for position, choice in enumerate(choices) if as_index(choice.get("index", position)) == index
    ]
    return (found or (choices if index == 0 else []))[:1]


def _message_fields(given: Mapping[str, Any], first_index: int = 0) -> Fields:
    """An assistant's message in the form of a delta."""
    message = dict(given)
    calls = message.get("tool_calls")
    if isinstance(calls, list | tuple):
        # Each entry is a call of its own, whatever its id: that is what an index says in a stream.
        entries = cast("Sequence[object]", calls)
        message["tool_calls"] = [
            {**_mapping(call), "index": index} for index, call in enumerate(entries, first_index)
        ]
    content = message.get("content")
    if isinstance(content, list | tuple):
        parts = [
            _text_param(part) if isinstance(part, str) else dict(_mapping(part))
            for part in cast("Sequence[object]", content)
        ]
        message["content"] = parts
        refusals = [_text(part.get("refusal")) for part in parts if part.get("type") == "refusal"]
        if refusals and not message.get("refusal"):
            message["refusal"] = "".join(refusals)
    return message


def _content_part(part: object) -> ContentPart:
    """One entry of a user message's content. Text may stand there without an object around it."""
    if isinstance(part, str):
        return ContentPartText(text=part)
    fields = _mapping(part)
    kind = fields.get("type")
    if kind == "text":
        return ContentPartText(text=_text(fields.get("text")), metadata=own_metadata(fields, "type", "text"))
    file = file_part(fields)
    if file is not None:
        return file
    raise ValueError(f"a content part of type {kind!r} is not one of Chat Completions")


def _texts(content: object) -> list[str]:
    """The texts of content that may hold nothing but text."""
    texts: list[str] = []
    for part in _entries(content):
        fields = _text_param(part) if isinstance(part, str) else _mapping(part)
        if fields.get("type") != "text":
            raise ValueError(f"a content part of type {fields.get('type')!r} where only text may stand")
        texts.append(_text(fields.get("text")))
    return texts


def _entries(content: object) -> list[object]:
    """Content as a list of parts, whichever of its forms it has; the empty text and null are no parts."""
    if content is None or content == "":
        return []
    if isinstance(content, str | Mapping):
        return [cast("object", content)]
    if isinstance(content, Iterable):
        return list(cast("Iterable[object]", content))
    raise ValueError(f"content of type {type(content).__name__}")


def _fields(message: object) -> Fields:
    if isinstance(message, BaseModel):
        # The package builds its objects without validation, so that odd values are no reason to warn.
        return message.model_dump(mode="json", exclude_unset=True, warnings=False)
    return dict(_mapping(message))


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""

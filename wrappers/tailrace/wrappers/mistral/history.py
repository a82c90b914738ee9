"""Between the common history and the messages of Mistral's Chat Completions requests.

They are OpenAI's messages (see `tailrace.wrappers.openai.history`), except for what stands here: content in parts of
Mistral's own, thinking that is sent back, tools that are named in their results, and a stricter order.

What the one side cannot say is converted to the nearest thing that the other can. These are all the losses; in all
else ``to_history(from_history(history)) == history``.

- ``History.context`` goes out as a user message, and comes back as one.
- Reasoning is sent back when it is Mistral's own, as a ``thinking`` part in its place; all other is left out.
- A data part goes out as its JSON, in a text part; a part of Mistral's that has no other form as it was.
- A file of the user's goes out as an image, a document or a sound, by its address or its bytes. One of another type,
  or an empty one, is named in a text part: a link as ``[name](url)``, else ``[file name, media type, size]``, and so is
  any file of the model's. Images and sounds lose their name; a sound gets the type ``audio/*``, and a link the type that
  its ending says.
- Empty text and thinking of the model's is left out, and so is a message of the model's of which nothing remains.
- What the model says and thinks goes out before its tool calls, wherever it stood. Neighbouring texts come back as
  one, up to a reference, and so does neighbouring thinking.
- The name of a called tool is mended where Mistral does not allow it (see `tailrace.wrappers.tool_names`). Arguments
  that are no object, and a custom tool's input, go out as ``{"input": text}``. A call's kind, and that its id was made
  here, are forgotten.
- Calls of tools that a provider ran, and their results, are left out. The result of any other tool that stands in a
  model's message follows it.
- A tool's output that is not text goes out as its JSON, that of a failed tool as ``{"error": output}``; both come back
  as text.
- In a message that mixes tool results with other parts, these become a message of their own. Between results and what
  the user says next, where Mistral wants to hear the model, goes `MistralConverter.bridge`.
- A model's ``refusal`` goes out as text.
- Metadata stays here, except ``metadata["mistral"]`` of a message or part: further fields of Mistral's object, kept and
  sent as they are (``prefix`` of a message that the model is to go on with, for one).
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.files import file_note
from tailrace.wrappers.folding import fold_message
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
from tailrace.wrappers.mistral.chunks import MistralDecoder
from tailrace.wrappers.mistral.parts import KEY, file_param, own_fields, read_part
from tailrace.wrappers.openai.history import OpenAIConverter, chosen
from tailrace.wrappers.tool_calls import arguments_json
from tailrace.wrappers.tool_names import LETTERS_DIGITS_DASHES

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionMessageParam

Fields = dict[str, Any]

_OF_A_MESSAGE = ("role", "content", "tool_calls")


class MistralConverter(OpenAIConverter):
    """Converts conversations to Mistral's messages and back. Holds no state.

    Attributes:
        id_pattern: The ids of tool calls that Mistral takes. They are sent as they are.
        bridge: What the model says between the results of tools and the user's next words.
    """

    id_pattern: ClassVar[re.Pattern[str] | None] = re.compile(r"[a-zA-Z0-9]{9}")
    bridge: ClassVar[str] = "(The tools have answered.)"

    def from_history(self, history: History) -> "list[ChatCompletionMessageParam]":
        """The request's messages: system, then context, then the conversation; content as lists of parts.

        Raises:
            ValueError: A tool call stands in a message that is not the model's.
        """
        messages: list[Fields] = []
        if history.system_message is not None:
            messages.append({"role": "system", "content": [_text(history.system_message)]})
        if history.context is not None:
            messages.append({"role": "user", "content": [_text(history.context)]})
        for message in history.conversation:
            if message.role is Role.MODEL:
                messages += self._answer(message)
            else:
                messages += [self._result(result) for result in message.tool_results]
                messages += _words(message)
        ordered: list[Fields] = []
        for message in messages:
            if message["role"] == "user" and ordered and ordered[-1]["role"] == "tool":
                ordered.append({"role": "assistant", "content": self.bridge})
            ordered.append(message)
        return cast("list[ChatCompletionMessageParam]", ordered)

    def to_history(self, messages: "Sequence[ChatCompletionMessageParam | ChatCompletionMessage]") -> History:
        """The common history of a request's messages.

        Raises:
            ValueError: A message has a role, or content of a form, that Mistral does not define.
        """
        fields = [_fields(message) for message in messages]
        # What a user's parts are is known here; all the rest is read as OpenAI's messages are.
        said = iter(
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
            _renamed(message, content=next(said) if message.role is Role.USER else message.content)
            for message in history.conversation
        )
        return history.model_copy(update={"conversation": conversation})

    def to_message(
        self,
        response: "Iterable[ChunkWrapper[Any]] | ChatCompletion | ChatCompletionMessage | Mapping[str, Any]",
        *,
        choice: int | None = 0,
    ) -> Message:
        """The complete message of a stream's wrappers, or of a whole response.

        Args:
            response: Wrappers; a whole response or its JSON object; an assistant message or its JSON object.
            choice: As `OpenAIConverter.to_message` takes it.
        """
        if not isinstance(response, Mapping | BaseModel):
            return fold_message(response, choice=choice)
        fields = _fields(cast("object", response))
        own: Fields = {}
        if "choices" in fields:
            choices: Sequence[Mapping[str, Any]] = chosen(as_mappings(fields["choices"] or []), choice)
        else:
            choices = [{"message": fields}]
            own = {
                name: value
                for name, value in fields.items()
                if name not in _OF_A_MESSAGE and value is not None
            }
        wrappers: list[ChunkWrapper[Any]] = []
        for position, each in enumerate(choices):
            said = as_mapping(each.get("message")) or {}
            # Each entry is a call of its own, whatever its id: that is what an index says in a stream.
            calls = [
                {**call, "index": index}
                for index, call in enumerate(as_mappings(said.get("tool_calls") or []), position << 32)
            ]
            delta = {"content": said.get("content"), "tool_calls": calls}
            # A whole message says all again that was said so far: where there are several, each adds to those before.
            form = {"message": None, "delta" if choice is None else "message": delta}
            wrappers += MistralDecoder().wrap({"choices": [{**each, "index": 0, **form}]})
        message = fold_message(wrappers)
        return message.model_copy(update={"metadata": {**message.metadata, KEY: own}}) if own else message

    def tool_result_messages(
        self, results: Sequence[ContentPartToolResult]
    ) -> "list[ChatCompletionMessageParam]":
        """One ``tool`` message for each result."""
        return cast("list[ChatCompletionMessageParam]", [self._result(result) for result in results])

    def _result(self, result: ContentPartToolResult) -> Fields:
        bare = result.model_copy(update={"metadata": {}})
        (message,) = cast("list[Fields]", super().tool_result_messages([bare]))
        name = {"name": LETTERS_DIGITS_DASHES.mend(result.name)} if result.name not in ("", "unknown") else {}
        return {**own_fields(result.metadata), **message, **name}

    def _answer(self, message: Message) -> list[Fields]:
        """The model's message, and the results in it; nothing for a message of which nothing remains."""
        content: list[Fields] = []
        calls: list[Fields] = []
        results: list[Fields] = []
        by_providers = {call.id for call in message.tool_calls if call.kind == "server"}
        for part in message.content:
            if isinstance(part, ContentPartToolCall):
                calls += [_call(part)] if part.kind != "server" else []
            elif isinstance(part, ContentPartToolResult):
                results += [self._result(part)] if part.id not in by_providers else []
            else:
                content += _answer_parts(part)
        refusal = as_text(message.metadata.get("refusal"))
        if refusal:
            content.append(_text(refusal))
        if not (content or calls):
            return results
        fields = {**own_fields(message.metadata), "role": "assistant", "content": content or ""}
        return [{**fields, "tool_calls": calls} if calls else fields, *results]


# --- from the common format -------------------------------------------------------------------------------------


def _text(text: str) -> Fields:
    return {"type": "text", "text": text}


def _words(message: Message) -> list[Fields]:
    """The user's message for what a message holds besides tool results; none where that is nothing."""
    content: list[Fields] = []
    for part in message.content:
        if isinstance(part, ContentPartToolCall):
            raise ValueError(
                f"the tool call {part.id!r} stands in a message of role {message.role}, not the model's"
            )
        if isinstance(part, ContentPartText):
            content.append({**own_fields(part.metadata), **_text(part.text)})
        elif isinstance(part, ContentPartFile):
            content.append(file_param(part) or _text(file_note(part)))
        elif isinstance(part, ContentPartData):
            content.append(_data(part))
    if not content and (message.role is Role.TOOL or message.tool_results):
        return []
    return [{**own_fields(message.metadata), "role": "user", "content": content or ""}]


def _answer_parts(
    part: ContentPartText | ContentPartReasoning | ContentPartData | ContentPartFile,
) -> list[Fields]:
    """What the model's text, thinking, data or file is sent as."""
    own = own_fields(part.metadata)
    if isinstance(part, ContentPartReasoning):
        return [{**own, "type": "thinking", "thinking": [_text(part.text)]}] if own and part.text else []
    if isinstance(part, ContentPartData):
        return [_data(part)]
    if isinstance(part, ContentPartFile):
        return [_text(file_note(part))]
    references = [dict(reference) for reference in as_mappings(own.pop("references", None) or [])]
    return [{**own, **_text(part.text)}, *references] if part.text else references


def _data(part: ContentPartData) -> Fields:
    if KEY in part.metadata and as_mapping(part.data) is not None:
        return part.data
    return _text(json.dumps(part.data, ensure_ascii=False, separators=(",", ":")))


def _call(call: ContentPartToolCall) -> Fields:
    if call.kind == "custom" and not call.arguments and call.arguments_text is None:
        arguments = '{"input": ""}'
    else:
        arguments = arguments_json(call)
    function = {"name": LETTERS_DIGITS_DASHES.mend(call.name), "arguments": arguments}
    return {**own_fields(call.metadata), "id": call.id, "type": "function", "function": function}


# --- to the common format ---------------------------------------------------------------------------------------


def _fields(message: object) -> Fields:
    if isinstance(message, BaseModel):
        return message.model_dump(mode="json", exclude_unset=True, warnings=False)
    return dict(as_mapping(message) or {})


def _read_content(message: Mapping[str, Any], position: int) -> tuple[ContentPart, ...]:
    """The parts of a user's message, which may be a text."""
    content = message.get("content")
    if isinstance(content, str):
        return (ContentPartText(text=content),) if content else ()
    if content is not None and not isinstance(content, list | tuple):
        raise ValueError(f"message {position}: content of type {type(content).__name__}")
    parts: list[ContentPart] = []
    for part in cast("Sequence[object]", content or ()):
        fields = _text(part) if isinstance(part, str) else as_mapping(part)
        if fields is None or not as_text(fields.get("type")):
            raise ValueError(f"message {position}: a content part is neither text nor an object with a type")
        parts.append(read_part(fields))
    return tuple(parts)


def _renamed(message: Message, content: Sequence[ContentPart]) -> Message:
    """The message with what stands under OpenAI's name in metadata under Mistral's, and no other metadata."""
    parts = tuple(
        part.model_copy(update={"metadata": _own_name(part.metadata)})
        if isinstance(part, ContentPartToolResult)
        else part
        for part in content
    )
    return Message(role=message.role, content=parts, metadata=_own_name(message.metadata))


def _own_name(metadata: Mapping[str, Any]) -> Fields:
    own = metadata.get(KEY) or metadata.get("openai")
    return {KEY: own} if own else {}

"""A conversation as the input items of a Responses request; `tailrace.wrappers.openai_responses.history` says how."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.wrappers.files import file_note
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
from tailrace.wrappers.openai_responses.answers import answer_item, function_output
from tailrace.wrappers.openai_responses.files import file_param
from tailrace.wrappers.openai_responses.items import KEY, call_id, run_by_caller
from tailrace.wrappers.tool_calls import arguments_json
from tailrace.wrappers.tool_ids import with_answers, with_matched_ids

Fields = dict[str, Any]

_CALL_ID = re.compile(r".{1,64}", re.DOTALL)  # the API refuses longer ones
_UNSENT = ("annotations", "id", "status", "type")  # of what is kept of messages, reasoning and function calls


def input_items(history: History) -> list[Fields]:
    """The items: system message, context, then the conversation.

    Raises:
        ValueError: A tool call stands in a message that is not the model's.
    """
    mended = with_answers(with_matched_ids(history, pattern=_CALL_ID))
    items: list[Fields] = []
    if mended.system_message is not None:
        items.append(_message_item("system", [_input_text(mended.system_message)]))
    if mended.context is not None:
        items.append(_message_item("user", [_input_text(mended.context)]))
    answers = _Answers(mended)
    for position, message in enumerate(mended.conversation):
        if message.role is Role.MODEL:
            items += _ModelItems(answers).build(message)
        else:
            # The API wants results directly after the calls, so what else was said follows them.
            items += [item for part in message.tool_results for item in answers.items(part)]
            items += _user_items(message, position)
    return items


def output_item(result: ContentPartToolResult) -> Fields:
    """The item for a result whose call is not known: the one that it was, else that of a function."""
    return _own_item(result) or {**_own(result.metadata), **function_output(result, "function")}


def _message_item(role: str, content: Sequence[Fields], fields: Mapping[str, Any] | None = None) -> Fields:
    return {**(fields or {}), "type": "message", "role": role, "content": list(content)}


def _input_text(text: str) -> Fields:
    return {"type": "input_text", "text": text}


def _own(metadata: Mapping[str, Any]) -> Fields:
    return dict(as_mapping(metadata.get(KEY)) or {})


def _own_item(part: ContentPart) -> Fields | None:
    """The item that a part was, where it is one of this API's."""
    item = as_mapping(_own(part.metadata).get("item"))
    return dict(item) if item is not None and as_text(item.get("type")) else None


class _Answers:
    """The calls of a conversation, and the items that they and their results are sent as."""

    def __init__(self, history: History) -> None:
        self._calls: dict[str, ContentPartToolCall] = {}
        self._results: dict[str, ContentPartToolResult] = {}
        for message in history.conversation:
            self._calls |= {call.id: call for call in message.tool_calls}
            self._results |= {result.id: result for result in message.tool_results}

    def native(self, call: ContentPartToolCall) -> Fields | None:
        """The item of a call of the API's own tools that the caller ran; None for a function's."""
        item = _own_item(call)
        if call.kind == "server" or item is None or not run_by_caller(item):
            return None
        result = self._results.get(call.id)
        if result is not None and _own_item(result) is None and answer_item(item, result) is None:
            return None  # not with this result
        return _renamed(item, call.id, "call_id" if "call_id" in item else "id")

    def items(self, result: ContentPartToolResult) -> list[Fields]:
        """The item for a result; none where the item of its call holds it, or another provider's tool made it."""
        item = _own_item(result)
        call = self._calls.get(result.id)
        if call is None or call.kind == "server":
            return [item] if item is not None else []
        native = self.native(call)
        if native is not None and item is not None:
            answers = "id" if item["type"] == "local_shell_call_output" else "call_id"
            return [_renamed(item, result.id, answers if answers in item else "approval_request_id")]
        own = {name: value for name, value in _own(result.metadata).items() if name != "item"}
        return [{**own, **(answer_item(native, result) or function_output(result, call.kind))}]


def _renamed(item: Fields, new_id: str, name: str) -> Fields:
    """An item under the id that its call has now."""
    return {**item, name: new_id}


class _ModelItems:
    """The items for one message of the model's."""

    def __init__(self, answers: _Answers) -> None:
        self._answers = answers
        self._items: list[Fields] = []
        self._text_of: object = None  # what the last item's text has in common, while it may grow
        self._thoughts: list[ContentPartReasoning] = []  # of the reasoning item that goes on

    def build(self, message: Message) -> list[Fields]:
        images = {
            as_text(_own(part.metadata).get("id")): part
            for part in message.content
            if isinstance(part, ContentPartFile)
        }
        images.pop("", None)
        sent_images = {call_id(item) for part in message.tool_calls if (item := _own_item(part)) is not None}
        for part in message.content:
            if isinstance(part, ContentPartReasoning):
                self._think(part)
                continue
            self._thoughts.clear()
            if isinstance(part, ContentPartText):
                self._say(part.text, _own(part.metadata))
            elif isinstance(part, ContentPartFile):
                if as_text(_own(part.metadata).get("id")) not in sent_images:
                    self._say(file_note(part), {})
            elif isinstance(part, ContentPartData):
                item = _own_item(part)
                if item is not None:
                    self._add(item)
                else:
                    self._say(json.dumps(part.data, ensure_ascii=False, separators=(",", ":")), {})
            elif isinstance(part, ContentPartToolResult):
                for item in self._answers.items(part):
                    self._add(item)
            else:
                self._call(part, images)
        refusal = message.metadata.get("refusal")
        if refusal and isinstance(refusal, str):
            self._add(_message_item("assistant", [{"type": "refusal", "refusal": refusal}]))
        while self._items and self._items[-1]["type"] == "reasoning":
            self._items.pop()
        return self._items

    def _add(self, item: Fields) -> None:
        self._items.append(item)
        self._text_of = None

    def _say(self, text: str, own: Fields) -> None:
        if not text:
            return
        content: Fields = {"type": "output_text", "text": text, "annotations": own.get("annotations") or []}
        fields = {name: value for name, value in own.items() if name not in _UNSENT}
        text_of = (own.get("id"), fields)
        if text_of == self._text_of:
            self._items[-1]["content"].append(content)
        else:
            self._add(_message_item("assistant", [content], fields))
            self._text_of = text_of

    def _think(self, part: ContentPartReasoning) -> None:
        """Take a part of a reasoning item; the last one says what item it is."""
        own = _own(part.metadata)
        self._thoughts = [*self._thoughts, part] if own else []
        if not own.get("id"):
            return
        parts, self._thoughts = self._thoughts, []
        if not own.get("encrypted_content"):
            return
        contents = [
            {"type": _own(each.metadata).get("type") or "summary_text", "text": each.text}
            for each in parts
            if each.text
        ]
        item = {name: value for name, value in own.items() if name not in _UNSENT}
        item |= {"type": "reasoning", "id": own["id"]}
        item["summary"] = [each for each in contents if each["type"] == "summary_text"]
        thoughts = [each for each in contents if each["type"] != "summary_text"]
        self._add({**item, "content": thoughts} if thoughts else item)

    def _call(self, call: ContentPartToolCall, images: Mapping[str, ContentPartFile]) -> None:
        if call.kind == "server":
            item = _own_item(call)
            if item is not None:
                self._add(_with_image(item, images.get(call_id(item))))
            return
        native = self._answers.native(call)
        if native is not None:
            self._add(native)
            return
        fields = {
            name: value for name, value in _own(call.metadata).items() if name not in (*_UNSENT, "item")
        }
        function: Fields = {"call_id": call.id, "name": call.name}
        if call.kind == "custom":
            self._add({**fields, **function, "type": "custom_tool_call", "input": _input(call)})
        else:
            self._add({**fields, **function, "type": "function_call", "arguments": arguments_json(call)})


def _input(call: ContentPartToolCall) -> str:
    """The text that a custom tool is called with."""
    if call.arguments_text is not None:
        return call.arguments_text
    return json.dumps(call.arguments, ensure_ascii=False) if call.arguments else ""


def _with_image(item: Fields, image: ContentPartFile | None) -> Fields:
    """The item of a call of the provider's, with the image that it made."""
    if item["type"] != "image_generation_call" or "result" in item:
        return item
    if image is None:
        return {**item, "result": None}
    return {**item, "result": image.url or image.model_dump(mode="json")["data"]}


def _user_items(message: Message, position: int) -> list[Fields]:
    """The user message for what a message holds besides tool results; none when that is nothing."""
    content: list[Fields] = []
    for part in message.content:
        if isinstance(part, ContentPartToolCall):
            raise ValueError(
                f"message {position}: the tool call {part.id!r} stands in a message of role {message.role}, "
                "not the model's"
            )
        if isinstance(part, ContentPartText):
            content.append({**_own(part.metadata), **_input_text(part.text)})
        elif isinstance(part, ContentPartFile):
            content.append(file_param(part))
        elif isinstance(part, ContentPartData):
            content.append(_input_text(json.dumps(part.data, ensure_ascii=False, separators=(",", ":"))))
    if not content and (message.role is Role.TOOL or message.tool_results):
        return []
    return [_message_item("user", content, _own(message.metadata))]

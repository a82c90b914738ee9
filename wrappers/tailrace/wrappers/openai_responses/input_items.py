"""Conversion of a history to input items of the Responses API."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.wrappers.assembly.tool_calls import arguments_json
from tailrace.wrappers.conversion.files import file_description
from tailrace.wrappers.conversion.message_objects import Fields, check_calls, compact_json, own_fields
from tailrace.wrappers.conversion.result_repair import with_repaired_results
from tailrace.wrappers.conversion.tool_ids import with_matched_ids
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_text
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
from tailrace.wrappers.openai_responses.files import file_param
from tailrace.wrappers.openai_responses.tool_items import KEY, call_id, is_client_call
from tailrace.wrappers.openai_responses.tool_results import function_output, result_item

_CALL_ID = re.compile(r".{1,64}", re.DOTALL)  # the API rejects longer ids
# Metadata fields that are not copied to the item.
_OMITTED = ("annotations", "id", "status", "type")


def input_items(history: History, *, add_missing_results: bool = True) -> list[Fields]:
    """Return the input items of a request.

    The order is: the system message, the background information (`History.context`), the messages of the conversation.

    Args:
        history: The conversation.
        add_missing_results: True to add an error result for each call without a result, which providers require.

    Raises:
        ValueError: A message with a role other than MODEL contains a tool call.
    """
    check_calls(history)
    matched = with_matched_ids(history, pattern=_CALL_ID)
    repaired = with_repaired_results(matched, add_missing=add_missing_results)
    items: list[Fields] = []
    if repaired.system_message is not None:
        items.append(_message_item("system", [_input_text(repaired.system_message)]))
    if repaired.context is not None:
        items.append(_message_item("user", [_input_text(repaired.context)]))
    tool_items = _ToolItems(repaired)
    for message in repaired.conversation:
        if message.role is Role.MODEL:
            items += _ModelItems(tool_items).build(message)
        else:
            # In the API, tool results must directly follow the calls.
            items += [item for part in message.tool_results for item in tool_items.items(part)]
            items += _user_items(message)
    return items


def output_item(result: ContentPartToolResult) -> Fields:
    """Return the item for a tool result whose call is not known.

    This is the original item if the metadata contains it, otherwise the output of a function.
    """
    return _own_item(result) or {**own_fields(result.metadata, KEY), **function_output(result, "function")}


def _message_item(role: str, content: Sequence[Fields], fields: Mapping[str, Any] | None = None) -> Fields:
    return {**(fields or {}), "type": "message", "role": role, "content": list(content)}


def _input_text(text: str) -> Fields:
    return {"type": "input_text", "text": text}


def _own_item(part: ContentPart) -> Fields | None:
    """Return the original item if the metadata of a part contains it, otherwise None."""
    item = as_mapping(own_fields(part.metadata, KEY).get("item"))
    return dict(item) if item is not None and as_text(item.get("type")) else None


class _ToolItems:
    def __init__(self, history: History) -> None:
        self._calls: dict[str, ContentPartToolCall] = {}
        self._results: dict[str, ContentPartToolResult] = {}
        for message in history.conversation:
            self._calls |= {call.id: call for call in message.tool_calls}
            self._results |= {result.id: result for result in message.tool_results}

    def native(self, call: ContentPartToolCall) -> Fields | None:
        """Return the item for a call of a built-in tool that the application runs, for example the local shell.

        Return None for all other calls, and if the result is not valid in the format of the tool.
        """
        item = _own_item(call)
        if call.kind == "server" or item is None or not is_client_call(item):
            return None
        result = self._results.get(call.id)
        if result is not None and _own_item(result) is None and result_item(item, result) is None:
            return None
        return _with_call_id(item, call.id, "call_id" if "call_id" in item else "id")

    def items(self, result: ContentPartToolResult) -> list[Fields]:
        """Return the item for a tool result, in a list.

        For a server tool, and for a result without a call, this is the item in the metadata of the result. Without such an item,
        the list is empty: the item of the call contains the result, or another API produced the result.
        """
        item = _own_item(result)
        call = self._calls.get(result.id)
        if call is None or call.kind == "server":
            return [item] if item is not None else []
        native = self.native(call)
        if native is not None and item is not None:
            id_field = "id" if item["type"] == "local_shell_call_output" else "call_id"
            return [_with_call_id(item, result.id, id_field if id_field in item else "approval_request_id")]
        own = {name: value for name, value in own_fields(result.metadata, KEY).items() if name != "item"}
        return [{**own, **(result_item(native, result) or function_output(result, call.kind))}]


def _with_call_id(item: Fields, call_id: str, id_field: str) -> Fields:
    return {**item, id_field: call_id}


class _ModelItems:
    """Builder of the items for one message of the model."""

    def __init__(self, tool_items: _ToolItems) -> None:
        self._tool_items = tool_items
        self._items: list[Fields] = []
        # The id and the fields of the last message item; None if no text can be added to it.
        self._text_key: object = None
        self._thoughts: list[ContentPartReasoning] = []  # parts of the incomplete reasoning item

    def build(self, message: Message) -> list[Fields]:
        images = {
            as_text(own_fields(part.metadata, KEY).get("id")): part
            for part in message.content
            if isinstance(part, ContentPartFile)
        }
        images.pop("", None)
        image_ids = {call_id(item) for part in message.tool_calls if (item := _own_item(part)) is not None}
        for part in message.content:
            if isinstance(part, ContentPartReasoning):
                self._add_reasoning(part)
                continue
            self._thoughts.clear()
            if isinstance(part, ContentPartText):
                self._add_text(part.text, own_fields(part.metadata, KEY))
            elif isinstance(part, ContentPartFile):
                if as_text(own_fields(part.metadata, KEY).get("id")) not in image_ids:
                    self._add_text(file_description(part), {})
            elif isinstance(part, ContentPartData):
                item = _own_item(part)
                if item is not None:
                    self._add(item)
                else:
                    self._add_text(compact_json(part.data), {})
            elif isinstance(part, ContentPartToolResult):
                for item in self._tool_items.items(part):
                    self._add(item)
            else:
                self._add_call(part, images)
        refusal = message.metadata.get("refusal")
        if refusal and isinstance(refusal, str):
            self._add(_message_item("assistant", [{"type": "refusal", "refusal": refusal}]))
        while self._items and self._items[-1]["type"] == "reasoning":
            self._items.pop()
        return self._items

    def _add(self, item: Fields) -> None:
        self._items.append(item)
        self._text_key = None

    def _add_text(self, text: str, own: Fields) -> None:
        if not text:
            return
        content: Fields = {"type": "output_text", "text": text, "annotations": own.get("annotations") or []}
        fields = {name: value for name, value in own.items() if name not in _OMITTED}
        key = (own.get("id"), fields)
        if key == self._text_key:
            self._items[-1]["content"].append(content)
        else:
            self._add(_message_item("assistant", [content], fields))
            self._text_key = key

    def _add_reasoning(self, part: ContentPartReasoning) -> None:
        """Add a part of a reasoning item. The last part, which has the fields of the item, completes the item."""
        own = own_fields(part.metadata, KEY)
        self._thoughts = [*self._thoughts, part] if own else []
        if not own.get("id"):
            return
        parts, self._thoughts = self._thoughts, []
        if not own.get("encrypted_content"):
            return
        contents = [
            {"type": own_fields(each.metadata, KEY).get("type") or "summary_text", "text": each.text}
            for each in parts
            if each.text
        ]
        item = {name: value for name, value in own.items() if name not in _OMITTED}
        item |= {"type": "reasoning", "id": own["id"]}
        item["summary"] = [each for each in contents if each["type"] == "summary_text"]
        thoughts = [each for each in contents if each["type"] != "summary_text"]
        self._add({**item, "content": thoughts} if thoughts else item)

    def _add_call(self, call: ContentPartToolCall, images: Mapping[str, ContentPartFile]) -> None:
        if call.kind == "server":
            item = _own_item(call)
            if item is not None:
                self._add(_with_image(item, images.get(call_id(item))))
            return
        native = self._tool_items.native(call)
        if native is not None:
            self._add(native)
            return
        fields = {
            name: value
            for name, value in own_fields(call.metadata, KEY).items()
            if name not in (*_OMITTED, "item")
        }
        function: Fields = {"call_id": call.id, "name": call.name}
        if call.kind == "custom":
            self._add({**fields, **function, "type": "custom_tool_call", "input": _input(call)})
        else:
            self._add({**fields, **function, "type": "function_call", "arguments": arguments_json(call)})


def _input(call: ContentPartToolCall) -> str:
    if call.arguments_text is not None:
        return call.arguments_text
    return arguments_json(call) if call.arguments else ""


def _with_image(item: Fields, image: ContentPartFile | None) -> Fields:
    """Return the item of a server tool call. An image generation call without ``result`` gets the image, or None."""
    if item["type"] != "image_generation_call" or "result" in item:
        return item
    if image is None:
        return {**item, "result": None}
    return {**item, "result": image.url or image.model_dump(mode="json")["data"]}


def _user_items(message: Message) -> list[Fields]:
    """Return one user message with all parts except tool results; none if there are only tool results."""
    content: list[Fields] = []
    for part in message.content:
        if isinstance(part, ContentPartText):
            content.append({**own_fields(part.metadata, KEY), **_input_text(part.text)})
        elif isinstance(part, ContentPartFile):
            content.append(file_param(part))
        elif isinstance(part, ContentPartData):
            content.append(_input_text(compact_json(part.data)))
    if not content and (message.role is Role.TOOL or message.tool_results):
        return []
    return [_message_item("user", content, own_fields(message.metadata, KEY))]

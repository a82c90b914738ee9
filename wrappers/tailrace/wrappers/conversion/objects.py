"""Shared functions for the JSON objects of providers' messages.

Provider fields without an equivalent in the common format are kept in the metadata of a part or message under the name
of the provider's format, and are sent back only to that provider.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from tailrace.wrappers.decoding.lenient_json import as_mapping, as_object, as_text
from tailrace.wrappers.messages import ContentPartToolResult, History, Role, shortened

Fields = dict[str, Any]


def own_fields(metadata: Mapping[str, Any], key: str) -> Fields:
    """Return the fields that metadata holds for one provider."""
    return dict(as_mapping(metadata.get(key)) or {})


def own_metadata(key: str, fields: Mapping[str, Any], *known: str) -> Fields:
    """Return metadata with the fields of an object other than the known ones and nulls; empty if there are none."""
    others = {name: value for name, value in fields.items() if name not in known and value is not None}
    return {key: others} if others else {}


def merged_fields(own: Mapping[str, Any], fields: Fields) -> Fields:
    """Return ``fields`` with a provider's own fields beside them, also inside objects; ``fields`` win."""
    merged = {**own, **fields}
    for name, value in fields.items():
        if isinstance(value, dict) and isinstance(own.get(name), dict):
            merged[name] = {**own[name], **value}
    return merged


def compact_json(value: object) -> str:
    """Return the JSON text of a data part."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def text_entry(text: str) -> Fields:
    """Return a content part of text in the form that most providers share."""
    return {"type": "text", "text": text}


def content_entries(content: object) -> list[object]:
    """Return content as a list of parts; empty for empty text and null.

    Raises:
        ValueError: The content is neither text nor an object nor a list.
    """
    if content is None or content == "":
        return []
    if isinstance(content, str | Mapping):
        return [cast("object", content)]
    if isinstance(content, Iterable):
        return list(cast("Iterable[object]", content))
    raise ValueError(f"content of type {type(content).__name__} is neither text nor an object nor a list")


def content_texts(content: object, *types: str) -> list[str]:
    """Return the texts of content in which only text is allowed.

    Args:
        content: See `content_entries`.
        types: The types of text parts; ``text`` by default.

    Raises:
        ValueError: The content has another part.
    """
    texts: list[str] = []
    for part in content_entries(content):
        fields = text_entry(part) if isinstance(part, str) else as_object(part) or {}
        if not isinstance(part, str) and fields.get("type") not in (types or ("text",)):
            raise ValueError(
                f"a content part of type {shortened(fields.get('type'))} where only text is allowed"
            )
        texts.append(as_text(fields.get("text")))
    return texts


def result_output(result: ContentPartToolResult) -> Any:
    """Return a tool's output; that of a failed tool as ``{"error": output}``."""
    if result.is_error and "error" not in (as_mapping(result.output) or {}):
        return {"error": result.output}
    return result.output


def result_text(result: ContentPartToolResult) -> str:
    """Return `result_output` as text; JSON if it is not text."""
    output = result_output(result)
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def check_calls(history: History) -> None:
    """Check that only the model's messages have tool calls.

    Raises:
        ValueError: Another message has a tool call.
    """
    for position, message in enumerate(history.conversation):
        if message.role is not Role.MODEL and message.tool_calls:
            raise ValueError(
                f"message {position}: the tool call {shortened(message.tool_calls[0].id)} is in a message of "
                f"role {message.role}, not the model's"
            )

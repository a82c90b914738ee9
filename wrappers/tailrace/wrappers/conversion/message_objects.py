"""Functions for the JSON objects in the messages of all providers.

A converter stores fields without an equivalent in the common format in the metadata of a part or message. Their key is the name
of the wire format, and only later requests in this format contain them.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from tailrace.wrappers.decoding.lenient_json import as_mapping, as_object, as_text
from tailrace.wrappers.messages import ContentPartToolResult, History, Role, shortened

Fields = dict[str, Any]


def own_fields(metadata: Mapping[str, Any], key: str) -> Fields:
    """Return the fields of the wire format ``key`` in metadata; empty if there are none."""
    return dict(as_mapping(metadata.get(key)) or {}) if metadata else {}


def own_metadata(key: str, fields: Mapping[str, Any], *standard: str) -> Fields:
    """Return metadata with the fields that are neither standard fields nor null; empty if there are none."""
    metadata = {name: value for name, value in fields.items() if name not in standard and value is not None}
    return {key: metadata} if metadata else {}


def merged_fields(own: Mapping[str, Any], fields: Fields) -> Fields:
    """Merge a provider's own fields with ``fields``, which take precedence. The members of objects are merged too."""
    merged = {**own, **fields}
    for name, value in own.items():
        if isinstance(value, dict) and isinstance(fields.get(name), dict):
            merged[name] = {**value, **fields[name]}
    return merged


def compact_json(value: object) -> str:
    """Return the compact JSON text of a value."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def text_entry(text: str) -> Fields:
    """Return a text part in the format of most providers."""
    return {"type": "text", "text": text}


def content_entries(content: object) -> list[object]:
    """Return the content of a message as a list of parts; an empty list for empty text and null.

    Raises:
        ValueError: The content is not text, an object or a list.
    """
    if content is None or content == "":
        return []
    if isinstance(content, str | Mapping):
        return [cast("object", content)]
    if isinstance(content, Iterable):
        return list(cast("Iterable[object]", content))
    raise ValueError(f"content of type {type(content).__name__} is neither text nor an object nor a list")


def content_texts(content: object, *types: str) -> list[str]:
    """Return the texts of a content that has only text parts.

    Args:
        content: See `content_entries`.
        types: The ``type`` values of text parts; ``text`` by default.

    Raises:
        ValueError: The content has a part that is not text.
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
    """Return the output of a tool. For a failed tool, return ``{"error": output}``, unless the output has a member ``error``."""
    if result.is_error and "error" not in (as_mapping(result.output) or {}):
        return {"error": result.output}
    return result.output


def result_text(result: ContentPartToolResult) -> str:
    """Return `result_output` as text, if necessary as JSON."""
    output = result_output(result)
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def check_calls(history: History) -> None:
    """Raise an error for a tool call in a message that is not from the model.

    Raises:
        ValueError: A message with a role other than MODEL has a tool call.
    """
    for position, message in enumerate(history.conversation):
        if message.role is not Role.MODEL and message.tool_calls:
            raise ValueError(
                f"message {position}: the tool call {shortened(message.tool_calls[0].id)} is in a message of "
                f"role {message.role}, not the model's"
            )

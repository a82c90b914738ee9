"""Merging of adjacent messages with the same role, for APIs that require alternating roles.

A stored conversation may contain adjacent user messages: the context of a history, several messages of a caller, or text after
tool results.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from tailrace.wrappers.conversion.text_joining import join_texts

_SIDES = ("user", "assistant")
_TEXT_TYPES = {"user": "text", "assistant": "text"}
_CONCATENATED = ("content", "images", "tool_calls")


def with_merged_neighbours(
    messages: Iterable[Mapping[str, Any]], *, text_types: Mapping[str, str] = _TEXT_TYPES
) -> list[dict[str, Any]]:
    """Merge adjacent messages with the same role.

    Lists of parts, images and tool calls are concatenated. Plain texts are joined with a blank line. Two messages are not merged
    if another member differs (``name``, reasoning, …), if the first message has tool calls, or if their role is neither ``user``
    nor ``assistant``.

    Args:
        messages: The messages, which are not modified. Their ``content`` is text or a list of parts.
        text_types: The ``type`` of a text part by role, for text that is merged with a list of parts.
    """
    merged: list[dict[str, Any]] = []
    for message in messages:
        if merged and _may_merge(merged[-1], message):
            merged[-1] = _merged(merged[-1], message, text_types[message["role"]])
        else:
            merged.append(dict(message))
    return merged


def _may_merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    if first.get("role") not in _SIDES or first["role"] != second.get("role") or first.get("tool_calls"):
        return False
    return _other_fields(first) == _other_fields(second)


def _other_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in _CONCATENATED}


def _merged(first: Mapping[str, Any], second: Mapping[str, Any], text_type: str) -> dict[str, Any]:
    merged = {**first, **second}
    for name in ("images", "tool_calls"):
        values = [*(first.get(name) or ()), *(second.get(name) or ())]
        if values:
            merged[name] = values
    contents = first.get("content"), second.get("content")
    if all(isinstance(content, str) for content in contents):
        merged["content"] = join_texts(cast("tuple[str, str]", contents))
    else:
        parts = [part for content in contents for part in _parts(content, text_type)]
        merged["content"] = parts or contents[1]
    return merged


def _parts(content: object, text_type: str) -> Sequence[Any]:
    if isinstance(content, str):
        return [{"type": text_type, "text": content}] if content else []
    return cast("Sequence[Any]", content or ())

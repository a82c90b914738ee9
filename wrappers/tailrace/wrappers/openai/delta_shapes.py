"""The shapes of a Chat Completions delta: the shape that OpenAI documents, and the variants of other servers.

The structs are for fast decoding, and reject unknown fields. The functions read all other deltas as JSON objects. They preserve
unknown fields, and support known variants of the documented fields.
"""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from tailrace.wrappers.chunks import Usage
from tailrace.wrappers.decoding.extra_fields import json_text
from tailrace.wrappers.decoding.lenient_json import as_count, as_index, as_mapping, as_mappings, as_text

# Redundant fields, and padding that hides the lengths of messages.
PADDING = frozenset({"index", "obfuscation", "object", "p"})
_MAX_PART_LEVELS = 4  # nesting depth of parts; a thinking part, for example, contains text parts
_TEXT_FIELDS = frozenset({"content", "reasoning", "summary", "text", "thinking"})
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
_DETAILS_TEXT = {"reasoning.text": "text", "reasoning.summary": "summary"}
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text", "thinking")


class FunctionDelta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The member ``function`` of a fragment of a tool call."""

    name: str | None = None
    arguments: str | None = None


class ToolCallChunk(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One entry of ``delta.tool_calls``."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None
    model_extra: dict[str, Any] | None = msgspec.field(default=None, name="(model_extra)")


class ChoiceDelta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The member ``delta`` of a choice, with the attribute names of ``ChoiceDelta`` in the ``openai`` package.

    Attributes:
        model_extra: Fields that OpenAI does not document, and fields with undocumented types, unchanged; None or empty if there
            are none.
    """

    role: str | None = None
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[Any] | None = None
    tool_calls: list[ToolCallChunk] | None = None
    model_extra: dict[str, Any] | None = msgspec.field(default=None, name="(model_extra)")


def read_delta(fields: Mapping[str, Any]) -> tuple[ChoiceDelta, dict[str, Any]]:
    """Read a delta from a JSON object. Return the delta, and the other fields."""
    unmapped: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    delta = ChoiceDelta(model_extra=unmapped)
    for key, value in fields.items():
        if value is None or key in PADDING:
            continue
        if key in ("role", "refusal") and isinstance(value, str):
            setattr(delta, key, value)
        elif key == "content":
            if isinstance(value, str):
                delta.content = value
            else:
                unmapped[key] = value
                read_parts(delta, value, extra)
        elif key in REASONING_FIELDS and isinstance(value, str):
            unmapped[key] = value
        elif key == "reasoning_details" and isinstance(value, list):
            delta.reasoning_details = cast("list[Any]", value)
        elif key == "tool_calls":
            calls = [_read_call(call) for call in as_mappings(value)]
            delta.tool_calls = [*calls, *(delta.tool_calls or [])]
        elif key == "function_call" and as_mapping(value) is not None:
            delta.tool_calls = [*(delta.tool_calls or []), legacy_call(_read_call({"function": value}))]
            unmapped[key] = value
        else:
            unmapped[key] = value
            extra[key] = value
    if delta.reasoning_content is None:
        # A server that sends several of these fields sends the same text in all of them.
        texts = (unmapped.get(name) for name in REASONING_FIELDS)
        delta.reasoning_content = next((text for text in texts if text and isinstance(text, str)), None)
    return delta, extra


def read_usage(fields: Mapping[str, Any]) -> Usage | None:
    """Return the token counts of a usage object; None if the object has no counts."""
    input_tokens, output_tokens, total = map(fields.get, _COUNTS)
    if type(input_tokens) is int and type(output_tokens) is int and type(total) is int:
        return Usage(input_tokens, output_tokens, total, fields)  # the documented format
    input_tokens = first_count(fields, "prompt_tokens", "input_tokens")
    output_tokens = first_count(fields, "completion_tokens", "output_tokens")
    total = first_count(fields, "total_tokens")
    if input_tokens is None and output_tokens is None and total is None:
        return None
    return Usage(
        input_tokens or 0,
        output_tokens or 0,
        total if total is not None else (input_tokens or 0) + (output_tokens or 0),
        fields,
    )


def counting_usage(
    first: Mapping[str, Any] | None, other: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return the first usage object if it has a count above zero; otherwise the other usage object, or None.

    Some servers send zeros as a placeholder.
    """
    if not first or not other:
        return first or other
    usage = read_usage(first)
    counts = usage is not None and (usage.input_tokens or usage.output_tokens or usage.total_tokens)
    return first if counts else other


def first_count(fields: Mapping[str, Any], *names: str) -> int | None:
    """Return the first valid token count in the named fields; None if there is none."""
    counts = (as_count(fields.get(name)) for name in names)
    return next((count for count in counts if count is not None), None)


def details_text(details: object) -> str:
    """Return the text in ``reasoning_details``. Encrypted entries have no text.

    Source: https://openrouter.ai/docs/use-cases/reasoning-tokens
    """
    return "".join(
        as_text(item.get(_DETAILS_TEXT[kind]))
        for item in as_mappings(details)
        if isinstance(kind := item.get("type"), str) and kind in _DETAILS_TEXT
    )


def has_content(delta: ChoiceDelta) -> bool:
    """Return True if a delta has text, reasoning, a refusal or tool calls."""
    return bool(
        delta.content or delta.reasoning_content or delta.reasoning or delta.refusal or delta.tool_calls
    )


def legacy_call(call: ToolCallChunk) -> ToolCallChunk:
    """Mark a fragment as the legacy ``function_call``, which has no id. A message has at most one such call."""
    call.index = 0
    call.model_extra = {**(call.model_extra or {}), "legacy": "function_call"}
    return call


def read_parts(delta: ChoiceDelta, content: object, extra: dict[str, Any]) -> None:
    """Set the text, reasoning and refusal of a delta whose ``content`` is a list of parts.

    Args:
        delta: The delta to fill.
        content: The list of parts, or a single part.
        extra: Dict to which the parts without text (images, references) are added as ``content_parts``.
    """
    text: list[str] = []
    reasoning: list[str] = []
    refusal: list[str] = []
    other_parts: list[Mapping[str, Any]] = []
    for item in cast("list[object]", content) if isinstance(content, list) else [content]:
        part = as_mapping(item)
        if part is None:
            text += [item] if isinstance(item, str) else []
            continue
        kind = part.get("type")
        texts = _texts(part)
        if kind == "refusal" and isinstance(part.get("refusal"), str):
            refusal.append(part["refusal"])
        elif not texts:
            other_parts.append(part)
        elif kind == "thinking" or kind == "reasoning":
            reasoning += texts
        else:
            text += texts
    delta.content = "".join(text) or None
    if reasoning:
        delta.reasoning_content = "".join(reasoning)
    if refusal and not delta.refusal:
        delta.refusal = "".join(refusal)
    if other_parts:
        extra["content_parts"] = other_parts


def _texts(part: Mapping[str, Any], levels: int = _MAX_PART_LEVELS) -> list[str]:
    texts: list[str] = []
    for key, value in part.items():
        if key not in _TEXT_FIELDS:
            continue
        if isinstance(value, str):
            texts.append(value)
        elif levels:
            for inner in as_mappings(value):
                texts += _texts(inner, levels - 1)
    return texts


def _read_call(call: Mapping[str, Any]) -> ToolCallChunk:
    fields = {key: value for key, value in call.items() if value is not None}
    index, call_id, kind = fields.pop("index", None), fields.pop("id", None), fields.pop("type", None)
    function, custom = as_mapping(fields.pop("function", None)), as_mapping(fields.pop("custom", None))
    name = arguments = None
    if custom is not None:
        kind = kind or "custom"
        name, arguments = custom.get("name"), custom.get("input")
    elif function is not None:
        name, arguments = function.get("name"), function.get("arguments")
        other_fields = {key: value for key, value in function.items() if key not in ("name", "arguments")}
        if other_fields:
            fields["function"] = other_fields
    if arguments is not None and not isinstance(arguments, str):
        arguments = json_text(arguments)
    return ToolCallChunk(
        index=as_index(index),
        id=None if call_id is None else str(call_id),
        type=kind if isinstance(kind, str) else None,
        function=FunctionDelta(name if isinstance(name, str) else None, arguments),
        model_extra=fields,
    )

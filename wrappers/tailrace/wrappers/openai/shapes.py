"""The shapes of a Chat Completions chunk: as OpenAI documents it, and as servers send it instead.

The structs are for decoding at speed; they refuse unknown fields, so a payload that decodes has no others. The
functions read a payload that did not decode, as plain JSON: they keep unknown fields and find the meaning of the
shapes that are known to stand in place of the documented ones.
"""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from tailrace.wrappers.chunks import Usage
from tailrace.wrappers.fields import json_text

# Padding against length side channels, and fields that repeat what is said elsewhere.
PADDING = frozenset({"index", "obfuscation", "object", "p"})
_MAX_PART_LEVELS = 4  # parts inside parts: thinking holds text, and nothing was seen deeper
_REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text", "thinking")

_decode_json = msgspec.json.Decoder().decode


class FunctionDelta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """``function`` of a tool call's fragment."""

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
    """``choices[].delta`` with the attribute names of the openai package's class of that name.

    Attributes:
        model_extra: The delta's fields that OpenAI does not document, and those whose value has another type
            than documented, both unchanged; None when there are none.
    """

    role: str | None = None
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[Any] | None = None
    tool_calls: list[ToolCallChunk] | None = None
    model_extra: dict[str, Any] | None = msgspec.field(default=None, name="(model_extra)")


class ChunkChoice(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One entry of ``choices``.

    The fields of type None stand in every chunk of some servers (vLLM, SGLang), as null. With a value, the payload
    does not decode, and is read the other way.
    """

    index: int = 0
    delta: ChoiceDelta | None = None
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    content_filter_results: dict[str, Any] | None = None
    matched_stop: None = None
    stop_reason: None = None
    token_ids: None = None


class Chunk(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One payload of the stream, ``chat.completion.chunk``."""

    id: str = ""
    object: str = ""
    created: int | float = 0
    model: str = ""
    provider: str | None = None
    service_tier: str | None = None
    system_fingerprint: str | None = None
    choices: list[ChunkChoice] = []
    usage: dict[str, Any] | None = None
    obfuscation: str | None = None
    p: str | None = None


def read_delta(fields: Mapping[str, Any]) -> tuple[ChoiceDelta, dict[str, Any]]:
    """The delta that a JSON object means, and those of its fields that have no place in the interface."""
    odd: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    delta = ChoiceDelta(model_extra=odd)
    for key, value in fields.items():
        if value is None or key in PADDING:
            continue
        if key in ("role", "refusal") and isinstance(value, str):
            setattr(delta, key, value)
        elif key == "content":
            if isinstance(value, str):
                delta.content = value
            else:
                odd[key] = value
                others = _take_parts(delta, value)
                if others:
                    extra["content_parts"] = others
        elif key in _REASONING_FIELDS and isinstance(value, str):
            # Servers that send several of these repeat the same text.
            delta.reasoning_content = delta.reasoning_content or value
            odd[key] = value
        elif key == "reasoning_details" and isinstance(value, list):
            delta.reasoning_details = cast("list[Any]", value)
        elif key == "tool_calls":
            calls = [_read_call(call) for call in as_mappings(value)]
            delta.tool_calls = [*(delta.tool_calls or []), *calls]
        elif key == "function_call" and as_mapping(value) is not None:
            # The form before tool calls: at most one, without an id.
            call = _read_call({"index": 0, "function": value})
            delta.tool_calls = [*(delta.tool_calls or []), call]
            odd[key] = value
        else:
            odd[key] = value
            extra[key] = value
    return delta, extra


def read_usage(fields: Mapping[str, Any]) -> Usage | None:
    """The normalised triple beside the object as sent; None for an object that counts nothing."""

    def count(*names: str) -> int | None:
        for name in names:
            value = fields.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                return int(value)
        return None

    given = count("prompt_tokens", "input_tokens")
    made = count("completion_tokens", "output_tokens")
    total = count("total_tokens")
    if given is None and made is None and total is None:
        return None
    return Usage(given or 0, made or 0, total if total is not None else (given or 0) + (made or 0), fields)


def read_json(payload: bytes) -> object:
    """Any JSON value. The second reader takes what JSON forbids but servers send: lone surrogates, NaN.

    Raises:
        ValueError: It is not JSON even so.
        RecursionError: It is nested too deeply.
    """
    try:
        return _decode_json(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(payload.decode("utf-8", "replace"))


def as_mapping(value: object) -> Mapping[str, Any] | None:
    """``value`` if it is an object, else None."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


def as_mappings(value: object) -> list[Mapping[str, Any]]:
    """The objects in a list; a single object counts as a list of one."""
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    return [mapping for item in items if (mapping := as_mapping(item)) is not None]


def _take_parts(delta: ChoiceDelta, value: object) -> list[Mapping[str, Any]]:
    """Take ``content`` that is a list of parts: text is text, thinking (nested or not) reasoning, a refusal one.

    Returns:
        The parts that hold no text at all: images, references.
    """
    text: list[str] = []
    reasoning: list[str] = []
    refusal: list[str] = []
    others: list[Mapping[str, Any]] = []
    for item in cast("list[object]", value) if isinstance(value, list) else [value]:
        part = as_mapping(item)
        if part is None:
            text += [item] if isinstance(item, str) else []
            continue
        pieces = list(_texts(part))
        if part.get("type") == "refusal" and isinstance(part.get("refusal"), str):
            refusal.append(part["refusal"])
        elif not pieces:
            others.append(part)
        elif part.get("type") in ("thinking", "reasoning"):
            reasoning += pieces
        else:
            text += pieces
    delta.content = "".join(text) or None
    if reasoning:
        delta.reasoning_content = "".join(reasoning)
    delta.refusal = delta.refusal or "".join(refusal) or None
    return others


def _texts(part: Mapping[str, Any], levels: int = _MAX_PART_LEVELS) -> Iterable[str]:
    for key in ("text", "thinking", "summary", "reasoning", "content"):
        value = part.get(key)
        if isinstance(value, str):
            yield value
        elif levels:
            for inner in as_mappings(value):
                yield from _texts(inner, levels - 1)


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
        rest = {key: value for key, value in function.items() if key not in ("name", "arguments")}
        if rest:
            fields["function"] = rest
    if arguments is not None and not isinstance(arguments, str):
        arguments = json_text(arguments)
    return ToolCallChunk(
        index=index if isinstance(index, int) else None,
        id=None if call_id is None else str(call_id),
        type=kind if isinstance(kind, str) else None,
        function=FunctionDelta(name if isinstance(name, str) else None, arguments),
        model_extra=fields,
    )

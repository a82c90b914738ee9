"""Assembly of tool calls from fragments, and parsing of their arguments."""

import json
import math
from typing import Any, cast

from tailrace.wrappers.chunks import FinishReason, ToolCallDelta
from tailrace.wrappers.decoding.fields import FieldFold
from tailrace.wrappers.decoding.verbatim_json import VerbatimObject
from tailrace.wrappers.messages import ContentPartToolCall, join_surrogates, json_value

MAX_VALUES = 100_000
"""Maximum JSON values in a call's arguments; a text with more is not parsed."""


class ToolCallAssembly:
    """Assembly of one tool call's fragments.

    Attributes:
        position: The call's position in order of appearance.
        id: The first non-empty id.
        name: The tool's name so far.
        kind: The first non-empty type.
    """

    __slots__ = ("extra", "id", "kind", "name", "pieces", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.id = ""
        self.name = ""
        self.kind = ""
        self.pieces: list[str] = []
        self.extra = FieldFold()

    def add(self, delta: ToolCallDelta) -> None:
        """Fold one fragment."""
        self.id = self.id or delta.id
        self.kind = self.kind or delta.type
        name = delta.name
        if name and name != self.name:
            # Servers repeat the name, send growing prefixes of it, or split it into fragments.
            self.name = name if name.startswith(self.name) else self.name + name
        if delta.arguments:
            self.pieces.append(delta.arguments)
        if delta.extra:
            self.extra.add(delta.extra)

    def part(self, finish: FinishReason | None) -> ContentPartToolCall:
        """Return the call so far, with parsed arguments.

        Args:
            finish: The finish reason: at the length limit, missing arguments were truncated.
        """
        raw = join_surrogates("".join(self.pieces))
        kind = self.kind or "function"
        values: dict[str, Any] = {"id": self.id, "name": self.name, "kind": kind}
        values["metadata"] = self.extra.to_dict()
        if kind == "custom":
            return ContentPartToolCall(**values, arguments_text=raw)
        cut = finish is FinishReason.LENGTH
        return ContentPartToolCall(**values, **parse_arguments(raw, cut=cut))


def parse_arguments(raw: str, *, cut: bool = False) -> dict[str, Any]:
    """Parse a call's argument text into fields of `ContentPartToolCall`.

    Args:
        raw: The text, joined from all fragments.
        cut: The response ended at its length limit, so that missing arguments are truncated, not empty.

    Returns:
        ``arguments``, or ``arguments_text`` and ``arguments_error`` if it cannot represent the text; with ``arguments``,
        the text as ``arguments_json`` if tailrace would encode it differently. Invalid text is kept unchanged and never
        repaired; a document that a server sent twice is used once.
    """
    if not raw.strip():
        return {"arguments_error": "cut off before any argument arrived"} if cut else {"arguments": {}}
    if _is_large(raw):
        return {"arguments_text": raw, "arguments_error": f"more than {MAX_VALUES} JSON values"}
    try:
        value = json_value(json.loads(raw, parse_constant=_refuse, parse_float=_finite))
    except json.JSONDecodeError as error:
        # If a complete document is followed by other data, the error position separates them.
        once, again = raw[: error.pos].strip(), raw[error.pos :].strip()
        if once == again and error.msg == "Extra data":
            return parse_arguments(once, cut=cut)
        return {"arguments_text": raw, "arguments_error": f"not valid JSON: {error}"}
    except RecursionError:
        return {"arguments_text": raw, "arguments_error": "nested too deeply"}
    except ValueError as error:
        # Accepted by Python's reader but not by others: NaN, too large numbers, too deep nesting.
        return {"arguments_text": raw, "arguments_error": str(error)}
    if isinstance(value, str):
        # Encoded twice: the text of the arguments inside a JSON string.
        inner = parse_arguments(value, cut=cut)
        if value and "arguments" in inner:
            return inner
    if isinstance(value, dict):
        # Text that strict readers reject is not sent back, since servers would reject the whole conversation.
        is_ours = raw == _json(cast("object", value)) or not _is_object(raw)
        return {"arguments": value} if is_ours else {"arguments": value, "arguments_json": raw}
    return {"arguments_text": raw}


def arguments_as_written(call: ContentPartToolCall) -> str | None:
    """Return the model's JSON text of a call's arguments; None if it was not kept, or the arguments were changed."""
    text = call.arguments_json
    if text is None or call.arguments_text is not None or not _is_object(text):
        return None
    return text if parse_arguments(text).get("arguments") == call.arguments else None


def arguments_object(call: ContentPartToolCall) -> dict[str, Any]:
    """Return a call's arguments for a request: always an object, with the model's text if it was kept.

    Text that is not an object is sent as ``{"input": text}``, because servers would reject the whole conversation; the
    same applies to a custom tool's input in formats without custom tools.
    """
    text = call.arguments_text
    if text is None:
        written = arguments_as_written(call)
        return call.arguments if written is None else VerbatimObject(call.arguments, written)
    parsed = parse_arguments(text).get("arguments") if call.kind != "custom" else None
    return {"input": text} if parsed is None else parsed


def verbatim_arguments(call: ContentPartToolCall) -> VerbatimObject:
    """Return `arguments_object` with its text, for formats with text in streams and objects in requests."""
    return VerbatimObject(arguments_object(call), arguments_json(call))


def arguments_json(call: ContentPartToolCall) -> str:
    """Return the arguments as JSON text: the model's text if it was kept and is an object."""
    text = call.arguments_text
    if text is not None and call.kind != "custom" and _is_object(text):
        return text
    return arguments_as_written(call) or _json(arguments_object(call))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_object(text: str) -> bool:
    if _is_large(text):
        return False
    try:
        value = json.loads(text, parse_constant=_refuse)
        if "\\u" in text:
            _json(value).encode()  # fails for lone surrogates, which strict readers reject
        return isinstance(value, dict)
    except (ValueError, RecursionError):
        return False


def _is_large(text: str) -> bool:
    """Return True if decoding a text may create too many values; commas in strings count, too."""
    return len(text) > MAX_VALUES and sum(map(text.count, ",[{")) > MAX_VALUES


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)

"""Assembly of tool calls from fragments, and parsing and encoding of their arguments.

`MessageAssembly` uses `ToolCallAssembly`. The history converters use the functions for requests.
"""

import json
import math
from typing import Any, cast

from tailrace.wrappers.chunks import FinishReason, ToolCallDelta
from tailrace.wrappers.decoding.extra_fields import FieldFold
from tailrace.wrappers.decoding.verbatim_json import VerbatimObject
from tailrace.wrappers.messages import ContentPartToolCall, join_surrogates, json_value

MAX_VALUES = 100_000
"""Maximum number of JSON values in the arguments of a call. Arguments with more values are not parsed."""


class ToolCallAssembly:
    """Assembly of one tool call from its fragments.

    Attributes:
        position: The call's position in order of appearance.
        id: The first non-empty id of a fragment.
        name: The tool's name so far.
        kind: The first non-empty type of a fragment.
    """

    __slots__ = ("extra", "fragments", "id", "kind", "name", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.id = ""
        self.name = ""
        self.kind = ""
        self.fragments: list[str] = []
        self.extra = FieldFold()

    def add(self, delta: ToolCallDelta) -> None:
        """Add one fragment to the call."""
        self.id = self.id or delta.id
        self.kind = self.kind or delta.type
        name = delta.name
        if name and name != self.name:
            # Some servers repeat the name, some send increasingly long prefixes, and some send fragments of the name.
            self.name = name if name.startswith(self.name) else self.name + name
        if delta.arguments:
            self.fragments.append(delta.arguments)
        if delta.extra:
            self.extra.add(delta.extra)

    def part(self, finish: FinishReason | None) -> ContentPartToolCall:
        """Return the call so far, with parsed arguments.

        Args:
            finish: The finish reason of the response. If it is the length limit, missing arguments are an error,
                because they were truncated.
        """
        raw = join_surrogates("".join(self.fragments))
        kind = self.kind or "function"
        values: dict[str, Any] = {"id": self.id, "name": self.name, "kind": kind}
        values["metadata"] = self.extra.to_dict()
        if kind == "custom":
            return ContentPartToolCall(**values, arguments_text=raw)
        cut = finish is FinishReason.LENGTH
        return ContentPartToolCall(**values, **parse_arguments(raw, cut=cut))


def parse_arguments(raw: str, *, cut: bool = False) -> dict[str, Any]:
    """Parse the argument text of a call into fields of `ContentPartToolCall`.

    Args:
        raw: The argument text, joined from all fragments.
        cut: True if the response ended at its length limit. An empty text then means that the arguments were
            truncated, not that the call has no arguments.

    Returns:
        If the text is a JSON object: ``arguments``, and ``arguments_json`` (the unchanged text) if tailrace would
        encode the arguments differently. Otherwise: ``arguments_text`` (the unchanged text), and ``arguments_error``
        if the text is not valid JSON. Invalid text is never repaired. If a server sent the same JSON document twice,
        it is used once.
    """
    if not raw.strip():
        return {"arguments_error": "cut off before any argument arrived"} if cut else {"arguments": {}}
    if _is_large(raw):
        return {"arguments_text": raw, "arguments_error": f"more than {MAX_VALUES} JSON values"}
    try:
        value = json_value(json.loads(raw, parse_constant=_reject_constant, parse_float=_finite))
    except json.JSONDecodeError as error:
        # If other data follows a complete document, the error is at the position between them.
        once, again = raw[: error.pos].strip(), raw[error.pos :].strip()
        if once == again and error.msg == "Extra data":
            return parse_arguments(once, cut=cut)
        return {"arguments_text": raw, "arguments_error": f"not valid JSON: {error}"}
    except RecursionError:
        return {"arguments_text": raw, "arguments_error": "nested too deeply"}
    except ValueError as error:
        # Reject NaN, large numbers and deep nesting, because other JSON parsers than Python's do.
        return {"arguments_text": raw, "arguments_error": str(error)}
    if isinstance(value, str):
        # The arguments may be encoded twice: as a JSON string that contains their JSON text.
        inner = parse_arguments(value, cut=cut)
        if value and "arguments" in inner:
            return inner
    if isinstance(value, dict):
        # Do not store text that strict parsers reject, because servers would reject later requests with this text.
        is_ours = raw == _json(cast("object", value)) or not _is_object(raw)
        return {"arguments": value} if is_ours else {"arguments": value, "arguments_json": raw}
    return {"arguments_text": raw}


def arguments_as_written(call: ContentPartToolCall) -> str | None:
    """Return the model's JSON text for the arguments; None if it was not preserved, or does not match the arguments."""
    text = call.arguments_json
    if text is None or call.arguments_text is not None or not _is_object(text):
        return None
    return text if parse_arguments(text).get("arguments") == call.arguments else None


def arguments_object(call: ContentPartToolCall) -> dict[str, Any]:
    """Return the arguments of a call as a JSON object, for a request.

    Text that is not a JSON object becomes ``{"input": text}``, because servers would reject the text itself. The input
    of a custom tool becomes such an object too.
    """
    text = call.arguments_text
    if text is None:
        written = arguments_as_written(call)
        return call.arguments if written is None else VerbatimObject(call.arguments, written)
    parsed = parse_arguments(text).get("arguments") if call.kind != "custom" else None
    return {"input": text} if parsed is None else parsed


def verbatim_arguments(call: ContentPartToolCall) -> VerbatimObject:
    """Return `arguments_object` with the model's original JSON text, for APIs in which arguments are objects."""
    return VerbatimObject(arguments_object(call), arguments_json(call))


def arguments_json(call: ContentPartToolCall) -> str:
    """Return the arguments as JSON text: the model's original text, if it was preserved and is a JSON object."""
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
        value = json.loads(text, parse_constant=_reject_constant)
        if "\\u" in text:
            _json(value).encode()  # raises an exception for lone surrogates, which strict parsers reject
        return isinstance(value, dict)
    except (ValueError, RecursionError):
        return False


def _is_large(text: str) -> bool:
    """Return True if decoding a text may create more than `MAX_VALUES` values.

    Commas in strings are counted as well.
    """
    return len(text) > MAX_VALUES and sum(map(text.count, ",[{")) > MAX_VALUES


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _reject_constant(number)

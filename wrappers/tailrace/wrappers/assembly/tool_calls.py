"""Assembly of tool calls from fragments, and parsing and encoding of their arguments."""

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

    Args:
        position: The position of the call in order of appearance.
        replaced: The name and the id of the call that this call replaces; empty if it replaces none.

    Attributes:
        position: The position of the call in order of appearance.
        id: The first id in the fragments; empty if there is none yet.
        kind: The first type in the fragments; empty if there is none yet.
    """

    __slots__ = ("_replaced", "extra", "fragments", "id", "kind", "name", "position")

    def __init__(self, position: int, replaced: tuple[str, str] = ("", "")) -> None:
        self._replaced = replaced
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
            # Some servers repeat the name, some send longer and longer prefixes, and others send fragments.
            self.name = name if name.startswith(self.name) else self.name + name
        if delta.arguments:
            self.fragments.append(delta.arguments)
        if delta.extra:
            self.extra.add(delta.extra)

    @property
    def final_id(self) -> str:
        """The id of the replaced call if both call the same tool; otherwise the id of this call.

        A client then treats both as the same call. Server tools keep their ids, because their results contain the ids.
        """
        name, known = self._replaced
        return known if known and name == self.name and self.kind != "server" else self.id

    def part(self, finish: FinishReason | None) -> ContentPartToolCall:
        """Return the call so far, with parsed arguments.

        Args:
            finish: The finish reason of the response; None if there is none yet. With LENGTH, a call without arguments gets an
                ``arguments_error``, because its arguments were truncated.
        """
        raw = join_surrogates("".join(self.fragments))
        kind = self.kind or "function"
        values: dict[str, Any] = {"id": self.final_id, "name": self.name, "kind": kind}
        values["metadata"] = self.extra.to_dict()
        if kind == "custom":
            return ContentPartToolCall(**values, arguments_text=raw)
        cut = finish is FinishReason.LENGTH
        return ContentPartToolCall(**values, **parse_arguments(raw, is_truncated=cut))


def parse_arguments(raw: str, *, is_truncated: bool = False) -> dict[str, Any]:
    """Parse the argument text of a call into fields of `ContentPartToolCall`.

    Args:
        raw: The argument text, joined from all fragments.
        is_truncated: True if the response ended at its length limit. An empty text is then an error.

    Returns:
        ``arguments`` for a JSON object, for a JSON string with the text of one, and for an empty text. ``arguments_json``, the
        unchanged text, if tailrace would encode the arguments differently. ``arguments_text``, the unchanged text, for any other
        text. ``arguments_error`` for text that is not valid JSON, has too many values or is nested too deeply. Invalid text is
        never repaired. If a server sent the same JSON document twice, one copy is used.
    """
    if not raw.strip():
        return (
            {"arguments_error": "cut off before any argument arrived"} if is_truncated else {"arguments": {}}
        )
    if _is_large(raw):
        return {"arguments_text": raw, "arguments_error": f"more than {MAX_VALUES} JSON values"}
    try:
        value = json_value(json.loads(raw, parse_constant=_reject_constant, parse_float=_finite))
    except json.JSONDecodeError as error:
        # "Extra data" after a complete document: the position of the error is the end of the document.
        once, again = raw[: error.pos].strip(), raw[error.pos :].strip()
        if once == again and error.msg == "Extra data":
            return parse_arguments(once, is_truncated=is_truncated)
        return {"arguments_text": raw, "arguments_error": f"not valid JSON: {error}"}
    except RecursionError:
        return {"arguments_text": raw, "arguments_error": "nested too deeply"}
    except ValueError as error:
        # Other JSON parsers reject NaN, large numbers and deep nesting.
        return {"arguments_text": raw, "arguments_error": str(error)}
    if isinstance(value, str):
        # The arguments may be encoded twice: as a JSON string whose value is JSON text.
        inner = parse_arguments(value, is_truncated=is_truncated)
        if value and "arguments" in inner:
            return inner
    if isinstance(value, dict):
        # Text that strict parsers reject is not stored, because servers would reject later requests with this text.
        is_ours = raw == _json(cast("object", value)) or not _is_object(raw)
        return {"arguments": value} if is_ours else {"arguments": value, "arguments_json": raw}
    return {"arguments_text": raw}


def arguments_as_written(call: ContentPartToolCall) -> str | None:
    """Return the model's JSON text of the arguments; None if it was not stored, or does not match the arguments."""
    text = call.arguments_json
    if text is None or call.arguments_text is not None or not _is_object(text):
        return None
    return text if parse_arguments(text).get("arguments") == call.arguments else None


def arguments_object(call: ContentPartToolCall) -> dict[str, Any]:
    """Return the arguments of a call as a JSON object, for a request.

    Text that is not a JSON object, and the input of a custom tool, becomes ``{"input": text}``.
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
    """Return the arguments as JSON text: the model's original text if it was stored and is a JSON object."""
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
            _json(value).encode()  # raises an error for lone surrogates, which strict parsers reject
        return isinstance(value, dict)
    except (ValueError, RecursionError):
        return False


def _is_large(text: str) -> bool:
    """Return True if decoding the text may create more than `MAX_VALUES` values. Commas in strings are counted, too."""
    return len(text) > MAX_VALUES and sum(map(text.count, ",[{")) > MAX_VALUES


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _reject_constant(number)

"""One tool call put together from its fragments, and what its arguments mean."""

import json
import math
from typing import Any

import msgspec

from tailrace.wrappers.chunks import FinishReason, ToolCallDelta
from tailrace.wrappers.fields import FieldFold
from tailrace.wrappers.messages import ContentPartToolCall, join_surrogates, json_value


class ToolCallAssembly:
    """One tool call while its fragments arrive.

    Attributes:
        position: Its place in the order of appearance.
        id: The first id that was not empty.
        name: The tool's name so far.
        kind: The first type that was not empty.
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
            # Some servers repeat the name, some repeat it growing, some cut it in pieces.
            self.name = name if name.startswith(self.name) else self.name + name
        if delta.arguments:
            self.pieces.append(delta.arguments)
        if delta.extra:
            self.extra.add(delta.extra)

    def part(self, finish: FinishReason | None) -> ContentPartToolCall:
        """The call as it stands; its arguments are parsed here, once.

        Args:
            finish: Why the answer ended: what is missing at its length limit was cut off.
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
    """What a call's joined argument text means, as fields of `ContentPartToolCall`.

    Args:
        raw: The text, joined from all fragments.
        cut: The answer ended at its length limit, so that missing arguments mean "cut off", not "none".

    Returns:
        ``arguments``, and where that does not say it all ``arguments_text`` and ``arguments_error``. Text that
        does not parse is kept as it is and never repaired; a document that a server sent twice counts once.
    """
    if not raw.strip():
        return {"arguments_error": "cut off before any argument arrived"} if cut else {"arguments": {}}
    try:
        value = json_value(json.loads(raw, parse_constant=_refuse, parse_float=_finite))
    except json.JSONDecodeError as error:
        # Where a whole document is followed by something, the error stands between the two.
        once, again = raw[: error.pos].strip(), raw[error.pos :].strip()
        if once == again and error.msg == "Extra data":
            return parse_arguments(once, cut=cut)
        return {"arguments_text": raw, "arguments_error": f"not valid JSON: {error}"}
    except RecursionError:
        return {"arguments_text": raw, "arguments_error": "nested too deeply"}
    except ValueError as error:
        # Python's reader takes it, others do not: NaN, numbers too large, depths that no reader follows.
        return {"arguments_text": raw, "arguments_error": str(error)}
    if isinstance(value, str):
        # Encoded twice: the text of the arguments inside a JSON string.
        inner = parse_arguments(value, cut=cut)
        if value and "arguments_text" not in inner:
            return inner
    if isinstance(value, dict):
        return {"arguments": value}
    return {"arguments_text": raw}


def arguments_object(call: ContentPartToolCall) -> dict[str, Any]:
    """The arguments with which a call is sent back: an object always.

    A text that is none would have servers refuse the whole conversation, now and ever after. It goes out as
    ``{"input": text}``, and so does what was written for a custom tool, where a format knows none.
    """
    text = call.arguments_text
    if text is None:
        return call.arguments
    parsed = parse_arguments(text).get("arguments") if call.kind != "custom" else None
    return {"input": text} if parsed is None else parsed


def arguments_json(call: ContentPartToolCall) -> str:
    """The same as the JSON text that some formats carry: the model's own where it was kept and is an object."""
    text = call.arguments_text
    if text is not None and call.kind != "custom" and _is_object(text):
        return text
    return json.dumps(arguments_object(call), ensure_ascii=False)


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)

"""Arguments of a function call that arrive value by value, each under the path where it belongs.

Vertex AI streams a call's arguments so when asked to (``streamFunctionCallArguments``): a long text comes in pieces
that all carry the same path, numbers, booleans and null come whole.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from tailrace.wrappers.fields import json_text
from tailrace.wrappers.loose_json import as_text

_MAX_STEPS = 64  # of one path; what is nested deeper is kept under the path's text

# One step of a JSONPath (RFC 9535) that names a single value: ``.name``, ``[0]``, ``['name']`` or ``["name"]``.
_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]]+)|\[(?P<index>\d{1,9})\]|\[(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]""",
    re.DOTALL,
)
_Step = str | int


class _Container:
    """An object or a list while it grows: its members by name or position."""

    __slots__ = ("is_list", "members")

    def __init__(self, *, is_list: bool) -> None:
        self.is_list = is_list
        self.members: dict[_Step, Any] = {}

    def inner(self, step: _Step, *, is_list: bool) -> "_Container":
        """The object or list at a step, made where there is none yet; one that came whole can grow from then on."""
        found = self.members.get(step)
        if isinstance(found, _Container):
            return found
        made = self.members[step] = _Container(is_list=is_list or isinstance(found, list))
        if isinstance(found, dict):
            made.members.update(cast("dict[_Step, Any]", found))
        elif isinstance(found, list):
            made.members.update(enumerate(cast("list[Any]", found)))
        return made

    def plain(self) -> Any:
        """As JSON has it; a list that was given a name among its positions becomes an object."""
        if self.is_list and all(isinstance(step, int) for step in self.members):
            return self._items()
        return {str(step): _plain(value) for step, value in self.members.items()}

    def _items(self) -> list[Any]:
        """The items in order; null for a few that never came, far gaps are closed."""
        positions = sorted(step for step in self.members if isinstance(step, int))
        if positions and positions[-1] <= 2 * len(positions) + 8:
            positions = range(positions[-1] + 1)
        return [_plain(self.members.get(position)) for position in positions]


class _Text:
    """A text while it grows."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[str] = []


class PartialArguments:
    """The arguments of one call while they arrive. Adding a value costs what the value is long."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Container(is_list=False)

    def update(self, arguments: Mapping[str, Any]) -> None:
        """Take arguments that come whole."""
        self._root.members.update(arguments)

    def add(self, partial: Mapping[str, Any]) -> None:
        """Take one element of ``partialArgs``.

        A piece of text goes behind what its path holds already; any other value replaces. A path that cannot be read
        becomes the name of an argument as it is, so that its value is not lost.
        """
        path = as_text(partial.get("jsonPath"))
        *steps, last = _steps(path) or (path,)
        container = self._root
        for step, following in zip(steps, [*steps, last][1:], strict=True):
            container = container.inner(step, is_list=isinstance(following, int))
        members = container.members
        if isinstance(partial.get("stringValue"), str):
            text = members.get(last)
            if not isinstance(text, _Text):
                text = members[last] = _Text()
            text.pieces.append(partial["stringValue"])
        elif "numberValue" in partial:
            members[last] = _number(partial["numberValue"])
        elif "boolValue" in partial:
            members[last] = partial["boolValue"]
        elif "nullValue" in partial:
            members[last] = None

    def text(self, *, whole: bool) -> str:
        """The arguments as JSON.

        Args:
            whole: They are complete. If not, the last brace is left out: what was cut off must not pass for what the
                model meant.
        """
        text = json_text(self._root.plain())
        return text if whole else text[:-1]


def _steps(path: str) -> list[_Step]:
    """The steps of a path; none when it is not one that names a single value."""
    steps: list[_Step] = []
    position = 1
    while position < len(path) and len(steps) < _MAX_STEPS:
        match = _STEP.match(path, position)
        if match is None:
            break
        position = match.end()
        name, index, quoted = match.groups()
        steps.append(int(index) if index else name or _unquoted(quoted))
    return steps if path[:1] == "$" and position == len(path) else []


def _unquoted(quoted: str) -> str:
    """The name between quotes, whose escapes are those of JSON."""
    name = quoted[1:-1]
    if quoted[0] == "'":
        name = name.replace("\\'", "'").replace('"', '\\"')
    try:
        return json.loads(f'"{name}"', strict=False)
    except ValueError:
        return name


def _number(value: object) -> object:
    """Numbers are doubles on this wire; one without a fraction is a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _plain(value: Any) -> Any:
    if isinstance(value, _Container):
        return value.plain()
    if isinstance(value, _Text):
        return "".join(value.pieces)
    return value

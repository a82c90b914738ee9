"""Assembly of function call arguments that are streamed as single values, each with a JSON path.

Vertex AI does this if ``streamFunctionCallArguments`` is set. A long string arrives in fragments with the same path.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from tailrace.wrappers.decoding.extra_fields import json_text
from tailrace.wrappers.decoding.lenient_json import as_text

# Maximum number of steps of a path. A longer path is used as an argument name.
_MAX_STEPS = 64

# One step of a JSONPath (RFC 9535) for a single value: ``.name``, ``[0]``, ``['name']`` or ``["name"]``.
_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]]+)|\[(?P<index>\d{1,9})\]|\[(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]""",
    re.DOTALL,
)
_Step = str | int


class _Container:
    """A growing object or list. Its members have names or positions."""

    __slots__ = ("is_list", "members")

    def __init__(self, *, is_list: bool) -> None:
        self.is_list = is_list
        self.members: dict[_Step, Any] = {}

    def child(self, step: _Step, *, is_list: bool) -> "_Container":
        """Return the container at a step, if necessary a new one. A plain object or list at the step is converted to it."""
        existing = self.members.get(step)
        if isinstance(existing, _Container):
            return existing
        child = self.members[step] = _Container(is_list=is_list or isinstance(existing, list))
        if isinstance(existing, dict):
            child.members.update(cast("dict[_Step, Any]", existing))
        elif isinstance(existing, list):
            child.members.update(enumerate(cast("list[Any]", existing)))
        return child

    def plain(self) -> Any:
        """Return the plain JSON value. A list that has a member with a name becomes an object."""
        if self.is_list and all(isinstance(step, int) for step in self.members):
            return self._items()
        return {str(step): _plain(value) for step, value in self.members.items()}

    def _items(self) -> list[Any]:
        """Return the items in order. Missing items become null, but if many items are missing, they are omitted."""
        positions = sorted(step for step in self.members if isinstance(step, int))
        if positions and positions[-1] <= 2 * len(positions) + 8:
            positions = range(positions[-1] + 1)
        return [_plain(self.members.get(position)) for position in positions]


class _Text:
    __slots__ = ("fragments",)

    def __init__(self) -> None:
        self.fragments: list[str] = []


class PartialArguments:
    """The streamed arguments of one call."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Container(is_list=False)

    def update(self, arguments: Mapping[str, Any]) -> None:
        """Add complete values by name, which replace earlier values."""
        self._root.members.update(arguments)

    def add(self, partial: Mapping[str, Any]) -> None:
        """Add one element of ``partialArgs``.

        A string is appended to the earlier string with the same path. Any other value replaces the earlier value. An invalid path
        is used as an argument name.
        """
        path = as_text(partial.get("jsonPath"))
        *steps, last = _steps(path) or (path,)
        container = self._root
        for step, following in zip(steps, [*steps, last][1:], strict=True):
            container = container.child(step, is_list=isinstance(following, int))
        members = container.members
        if isinstance(partial.get("stringValue"), str):
            text = members.get(last)
            if not isinstance(text, _Text):
                text = members[last] = _Text()
            text.fragments.append(partial["stringValue"])
        elif "numberValue" in partial:
            members[last] = _number(partial["numberValue"])
        elif "boolValue" in partial:
            members[last] = partial["boolValue"]
        elif "nullValue" in partial:
            members[last] = None

    def text(self, *, complete: bool) -> str:
        """Return the arguments as JSON text.

        Args:
            complete: False to omit the last brace, so that truncated arguments are not valid JSON.
        """
        text = json_text(self._root.plain())
        return text if complete else text[:-1]


def _steps(path: str) -> list[_Step]:
    """Return the steps of a path; an empty list if it is invalid or too long, or refers to several values."""
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
    """Return a name without its quotes. Decode escapes as in JSON."""
    name = quoted[1:-1]
    if quoted[0] == "'":
        name = name.replace("\\'", "'").replace('"', '\\"')
    try:
        return json.loads(f'"{name}"', strict=False)
    except ValueError:
        return name


def _number(value: object) -> object:
    """Convert a float without a fraction to an integer. The API sends all numbers as floats."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _plain(value: Any) -> Any:
    if isinstance(value, _Container):
        return value.plain()
    if isinstance(value, _Text):
        return "".join(value.fragments)
    return value

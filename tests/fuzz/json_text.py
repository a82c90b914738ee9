"""JSON as a tree that can hold what no JSON value can: keys that stand twice, and text that is no JSON."""

import json
from dataclasses import dataclass
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Raw:
    """Text that is written as it is, in the place of a value."""

    text: str


class Members(list[tuple[str, Any]]):
    """An object, as its members in order."""


def parse(payload: bytes) -> Any:
    """The tree of a JSON text.

    Raises:
        ValueError: It is none, or is nested too deeply.
    """
    try:
        return json.loads(payload, object_pairs_hook=Members)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write(tree: Any) -> bytes:
    """A tree as text; half surrogates as escapes."""
    return _write(tree).encode("utf-8", "surrogatepass")


def _write(tree: Any) -> str:
    if isinstance(tree, Raw):
        return tree.text
    if isinstance(tree, Members):
        return "{" + ",".join([f"{_write(key)}:{_write(value)}" for key, value in tree]) + "}"
    if isinstance(tree, list):
        return "[" + ",".join([_write(item) for item in cast("list[Any]", tree)]) + "]"
    if isinstance(tree, str):
        text = json.dumps(tree, ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError:
            return json.dumps(tree)
        return text
    return json.dumps(tree)


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a tree a value stands: in a list or among the members of an object.

    Attributes:
        parent: The list, or object.
        index: Which of its items or members.
    """

    parent: Any
    index: int

    @property
    def key(self) -> str:
        """The member's name; empty in a list."""
        return self.parent[self.index][0] if isinstance(self.parent, Members) else ""

    @property
    def value(self) -> Any:
        """What stands there."""
        return self.parent[self.index][1] if isinstance(self.parent, Members) else self.parent[self.index]

    def put(self, value: Any) -> None:
        """Put another value there."""
        if isinstance(self.parent, Members):
            self.parent[self.index] = (self.key, value)
        else:
            self.parent[self.index] = value


def places(tree: Any) -> list[Place]:
    """Every place of a tree, from the outside to the inside."""
    found: list[Place] = []
    waiting: list[Any] = [tree]
    for node in waiting:  # grows on the way
        if isinstance(node, list):
            inner = [Place(node, index) for index in range(len(cast("list[Any]", node)))]
            found += inner
            waiting += [place.value for place in inner]
    return found

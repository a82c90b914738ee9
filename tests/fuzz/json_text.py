"""JSON as a tree that can represent invalid JSON: repeated keys, and text that is not JSON."""

import json
from dataclasses import dataclass
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Raw:
    """Text that is written unchanged in the place of a value."""

    text: str


class Members(list[tuple[str, Any]]):
    """An object as its members in order."""


def parse(payload: bytes) -> Any:
    """Return the tree of a JSON text.

    Raises:
        ValueError: The text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(payload, object_pairs_hook=Members)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write(tree: Any) -> bytes:
    """Return a tree as text, with lone surrogates as escapes."""
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
    """The location of a value in a tree: in a list or among the members of an object.

    Attributes:
        parent: The list or object.
        index: The index of the item or member.
    """

    parent: Any
    index: int

    @property
    def key(self) -> str:
        """The member's name; empty in a list."""
        return self.parent[self.index][0] if isinstance(self.parent, Members) else ""

    @property
    def value(self) -> Any:
        """The value in this place."""
        return self.parent[self.index][1] if isinstance(self.parent, Members) else self.parent[self.index]

    def put(self, value: Any) -> None:
        """Replace the value."""
        if isinstance(self.parent, Members):
            self.parent[self.index] = (self.key, value)
        else:
            self.parent[self.index] = value


def places(tree: Any) -> list[Place]:
    """Every place of a tree, outermost first."""
    found: list[Place] = []
    waiting: list[Any] = [tree]
    for node in waiting:  # grows during the loop
        if isinstance(node, list):
            inner = [Place(node, index) for index in range(len(cast("list[Any]", node)))]
            found += inner
            waiting += [place.value for place in inner]
    return found

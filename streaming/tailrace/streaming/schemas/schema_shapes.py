"""Conversion of a JSON schema to shapes, which can check an incomplete value.

A schema is converted to alternatives. Each alternative is a `Shape`: schemas that all apply to the value, without references and
combinations (``allOf``, ``anyOf``, ``oneOf``). Unsupported keywords are ignored, so that a shape never rejects a valid value.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, cast

KINDS = frozenset(("object", "array", "string", "number", "boolean", "null"))
"""The kinds of JSON values, which the first character of a value determines."""

_MAX_ALTERNATIVES = 64
_MAX_LEVELS = 100

MAX_WORK = 1_000_000
"""Default maximum number of steps for the conversion of a schema. A step takes up to one microsecond."""

Parts = tuple[Mapping[str, Any], ...]


class Shape:
    """Schemas that apply to a value together.

    Args:
        parts: The schemas.
        schema: The shapes of the schema that contains the parts.

    Attributes:
        kinds: The kinds of values that the shape accepts.
        constants: The values that the shape accepts, if the schema lists them; otherwise None.
        names: The names of members that the shape accepts; None for any name.
        required: The names of required members.
        size: The number of schemas, constants and names, which determines the time for checking a value.
    """

    def __init__(self, parts: Parts, schema: "SchemaShapes") -> None:
        self._parts = parts
        self._schema = schema
        self._members: dict[str | None, tuple[Shape, ...]] = {}
        self._items: dict[int, tuple[Shape, ...]] = {}
        self.constants: list[Any] | None = None
        self.names: frozenset[str] | None = None
        kinds = KINDS
        required: set[str] = set()
        for part in parts:
            kinds &= _kinds_of(part)
            required.update(part.get("required", ()))
            values = [part["const"]] if "const" in part else part.get("enum")
            if values is not None:
                before = self.constants
                if before is None:
                    self.constants = cast("list[Any]", values)
                elif schema.spend(len(before) * len(values)):
                    self.constants = [
                        each for each in before if any(is_equal(each, value) for value in values)
                    ]
            if part.get("additionalProperties") is False and not part.get("patternProperties"):
                names = frozenset(cast("Mapping[str, Any]", part.get("properties", {})))
                self.names = names if self.names is None else self.names & names
        if self.constants is not None:
            kinds &= {_kind_of(value) for value in self.constants}
        self.kinds = kinds
        self.required = frozenset(required)
        self.size = len(parts) + len(self.constants or ()) + len(self.names or ()) + len(required)

    def member(self, name: str) -> tuple["Shape", ...]:
        """Return the alternatives for the value of a member."""
        key = name if self.knows(name) else None  # members with other names have the same alternatives
        shape = self._members.get(key)
        if shape is None:
            schemas: list[Any] = []
            for part in self._parts:
                properties = cast("Mapping[str, Any]", part.get("properties", {}))
                if name in properties:
                    schemas.append(properties[name])
                elif not part.get("patternProperties"):
                    schemas.append(part.get("additionalProperties", True))
            shape = self._members[key] = self._schema.alternatives(schemas)
        return shape

    def knows(self, name: str) -> bool:
        """Return True if the schemas define a member with this name."""
        return any(name in cast("Mapping[str, Any]", part.get("properties", {})) for part in self._parts)

    def item(self, index: int) -> tuple["Shape", ...]:
        """Return the alternatives for an item of an array."""
        prefixes = [_prefix_items(part) for part in self._parts]
        key = min(index, max(map(len, prefixes), default=0))  # later items have the same alternatives
        shape = self._items.get(key)
        if shape is None:
            schemas: list[Any] = []
            for part, prefix in zip(self._parts, prefixes, strict=True):
                items = part.get("items", True)
                if index < len(prefix):
                    schemas.append(prefix[index])
                elif not isinstance(items, list):
                    schemas.append(items)
            shape = self._items[key] = self._schema.alternatives(schemas)
        return shape


class SchemaShapes:
    """The shapes of a schema.

    Args:
        schema: A valid JSON schema.
        max_work: Maximum number of steps for the conversion. Further parts of the schema accept any value.

    Attributes:
        roots: The alternatives for the complete value.
    """

    def __init__(self, schema: Mapping[str, Any], max_work: int = MAX_WORK) -> None:
        self._work = max_work
        self._root = schema
        self._has_own_references = _has_identifiers(schema)
        self._shapes: dict[tuple[int, ...], Shape] = {}
        self._any = Shape((), self)
        self.roots = self.alternatives([schema])

    def spend(self, steps: int) -> bool:
        """Count steps of the conversion. Return False above the maximum."""
        self._work -= steps
        return self._work >= 0

    def alternatives(self, schemas: Sequence[Any]) -> tuple[Shape, ...]:
        """Return the alternatives for a value to which several schemas apply; empty if no value is valid."""
        shapes: list[Shape] = []
        for parts in self._combined([self._expanded(each, frozenset(), 0) for each in schemas]):
            shape = self._shape(parts)
            if shape.kinds and shape not in shapes:
                shapes.append(shape)
        return tuple(shapes)

    def _shape(self, parts: Parts) -> Shape:
        if not parts:
            return self._any
        key = tuple(id(part) for part in parts)  # the ids are stable, because the schema remains in memory
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = Shape(parts, self)
        return shape

    def _expanded(self, schema: Any, seen: frozenset[str], level: int) -> list[Parts]:
        """Return the alternatives of a schema.

        The result is an empty alternative, which accepts any value, if the schema cannot be expanded.
        """
        if schema is False:
            return []
        if not isinstance(schema, dict) or not schema or level > _MAX_LEVELS or not self.spend(1):
            return [()]
        fields = cast("dict[str, Any]", schema)
        if "$ref" in fields:  # in older drafts, the other keywords do not apply
            target = str(fields["$ref"])
            if target in seen or self._has_own_references:
                return [()]
            return self._expanded(self._resolve(target), seen | {target}, level + 1)
        choices: list[list[Parts]] = [[(fields,)]]
        choices += [self._expanded(each, seen, level + 1) for each in fields.get("allOf", ())]
        for keyword in ("anyOf", "oneOf"):
            if keyword in fields:
                choices.append(
                    [parts for each in fields[keyword] for parts in self._expanded(each, seen, level + 1)]
                )
        return self._combined(choices)

    def _combined(self, choices: Sequence[list[Parts]]) -> list[Parts]:
        """Return all combinations of one alternative from each list; an empty alternative if there are too many."""
        number = 1
        for each in choices:
            number *= len(each)
            if number > _MAX_ALTERNATIVES:
                return [()]
        max_parts = sum(max(map(len, each), default=0) for each in choices)
        if not self.spend(number * max_parts):
            return [()]
        return [tuple(part for parts in each for part in parts) for each in product(*choices)]

    def _resolve(self, target: str) -> Any:
        """Return the target of a reference; True, which accepts all values, for an unknown target."""
        if target == "#":
            return self._root
        if not target.startswith("#/"):
            return True
        value: Any = self._root
        for step in target[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(value, dict) or name not in value:
                return True
            value = cast("dict[str, Any]", value)[name]
        return value


def is_equal(value: Any, other: Any) -> bool:
    """Return True if two JSON values are equal. 1 equals 1.0, but 1 does not equal true."""
    return _kind_of(value) == _kind_of(other) and value == other


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    if isinstance(value, str):
        return "string"
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else "number"


def _kinds_of(part: Mapping[str, Any]) -> frozenset[str]:
    declared = part.get("type")
    if declared is None:
        return KINDS
    names = [declared] if isinstance(declared, str) else cast("list[str]", declared)
    kinds = frozenset("number" if name == "integer" else name for name in names)
    return kinds if kinds <= KINDS else KINDS


def _prefix_items(part: Mapping[str, Any]) -> Sequence[Any]:
    items = part.get("items")
    return cast("Sequence[Any]", items if isinstance(items, list) else part.get("prefixItems", ()))


def _has_identifiers(schema: Any) -> bool:
    """Return True if a part of a schema has an identifier, which changes the meaning of references in this part."""
    waiting: list[Any] = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            fields = cast("dict[str, Any]", each)
            if each is not schema and ("$id" in fields or "id" in fields):
                return True
            waiting += fields.values()
        elif isinstance(each, list):
            waiting += cast("list[Any]", each)
    return False

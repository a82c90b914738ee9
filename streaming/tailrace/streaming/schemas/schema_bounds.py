"""Limits for the JSON schemas of callers, which bound the time for compiling a schema and validating a value.

The limits are needed because the validator holds the global interpreter lock. Patterns are matched in linear time. The cost of
all other keywords is at most the number of values, multiplied by the *width* of the schema. The width is the maximum number of
keywords that apply to one value.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

MAX_SIZE = 20_000
"""Maximum number of parts (JSON values) of a schema. A part counts once for each reference to it."""

MAX_VALUES = 10_000
"""Maximum number of JSON values of a schema. References are not followed."""

MAX_CHARACTERS = 1_000_000
"""Maximum number of characters of all strings and names in a schema, or in the schemas of all tools together."""

MAX_PATTERNS = 50
"""Maximum number of different patterns in a schema. Compiling a pattern takes up to a millisecond."""

MAX_PATTERN_LENGTH = 1_000
"""Maximum number of characters of a pattern."""

PATTERN_SIZE = 256 * 1024
"""Maximum size of a compiled pattern in bytes."""

_MAX_LEVELS = 200
_MAX_STEPS = 100_000  # maximum number of steps for computing the width

# Keywords whose schemas apply to the same value.
_SAME_VALUE_KEYWORDS = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_SAME_VALUE_MAPS = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

# Keywords whose schemas apply to members or items of the value.
_CHILD_KEYWORDS = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "items",
    "prefixItems",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)


def check_values(schema: Mapping[str, Any]) -> None:
    """Raise an error for a schema that may take too long to compile.

    Raises:
        ValueError: The schema has more than `MAX_VALUES` values or `MAX_CHARACTERS` characters.
    """
    if (count := count_values(schema)) > MAX_VALUES:
        raise ValueError(f"the schema is too large: it has {count} JSON values; the maximum is {MAX_VALUES}")
    if (count := count_characters(schema)) > MAX_CHARACTERS:
        raise ValueError(
            f"the schema is too large: it has {count} characters; the maximum is {MAX_CHARACTERS}"
        )


def check_patterns(schema: object) -> None:
    """Raise an error if the patterns in a schema, or in a list of schemas, may take too long to compile.

    Raises:
        ValueError: There are more than `MAX_PATTERNS` patterns, or a pattern is longer than `MAX_PATTERN_LENGTH`.
    """
    patterns = set(_patterns(schema))
    if len(patterns) > MAX_PATTERNS:
        raise ValueError(f"the schema has {len(patterns)} different patterns; the maximum is {MAX_PATTERNS}")
    if (length := max(map(len, patterns), default=0)) > MAX_PATTERN_LENGTH:
        raise ValueError(
            f"the schema has a pattern of {length} characters; the maximum is {MAX_PATTERN_LENGTH}"
        )


def schema_width(schema: Mapping[str, Any], *, recursive: bool) -> int:
    """Return the maximum number of keywords of a schema that may apply to one value.

    Args:
        schema: The schema.
        recursive: True if the schema refers to itself (see `schema_size`).

    Raises:
        ValueError: The schema is too large.
    """
    return _Width(schema, recursive=recursive).of([schema])


def count_values(value: object, limit: float = math.inf) -> int:
    """Return the number of JSON values in a value, including the value itself.

    Args:
        value: The value.
        limit: Counting stops above this number.
    """
    count = 0
    waiting = [value]
    while waiting and count <= limit:
        each = waiting.pop()
        count += 1
        if isinstance(each, dict):
            waiting.extend(cast("dict[str, object]", each).values())
        elif isinstance(each, list):
            waiting.extend(cast("list[object]", each))
    return count


def count_characters(value: object) -> int:
    """Return the number of characters of all strings and names in a JSON value."""
    count = 0
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            count += len(each)
        elif isinstance(each, dict):
            members = cast("dict[str, object]", each)
            count += sum(map(len, members))
            waiting.extend(members.values())
        elif isinstance(each, list):
            waiting.extend(cast("list[object]", each))
    return count


def _patterns(schema: object) -> Iterator[str]:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting.extend(cast("list[object]", part))
        elif isinstance(part, dict):
            fields = cast("dict[str, object]", part)
            if isinstance(pattern := fields.get("pattern"), str):
                yield pattern
            if isinstance(by_pattern := fields.get("patternProperties"), dict):
                yield from cast("dict[str, object]", by_pattern)
            waiting.extend(fields.values())


class _Width:
    """Counter of the keywords that may apply to one value. A keyword counts once for each reference to it.

    Args:
        root: The schema.
        recursive: True if the schema refers to itself. Then the validator caches results, and the same schemas count once.
    """

    def __init__(self, root: Mapping[str, Any], *, recursive: bool) -> None:
        self._root = root
        self._known: set[frozenset[int]] | None = set() if recursive else None
        self._steps = 0

    def of(self, schemas: list[Mapping[str, Any]]) -> int:
        """Return the width of several schemas for the same value, including the schemas of its members and items."""
        widest = 1
        waiting = [schemas]
        while waiting:
            width, children = self._at(waiting.pop())
            widest = max(widest, width)
            for group in children:
                if self._known is not None:
                    key = frozenset(map(id, group))
                    if key in self._known:
                        continue
                    self._known.add(key)
                waiting.append(group)
        return widest

    def _at(self, schemas: list[Mapping[str, Any]]) -> tuple[int, list[list[Mapping[str, Any]]]]:
        """Return the number of keywords that apply to a value, and a group of schemas for each of its members and items."""
        width = 0
        by_name: dict[str, list[Mapping[str, Any]]] = {}
        for_all: list[Mapping[str, Any]] = []
        waiting = [(schema, 0) for schema in schemas]
        while waiting:
            schema, level = waiting.pop()
            width += self._keywords(schema)
            if level < _MAX_LEVELS:  # only a schema that refers to itself is nested more deeply
                waiting.extend((each, level + 1) for each in self._in_place(schema))
            for name, member in _members(schema, "properties"):
                by_name.setdefault(name, []).append(member)
            for keyword in _CHILD_KEYWORDS:
                for_all += _listed(schema.get(keyword))
            for_all += (member for _, member in _members(schema, "patternProperties"))
        self._count(len(by_name) * len(for_all))
        groups = [[*members, *for_all] for members in by_name.values()] if for_all else list(by_name.values())
        return width, [group for group in (*groups, for_all) if group]

    def _keywords(self, schema: Mapping[str, Any]) -> int:
        """Count the keywords of a schema. Values in lists, and patterns for names, count as keywords too."""
        lists = sum(len(cast("list[object]", value)) for value in schema.values() if isinstance(value, list))
        count = len(schema) + lists + len(_members(schema, "patternProperties"))
        self._count(count + len(_members(schema, "properties")))
        return count

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise ValueError("the schema is too large: too many of its parts may apply to one value")

    def _in_place(self, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        for keyword in _SAME_VALUE_KEYWORDS:
            yield from _listed(schema.get(keyword))
        for keyword in _SAME_VALUE_MAPS:
            yield from (member for _, member in _members(schema, keyword))
        for keyword in _REFERENCES:
            if isinstance(target := schema.get(keyword), str):
                yield from _listed(_resolve(self._root, target))


def _listed(value: object) -> list[Mapping[str, Any]]:
    each = cast("list[object]", value) if isinstance(value, list) else [value]
    return [cast("Mapping[str, Any]", schema) for schema in each if isinstance(schema, dict)]


def _members(schema: Mapping[str, Any], keyword: str) -> list[tuple[str, Mapping[str, Any]]]:
    value = schema.get(keyword)
    if not isinstance(value, dict):
        return []
    members = cast("dict[str, object]", value).items()
    return [(name, cast("Mapping[str, Any]", member)) for name, member in members if isinstance(member, dict)]


def schema_size(schema: object) -> tuple[int, bool]:
    """Count the parts of a schema with resolved references. Return the number, and True if the schema refers to itself.

    A recursive reference counts as one part. Counting stops above `MAX_SIZE`.
    """
    sizes: dict[str, int | None] = {}  # size by reference; None while the size is being counted
    recursive = False

    def count(part: object, depth: int) -> int:
        nonlocal recursive
        if isinstance(part, list):
            members = cast("list[object]", part)
        elif isinstance(part, dict):
            fields = cast("dict[str, object]", part)
            members = [value for name, value in fields.items() if name not in ("$defs", "definitions")]
            for name in ("$ref", "$dynamicRef", "$recursiveRef"):
                if isinstance(target := fields.get(name), str):
                    members.append(_Reference(target))
        elif isinstance(part, _Reference):
            if part.target not in sizes:
                sizes[part.target] = None
                sizes[part.target] = count(_resolve(schema, part.target), depth + 1)
            size = sizes[part.target]
            recursive = recursive or size is None
            return size or 1
        else:
            return 1
        if depth > _MAX_LEVELS:
            return MAX_SIZE + 1
        total = 1
        for member in members:
            total += count(member, depth + 1)
            if total > MAX_SIZE:
                break
        return total

    return count(schema, 0), recursive


class _Reference:
    def __init__(self, target: str) -> None:
        self.target = target


def _resolve(schema: object, target: str) -> object:
    """Return the target of a reference inside a schema; None for other references, which the validator rejects."""
    value = schema
    if target.startswith("#/"):
        for step in target[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(value, dict):
                return None
            value = cast("dict[str, object]", value).get(name)
        return value
    return schema if target == "#" else None

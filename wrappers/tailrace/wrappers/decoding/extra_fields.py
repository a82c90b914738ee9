"""Merging of provider-specific fields of several chunks. The JSON type of a value determines how fragments are merged."""

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from tailrace.wrappers.messages import join_surrogates

MAX_LEVELS = 20
"""Maximum nesting depth of a field. `tailrace.wrappers.messages.MAX_DEPTH` also counts the objects around the field."""

# Names of fields with running text, to which later strings are appended.
_JOINED = frozenset({"data", "summary", "text", "transcript"})

# Declared as Any, so that the type checker requires no casts, which would be function calls for each token.
_OBJECT: Any = dict
_LIST: Any = list

# Names of lists whose items are complete, even if they have an index.
_WHOLE = frozenset({"annotations", "citations", "images"})


class FieldFold:
    """Merges provider-specific fields incrementally.

    Lists are concatenated, objects are merged, and running text (`_JOINED`) is appended. Of all other values, the last one that
    is not null is used. List items with the same ``index`` and ``type`` are fragments of one block, and are merged. Exceptions
    are items with different ids, and items that are always complete (images, citations).

    `add` does not change its argument.
    """

    __slots__ = ("_fields",)

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._fields)

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def add(self, new: Mapping[str, Any]) -> None:
        """Merge further fields."""
        _merge(self._fields, new, MAX_LEVELS - 1)

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of all fields as plain JSON (see `plain_json`)."""
        return plain_json(self._fields)


class _Text:
    """The fragments of a running text."""

    __slots__ = ("fragments",)

    def __init__(self, *fragments: str) -> None:
        self.fragments = list(fragments)


class _Items:
    """A growing list. A fragment is merged into the item with the same index and type."""

    __slots__ = ("_blocks", "items")

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._blocks: dict[tuple[int, object], dict[str, Any]] = {}

    def add(self, new: list[Any], levels: int) -> None:
        for item in new:
            index = item.get("index") if levels > 0 and isinstance(item, _OBJECT) else None
            if not isinstance(index, int):
                self.items.append(item)
                continue
            kind = item.get("type")
            key = (index, kind if isinstance(kind, str) else None)
            block = self._blocks.get(key)
            if block is None or _is_another(block.get("id"), item.get("id")):
                block = self._blocks[key] = {}
                self.items.append(block)
            _merge(block, item, levels - 1)


def _is_another(known: object, new: object) -> bool:
    """Return True if two ids are different. Items with the same index are then different items."""
    return isinstance(known, str) and isinstance(new, str) and bool(known and new) and known != new


def plain_json(value: object, levels: int = MAX_LEVELS) -> Any:
    """Return a copy of a decoded value that every JSON parser accepts.

    Values that are nested deeper than ``levels`` become JSON text. Values of other types become text. Non-finite numbers become
    null. In contrast to `tailrace.wrappers.messages.json_value`, this function never raises an exception.
    """
    if isinstance(value, str):
        return join_surrogates(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, _Text):
        return join_surrogates("".join(value.fragments))
    inner = cast("object", value.items) if isinstance(value, _Items) else value
    if not isinstance(inner, Mapping | list | tuple):
        return join_surrogates(str(inner))
    if levels <= 0:
        return join_surrogates(json_text(cast("object", inner)))
    if isinstance(inner, Mapping):
        members = cast("Mapping[object, object]", inner).items()
        return {join_surrogates(str(key)): plain_json(member, levels - 1) for key, member in members}
    return [plain_json(item, levels - 1) for item in cast("list[object]", inner)]


def is_settled(fields: Mapping[str, Any]) -> bool:
    """Return True if merging the same fields again has no effect: they contain no list and no running text."""
    for name, value in fields.items():
        if isinstance(value, str):
            if name in _JOINED:
                return False
        elif isinstance(value, _LIST) or (isinstance(value, _OBJECT) and not is_settled(value)):
            return False
    return True


def json_text(value: object) -> str:
    """Return a decoded value as JSON text; a placeholder if it is nested too deeply."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "(nested too deeply)"


def _merge(into: dict[str, Any], new: Mapping[str, Any], levels: int) -> None:
    for key, value in new.items():
        if isinstance(value, str):
            old = into.get(key) if key in _JOINED else None
            if old is None:
                into[key] = value
            elif isinstance(old, _Text):
                old.fragments.append(value)
            else:
                into[key] = _Text(old, value) if isinstance(old, str) else value
        elif value is None:
            into.setdefault(key, None)
        elif levels > 0 and isinstance(value, _OBJECT):
            members: Any = into.get(key)
            # The object of the chunk must not be changed.
            if not isinstance(members, _OBJECT):
                members = into[key] = {}
            _merge(members, value, levels - 1)
        elif levels > 0 and isinstance(value, _LIST):
            old = into.get(key)
            if not isinstance(old, _Items):
                old = into[key] = _Items()
            old.add(value, 0 if key in _WHOLE else levels - 1)
        else:
            into[key] = value

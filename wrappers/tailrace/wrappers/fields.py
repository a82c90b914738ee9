"""The fields that a provider sends beyond the common vocabulary: folded by the rule of their type, fit to travel.

What such a field means is not known, only what kind of JSON it is. That is enough to put the pieces of a stream
together, and to make sure that the result can be stored and sent whatever the provider put into it.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from tailrace.wrappers.messages import join_surrogates

MAX_LEVELS = 20
"""How deep a field may be nested: below `tailrace.wrappers.messages.MAX_DEPTH`, since fields travel inside others."""

# Fields whose pieces are joined; a string of any other name replaces the one before.
_JOINED = frozenset({"data", "summary", "text", "transcript"})

# What JSON's objects and lists are decoded into. Not by their names, which would tell the type checker that of their
# members nothing is known; telling it otherwise costs a call each, and this is done with every token.
_OBJECT: Any = dict
_LIST: Any = list

# Lists whose items are whole, whatever index they carry.
_WHOLE = frozenset({"annotations", "citations", "images"})


class FieldFold:
    """Folds free-form fields: lists append, objects merge, running text joins, everything else replaces.

    Items of a list that carry an ``index`` are merged with the item of the same index and type, as fragments of one
    block, unless each has an id of its own; items without an index are appended, and so are images and citations, which
    come whole. Folding costs what the new fields are long, however much was folded before, and never changes what was
    handed in.
    """

    __slots__ = ("_fields",)

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._fields)

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def add(self, new: Mapping[str, Any]) -> None:
        """Fold further fields."""
        _merge(self._fields, new, MAX_LEVELS - 1)

    def to_dict(self) -> dict[str, Any]:
        """All fields as they stand, as `plain_json`: a copy, joined and fit to travel."""
        return plain_json(self._fields)


class _Text:
    """Running text: its pieces."""

    __slots__ = ("pieces",)

    def __init__(self, *pieces: str) -> None:
        self.pieces = list(pieces)


class _Items:
    """A list that grows: its items, and where the next fragment of an indexed one belongs."""

    __slots__ = ("_blocks", "items")

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._blocks: dict[tuple[int, object], dict[str, Any]] = {}

    def add(self, new: list[Any], levels: int) -> None:
        """Append items, or merge those that are fragments."""
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
    """Whether two ids say that an item is no fragment of another, though it has its index."""
    return isinstance(known, str) and isinstance(new, str) and bool(known and new) and known != new


def plain_json(value: object, levels: int = MAX_LEVELS) -> Any:
    """A copy of ``value`` that is JSON for every reader, whatever a provider's decoder made of its stream.

    Never raises: unlike `tailrace.wrappers.messages.json_value`, which refuses, it makes text of what is nested
    deeper than ``levels`` lists and objects (the JSON that it is) and of anything that is no JSON. Numbers that are
    not finite become null.
    """
    if isinstance(value, str):
        return join_surrogates(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, _Text):
        return join_surrogates("".join(value.pieces))
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
    """Whether fields say nothing new when they are folded again at once: they hold no list, and no running text."""
    for name, value in fields.items():
        if isinstance(value, str):
            if name in _JOINED:
                return False
        elif isinstance(value, _LIST) or (isinstance(value, _OBJECT) and not is_settled(value)):
            return False
    return True


def json_text(value: object) -> str:
    """``value`` as JSON text; never raises for what a decoder made, however deep it is nested."""
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
                old.pieces.append(value)
            else:
                into[key] = _Text(old, value) if isinstance(old, str) else value
        elif value is None:
            into.setdefault(key, None)
        elif levels > 0 and isinstance(value, _OBJECT):
            members: Any = into.get(key)
            # Made anew: what is merged into it must not show in the chunk that it came from.
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

"""Access to JSON values in which fields may be missing, null, or of undocumented types."""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

# Declared as Any, so that the type checker treats the members of a checked value as Any, too. ``dict`` is first, because
# most objects have this type.
_OBJECT: Any = (dict, Mapping)
_LIST: Any = list
_MAX_COUNT = 2**53  # many JSON parsers do not read larger numbers exactly
_INDEX = re.compile(r"[0-9]{1,15}")

_decode = msgspec.json.Decoder().decode


def read_json(payload: bytes) -> object:
    """Decode a JSON value. Lone surrogates and NaN are accepted, because some servers send them.

    Raises:
        ValueError: The payload is not JSON.
        RecursionError: The value is nested too deeply.
    """
    try:
        return _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(payload.decode("utf-8", "replace"))


def as_mapping(value: object) -> Mapping[str, Any] | None:
    """Return ``value`` if it is a JSON object; otherwise None."""
    mapping: Any = value
    return mapping if mapping is not None and isinstance(mapping, _OBJECT) else None


def as_object(value: object) -> dict[str, Any] | None:
    """Return a new dict with the fields of a JSON object or of an object of a provider's package; None for other values."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    dump = getattr(value, "model_dump", None)
    if dump is None:
        return None
    # The packages of providers do not validate their objects, so pydantic would warn about unexpected values.
    return dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)


def as_mappings(value: object) -> list[Mapping[str, Any]]:
    """Return the JSON objects in a list. A single object counts as a list with one object."""
    elements: Any = value
    items: list[Any] = elements if isinstance(elements, _LIST) else [elements]
    return [item for item in items if isinstance(item, _OBJECT)]


def as_text(value: object) -> str:
    """Return ``value`` if it is text; otherwise ``""``."""
    return value if isinstance(value, str) else ""


def as_index(value: object) -> int | None:
    """Return ``value`` as an integer if it is an integer, an integral float or a numeric text; otherwise None."""
    if isinstance(value, int):
        return None if isinstance(value, bool) else value
    if isinstance(value, str):
        return int(value) if _INDEX.fullmatch(value) else None
    return as_count(value)


def as_count(value: object) -> int | None:
    """Return ``value`` as a token count if it is an integer or an integral float below 2**53; otherwise None."""
    if value is None:
        return None
    if value.__class__ is int:  # fast path for the most common case
        number: Any = value
        return number if -_MAX_COUNT < number < _MAX_COUNT else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_MAX_COUNT < value < _MAX_COUNT:
        return None
    return int(value) if value == int(value) else None

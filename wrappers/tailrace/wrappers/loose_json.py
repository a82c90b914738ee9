"""JSON of whatever shape: for payloads whose fields may be missing, null or of another type than documented."""

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

# Of type Any, which leaves the members of what is tested of type Any too. What a decoder made is told at once.
_OBJECT: Any = (dict, Mapping)
_LIST: Any = list
_MAX_COUNT = 2**53  # beyond it a number is somebody's joke, and no longer exact for every reader
_INDEX = re.compile(r"[0-9]{1,15}")

_decode = msgspec.json.Decoder().decode


def read_json(payload: bytes) -> object:
    """Any JSON value. The second reader takes what JSON forbids but servers send: lone surrogates, NaN.

    Raises:
        ValueError: It is not JSON even so.
        RecursionError: It is nested too deeply.
    """
    try:
        return _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(payload.decode("utf-8", "replace"))


def as_mapping(value: object) -> Mapping[str, Any] | None:
    """``value`` if it is an object, else None."""
    found: Any = value
    return found if found is not None and isinstance(found, _OBJECT) else None


def as_mappings(value: object) -> list[Mapping[str, Any]]:
    """The objects in a list; a single object counts as a list of one."""
    found: Any = value
    items: list[Any] = found if isinstance(found, _LIST) else [found]
    return [item for item in items if isinstance(item, _OBJECT)]


def as_text(value: object) -> str:
    """``value`` if it is text, else ``""``."""
    return value if isinstance(value, str) else ""


def as_index(value: object) -> int | None:
    """``value`` as a whole number if it is one, also written with a decimal point or as text; else None."""
    if isinstance(value, int):
        return None if isinstance(value, bool) else value
    if isinstance(value, str):
        return int(value) if _INDEX.fullmatch(value) else None
    return as_count(value)


def as_count(value: object) -> int | None:
    """``value`` as a number of tokens if it can be one, whole or written with a decimal point; else None."""
    if value is None:
        return None
    if value.__class__ is int:  # nearly always: what follows costs four times as much
        number: Any = value
        return number if -_MAX_COUNT < number < _MAX_COUNT else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_MAX_COUNT < value < _MAX_COUNT:
        return None
    return int(value) if value == int(value) else None

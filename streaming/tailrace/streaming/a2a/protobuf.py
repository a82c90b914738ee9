"""A2A objects that are protobuf messages, as those of a2a-sdk 1.x are, in the protocol's JSON."""

from importlib import import_module
from typing import Any, cast

_MAX_EXACT = 2**53  # beyond it a number of protobuf's JSON values is no longer exact


def is_protobuf(value: object) -> bool:
    """Return whether an object is a protobuf message."""
    return hasattr(value, "DESCRIPTOR") and hasattr(value, "ListFields")


def protobuf_json(message: object) -> Any:
    """Return the JSON of a protobuf message, as plain dicts and lists; whole numbers are integers.

    The protobuf package is imported here alone: it is there where such an object is, and is not needed elsewhere.

    Raises:
        google.protobuf.json_format.Error: It holds a number that JSON has not (NaN, infinity).
        RecursionError: It nests too deep.
    """
    return _with_integers(import_module("google.protobuf.json_format").MessageToDict(message))


def _with_integers(value: Any) -> Any:
    """Whole numbers as integers: the protocol has no other fractions than those of JSON values."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= _MAX_EXACT else value
    if isinstance(value, dict):
        return {key: _with_integers(member) for key, member in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_with_integers(item) for item in cast("list[Any]", value)]
    return value

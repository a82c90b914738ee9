"""Conversion of protobuf messages, for example the objects of a2a-sdk 1.x, to the JSON of A2A."""

from importlib import import_module
from typing import Any, cast

_MAX_EXACT = 2**53  # larger integers are not exact, because protobuf's JSON values have only floats


def is_protobuf(value: object) -> bool:
    """Return True if an object is a protobuf message."""
    return hasattr(value, "DESCRIPTOR") and hasattr(value, "ListFields")


def protobuf_json(message: object) -> Any:
    """Return the JSON of a protobuf message as dicts and lists. Whole numbers become integers.

    Raises:
        google.protobuf.json_format.Error: The message contains a number that JSON cannot represent (NaN, infinity).
        RecursionError: The message is nested too deeply.
    """
    return _with_integers(import_module("google.protobuf.json_format").MessageToDict(message))


def _with_integers(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= _MAX_EXACT else value
    if isinstance(value, dict):
        return {key: _with_integers(member) for key, member in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_with_integers(item) for item in cast("list[Any]", value)]
    return value

"""Encoding of large JSON values in steps. Each step holds the global interpreter lock only for a short time.

The C functions that encode JSON and base64 hold the lock until they return. They thereby block the event loop, also from a worker
thread. Encoding a conversation of 64 MB takes 200 ms. Long texts are therefore encoded in slices, and the items of some lists are encoded one by one.
"""

import base64
import re
import secrets
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, cast

from pydantic import BaseModel

LONG_TEXT = 64 * 1024
"""Maximum number of characters of a text, or bytes of a file, that are encoded in one step."""

# Bytes of a slice: divisible by three, so that only the last slice has padding.
_BASE64_SLICE = 48 * 1024


def encode_in_steps(
    value: object, encode: Callable[[Any], bytes], step_types: tuple[type[BaseModel], ...] = ()
) -> bytes:
    """Encode a JSON value.

    Args:
        value: The value. Large texts and files in pydantic models, dicts and lists are encoded in slices.
        encode: Function that encodes any value as JSON, with bytes as base64.
        step_types: Classes of pydantic models. In a list of two or more instances, the items are encoded one by one.

    Returns:
        The same JSON as ``encode(value)``.
    """
    steps = _Steps(encode, step_types)
    rest = steps.without_large(value)
    return encode(value) if rest is value else steps.completed(encode(rest))


class _Steps:
    """Encodes a value with placeholders for its large values, and then replaces the placeholders with their JSON."""

    def __init__(self, encode: Callable[[Any], bytes], step_types: tuple[type[BaseModel], ...]) -> None:
        self._encode = encode
        self._step_types = step_types
        self._name = secrets.token_hex(16)  # random, so that no text can contain a placeholder
        # The JSON of the large values in fragments, by the JSON of the placeholder.
        self._large: dict[bytes, list[bytes]] = {}

    def without_large(self, value: object) -> Any:
        """Replace large values, and the items of lists of `step_types`, with placeholders. Return the same object without any."""
        if isinstance(value, str):
            return self._replaced(self._text(value)) if len(value) > LONG_TEXT else value
        if isinstance(value, bytes):
            return self._replaced_bytes(value) if len(value) > LONG_TEXT else value
        if isinstance(value, BaseModel):
            return self._model_without_large(value)
        if type(value) is dict:  # a subclass may be encoded differently
            members = cast("dict[str, object]", value)
            rest = {name: self.without_large(member) for name, member in members.items()}
            return members if all(rest[name] is member for name, member in members.items()) else rest
        if isinstance(value, list | tuple):
            items = cast("Sequence[object]", value)
            if len(items) > 1 and isinstance(items[0], self._step_types):
                return [
                    self._replaced([encode_in_steps(item, self._encode, self._step_types)]) for item in items
                ]
            replaced = [self.without_large(item) for item in items]
            return items if all(map(is_, replaced, items)) else replaced
        return value

    def completed(self, encoded: bytes) -> bytes:
        placeholders = re.compile(b"(" + b"|".join(map(re.escape, self._large)) + b")")
        fragments: list[bytes] = []
        for fragment in placeholders.split(encoded):
            fragments += self._large.get(fragment, (fragment,))
        return b"".join(fragments)

    def _model_without_large(self, model: BaseModel) -> BaseModel:
        rest = {name: self.without_large(member) for name, member in model}
        changes = {name: rest[name] for name, member in model if rest[name] is not member}
        return model.model_copy(update=changes) if changes else model

    def _text(self, text: str) -> list[bytes]:
        slices = (text[at : at + LONG_TEXT] for at in range(0, len(text), LONG_TEXT))
        return [b'"', *(self._encode(each)[1:-1] for each in slices), b'"']

    def _replaced(self, fragments: list[bytes]) -> str:
        name = f"{self._name}-{len(self._large)}-"
        self._large[self._encode(name)] = fragments
        return name

    def _replaced_bytes(self, data: bytes) -> bytes:
        name = f"{self._name}-{len(self._large)}-".encode()
        slices = (data[at : at + _BASE64_SLICE] for at in range(0, len(data), _BASE64_SLICE))
        fragments = [b'"', *map(base64.b64encode, slices), b'"']
        self._large[self._encode(base64.b64encode(name).decode("ascii"))] = fragments
        return name

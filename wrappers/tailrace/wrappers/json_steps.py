"""Encode large JSON values in steps, none of which holds the interpreter's lock for long.

A call of C code holds the lock until it returns, whichever thread makes it, and the event loop waits: 200 ms where a
conversation of 64 MB is escaped. In a thread (see `tailrace.wrappers.concurrency.worker_thread`) long texts are therefore encoded in
slices, and the items of a long list one by one. Decoding needs no steps: requests and stored rows are smaller.
"""

import base64
import re
import secrets
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, cast

from pydantic import BaseModel

LONG_TEXT = 64 * 1024
"""Characters of a text, or bytes of a file, that are encoded by themselves, and how many are processed at once."""

_BASE64_SLICE = 48 * 1024  # bytes; divisible by three, so that only the last slice has padding


def encode_in_steps(
    value: object, encode: Callable[[Any], bytes], apart: tuple[type[BaseModel], ...] = ()
) -> bytes:
    """Encode a JSON value.

    Args:
        value: Models of pydantic, dicts, lists and texts are looked into; whatever else the encoder takes is left to it.
        encode: Encodes a value, or a slice of a text. Bytes are base64 in its JSON.
        apart: Models that are encoded one by one where a list has several.

    Returns:
        What ``encode(value)`` returns.
    """
    steps = _Steps(encode, apart)
    rest = steps.without_large(value)
    return encode(value) if rest is value else steps.completed(encode(rest))


class _Steps:
    """Replaces what is large by a short text, and puts its JSON into the place of that text afterwards."""

    def __init__(self, encode: Callable[[Any], bytes], apart: tuple[type[BaseModel], ...]) -> None:
        self._encode = encode
        self._apart = apart
        self._name = secrets.token_hex(16)  # no text of the value can hold it
        self._large: dict[bytes, list[bytes]] = {}  # JSON in pieces, by the JSON of what is in its place

    def without_large(self, value: object) -> Any:
        """Return the value with short texts for what is large; the same object if nothing is."""
        if isinstance(value, str):
            return self._replaced(self._text(value)) if len(value) > LONG_TEXT else value
        if isinstance(value, bytes):
            return self._replaced_bytes(value) if len(value) > LONG_TEXT else value
        if isinstance(value, BaseModel):
            return self._model_without_large(value)
        if type(value) is dict:  # not a subclass, which an encoder may treat in another way
            members = cast("dict[str, object]", value)
            rest = {name: self.without_large(member) for name, member in members.items()}
            return members if all(rest[name] is member for name, member in members.items()) else rest
        if isinstance(value, list | tuple):
            items = cast("Sequence[object]", value)
            if len(items) > 1 and isinstance(items[0], self._apart):
                return [self._replaced([encode_in_steps(item, self._encode, self._apart)]) for item in items]
            others = [self.without_large(item) for item in items]
            return items if all(map(is_, others, items)) else others
        return value

    def completed(self, encoded: bytes) -> bytes:
        """Return the JSON with that of what is large."""
        places = re.compile(b"(" + b"|".join(map(re.escape, self._large)) + b")")
        pieces: list[bytes] = []
        for piece in places.split(encoded):
            pieces += self._large.get(piece, (piece,))
        return b"".join(pieces)

    def _model_without_large(self, model: BaseModel) -> BaseModel:
        rest = {name: self.without_large(member) for name, member in model}
        changes = {name: rest[name] for name, member in model if rest[name] is not member}
        return model.model_copy(update=changes) if changes else model

    def _text(self, text: str) -> list[bytes]:
        slices = (text[at : at + LONG_TEXT] for at in range(0, len(text), LONG_TEXT))
        return [b'"', *(self._encode(each)[1:-1] for each in slices), b'"']

    def _replaced(self, pieces: list[bytes]) -> str:
        name = f"{self._name}-{len(self._large)}-"
        self._large[self._encode(name)] = pieces
        return name

    def _replaced_bytes(self, data: bytes) -> bytes:
        name = f"{self._name}-{len(self._large)}-".encode()
        slices = (data[at : at + _BASE64_SLICE] for at in range(0, len(data), _BASE64_SLICE))
        pieces = [b'"', *map(base64.b64encode, slices), b'"']
        self._large[self._encode(base64.b64encode(name).decode("ascii"))] = pieces
        return name

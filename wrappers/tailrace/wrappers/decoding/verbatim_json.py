"""JSON objects that are encoded as their original text.

Providers cache the prefix of a request. Tool call arguments that are returned with another spelling (white space, escapes,
order or numbers) end the cached prefix. A `VerbatimObject` is a dict with its original text, which the encoder of this
module copies byte for byte.
"""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from tailrace.wrappers.concurrency.worker_thread import in_event_loop
from tailrace.wrappers.json_steps import encode_in_steps

_LEVELS = 6
"""Maximum nesting of arguments in the messages of a request; deeper values are not searched."""
_MEMBERS = ("messages", "contents", "input")


class VerbatimObject(dict[str, Any]):
    """A JSON object with its original text.

    Args:
        value: The object.
        text: JSON text of the same object.
    """

    __slots__ = ("text",)

    def __init__(self, value: Mapping[str, Any], text: str) -> None:
        super().__init__(value)
        self.text = text


def encode_request(body: object) -> bytes:
    """Return a request's body as compact JSON, with each `VerbatimObject` in its messages as original text."""
    if isinstance(body, Mapping):
        members = cast("Mapping[str, object]", body)
        body = {
            name: _with_texts(value, _LEVELS) if name in _MEMBERS else value
            for name, value in members.items()
        }
    return msgspec.json.encode(body) if in_event_loop() else encode_in_steps(body, msgspec.json.encode)


def _with_texts(value: Any, levels: int) -> Any:
    if isinstance(value, VerbatimObject):
        return msgspec.Raw(value.text.encode())
    if levels and isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: _with_texts(member, levels - 1) for name, member in members.items()}
    if levels and isinstance(value, list | tuple):
        return [_with_texts(item, levels - 1) for item in cast("list[Any]", value)]
    return value

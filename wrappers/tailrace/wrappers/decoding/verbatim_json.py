"""JSON objects that are encoded with their original text.

Providers cache the beginning of requests. If a later request contains the arguments of a tool call in another form (white space,
escapes, order, number format), the cached part ends before the arguments. `encode_request` therefore copies the text of a
`VerbatimObject` byte for byte.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tailrace.wrappers.concurrency.worker_thread import in_event_loop
from tailrace.wrappers.incremental_json_encoder import encode_in_steps

_LEVELS = 6
"""Maximum nesting depth of arguments in the messages of a request."""
# Annotated, so that the type checker treats the members of a checked value as Any.
_OBJECT: Any = dict
_ARRAY: Any = (list, tuple)
_MEMBERS = ("messages", "contents", "input")


class VerbatimObject(dict[str, Any]):
    """A JSON object with its original text.

    Args:
        value: The object.
        text: The JSON text of the object.
    """

    __slots__ = ("text",)

    def __init__(self, value: Mapping[str, Any], text: str) -> None:
        super().__init__(value)
        self.text = text


def encode_request(body: Any) -> bytes:
    """Encode the body of a request as compact JSON. Each `VerbatimObject` in the messages is encoded as its original text."""
    if isinstance(body, _OBJECT):
        body = {
            name: _with_texts(value, _LEVELS) if name in _MEMBERS else value for name, value in body.items()
        }
    return msgspec.json.encode(body) if in_event_loop() else encode_in_steps(body, msgspec.json.encode)


def _with_texts(value: Any, levels: int) -> Any:
    if isinstance(value, VerbatimObject):
        return msgspec.Raw(value.text.encode())
    if levels and isinstance(value, _OBJECT):
        return {
            # Most members are text, which needs no call.
            name: member if member.__class__ is str else _with_texts(member, levels - 1)
            for name, member in value.items()
        }
    if levels and isinstance(value, _ARRAY):
        return [_with_texts(item, levels - 1) for item in value]
    return value

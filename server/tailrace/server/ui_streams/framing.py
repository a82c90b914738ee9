"""Payloads of JSON, and the frames of server-sent events around them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tailrace.streaming.a2a.encoding import escape_separators
from tailrace.wrappers.messages import json_value

_encode = msgspec.json.Encoder().encode


def encode_json(value: Mapping[str, Any]) -> bytes:
    """An object as JSON in one line; never raises for text: lone surrogates become U+FFFD."""
    try:
        return escape_separators(_encode(value))
    except UnicodeEncodeError:
        return escape_separators(_encode(json_value(value)))


def frame_payloads(payloads: Sequence[bytes], number: int = 0) -> bytes:
    """Payloads of one event of a task as frames.

    Args:
        payloads: Each of one line.
        number: Of the event; the last frame has it as its id, so that nobody goes on in the middle. 0 for none.
    """
    if not payloads:
        return b""
    if not number:
        return b"data: " + b"\n\ndata: ".join(payloads) + b"\n\n"
    *others, last = payloads
    return b"".join(b"data: %b\n\n" % payload for payload in others) + b"id: %d\ndata: %b\n\n" % (
        number,
        last,
    )

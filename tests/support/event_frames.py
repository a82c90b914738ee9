"""Frames of AWS event streams in the service's encoding."""

import base64
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

Header = tuple[int, bytes]
"""A header's type and encoded value."""


def text_header(value: str) -> Header:
    """A header of type string."""
    data = value.encode()
    return 7, struct.pack("!H", len(data)) + data


def frame(headers: Mapping[str, Header], payload: bytes = b"") -> bytes:
    """One frame with both of its checksums."""
    return raw_frame(
        b"".join(
            bytes([len(name.encode())]) + name.encode() + bytes([kind]) + value
            for name, (kind, value) in headers.items()
        ),
        payload,
    )


def raw_frame(headers: bytes, payload: bytes = b"") -> bytes:
    """One frame around an encoded block of headers."""
    lengths = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    body = lengths + struct.pack("!I", zlib.crc32(lengths)) + headers + payload
    return body + struct.pack("!I", zlib.crc32(body))


def event(name: str, payload: object) -> bytes:
    """The frame of an event; the payload as JSON unless it is bytes."""
    return _message("event", {":event-type": name}, payload)


def chunk(model_payload: object) -> bytes:
    """The frame of an InvokeModel chunk around a model's own JSON."""
    data = model_payload if isinstance(model_payload, bytes) else json.dumps(model_payload).encode()
    return event("chunk", {"bytes": base64.b64encode(data).decode(), "p": "abcd"})


def exception(name: str, payload: object) -> bytes:
    """A frame with an exception of the service's model."""
    return _message("exception", {":exception-type": name}, payload)


def error(code: str, message: str) -> bytes:
    """A frame with an error outside the service's model, which has headers only."""
    return _message("error", {":error-code": code, ":error-message": message}, b"")


def converse(*events: Mapping[str, Any]) -> bytes:
    """A stream of events as boto3 returns them."""
    return b"".join(event(name, payload) for each in events for name, payload in each.items())


def _message(kind: str, headers: Mapping[str, str], payload: object) -> bytes:
    values = {**headers, ":content-type": "application/json", ":message-type": kind}
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return frame({name: text_header(value) for name, value in values.items()}, data)

"""Counts the values of a protobuf message before it is parsed, because parsing creates an object for each value.

Source: https://protobuf.dev/programming-guides/encoding/.
"""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from tailrace.server.http.request_body import JsonScan

_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5


def scan_fields(body: bytes, descriptor: Any, scan: JsonScan) -> None:
    """Count the fields of a message and its nested messages, and the values of JSON in strings.

    Args:
        body: The encoded message. Counting stops at an encoding error, which the parser reports later.
        descriptor: The descriptor of the message's type.
        scan: Counts the values.

    Raises:
        RequestTooLargeError: There are too many values.
    """
    waiting = [(0, len(body), descriptor)]
    while waiting:
        at, end, kind = waiting.pop()
        while at < end:
            scan.count(1)
            tag, at = _read_varint(body, at, end)
            form = tag & 7
            if form == _VARINT:
                _, at = _read_varint(body, at, end)
            elif form == _LENGTH:
                length, at = _read_varint(body, at, end)
                field = kind.fields_by_number.get(tag >> 3)
                inner = field.message_type if field is not None else None
                if inner is not None:
                    waiting.append((at, min(at + length, end), inner))
                elif field is not None and field.type == FieldDescriptor.TYPE_STRING:
                    scan.feed_string(body[at : min(at + length, end)])
                at += length
            elif form in (_FIXED_64, _FIXED_32):
                at += 8 if form == _FIXED_64 else 4


def _read_varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a variable-length integer and the position after it; 0 and ``end`` if it is incomplete or too long."""
    value = shift = 0
    while at < end and shift < 70:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, end

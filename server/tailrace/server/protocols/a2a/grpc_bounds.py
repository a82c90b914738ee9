"""Counts the values of a protobuf message before it is parsed, since parsing creates an object for each.

Source: https://protobuf.dev/programming-guides/encoding/.
"""

from typing import Any

_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5


def count_fields(body: bytes, descriptor: Any, limit: int) -> int:
    """The number of fields in a message and in the messages within it.

    Args:
        body: The message, encoded. What is wrong with it is for the parser to say: the count ends there.
        descriptor: Of its type.
        limit: The count ends when it is exceeded.
    """
    count = 0
    waiting = [(0, len(body), descriptor)]
    while waiting:
        at, end, kind = waiting.pop()
        while at < end:
            count += 1
            if count > limit:
                return count
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
                at += length
            elif form in (_FIXED_64, _FIXED_32):
                at += 8 if form == _FIXED_64 else 4
    return count


def _read_varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    """A variable-length integer, and where it ends; 0 at the end of the message."""
    value = shift = 0
    while at < end and shift < 70:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, end

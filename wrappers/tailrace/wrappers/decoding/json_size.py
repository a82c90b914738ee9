"""Counting of a JSON text's values before it is decoded.

A small text may have very many values: one megabyte of ``[],[],…`` is 300,000 objects.
"""

_SLICE = 64 * 1024
_NOT_STRUCTURE = bytes(set(range(256)) - set(b",[{"))


def count_json_values(text: bytes, limit: int) -> int:
    """Return the number of values of a JSON text: objects, arrays, and members of either.

    The number is meaningless for a text that is not JSON.

    Args:
        text: The text.
        limit: Counting stops above this number; the result is then larger than it, but incomplete.
    """
    values, in_string, escaped = 1, False, False
    for at in range(0, len(text), _SLICE):
        piece = text[at : at + _SLICE]
        if escaped:
            piece, escaped = piece[1:], False
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
            if piece.endswith(b"\\"):
                piece, escaped = piece[:-1], True
        parts = piece.split(b'"')
        outside = b"".join(parts[in_string::2])
        in_string ^= len(parts) % 2 == 0
        values += len(outside.translate(None, _NOT_STRUCTURE))
        if values > limit:
            break
    return values

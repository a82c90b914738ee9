"""Counting of the values in a JSON text without decoding the text.

Decoders and the server reject a text with too many values, which would need too much memory.
"""

_SLICE = 64 * 1024
_NOT_STRUCTURE = bytes(set(range(256)) - set(b",[{"))


def count_json_values(text: bytes, limit: int) -> int:
    """Return the number of values in a JSON text. Objects, arrays and their members count as values.

    If the text is not JSON, the number has no meaning.

    Args:
        text: The text.
        limit: Counting stops above this number.
    """
    values, in_string, escaped = 1, False, False
    for at in range(0, len(text), _SLICE):
        segment = text[at : at + _SLICE]
        if escaped:
            segment, escaped = segment[1:], False
        if b"\\" in segment:
            segment = segment.replace(b"\\\\", b"").replace(b'\\"', b"")
            if segment.endswith(b"\\"):
                segment, escaped = segment[:-1], True
        parts = segment.split(b'"')
        structure = b"".join(parts[in_string::2])
        in_string ^= len(parts) % 2 == 0
        values += len(structure.translate(None, _NOT_STRUCTURE))
        if values > limit:
            break
    return values

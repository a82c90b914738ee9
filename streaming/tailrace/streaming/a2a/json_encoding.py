r"""Encoding of JSON as one line that is safe in a server-sent event.

JSON strings may contain the line separators U+2028, U+2029 and U+0085. In the WHATWG standard, they do not end a line of a
server-sent event. But the official Python client splits lines at them, and then fails to parse the JSON. They are therefore
escaped as ``\u2028``, ``\u2029`` and ``\u0085``.
"""

import msgspec

from tailrace.wrappers.concurrency.worker_thread import in_event_loop
from tailrace.wrappers.incremental_json_encoder import encode_in_steps
from tailrace.wrappers.messages import join_surrogates

_encode = msgspec.json.Encoder().encode


def escape_separators(json_bytes: bytes) -> bytes:
    r"""Replace the line separators in a JSON document with escapes.

    Args:
        json_bytes: A valid JSON document in UTF-8. The separators occur only inside of its strings.

    Returns:
        An equivalent JSON document; ``json_bytes`` itself if it contains no separator.
    """
    if json_bytes.isascii():
        return json_bytes
    if b"\xe2\x80\xa8" in json_bytes:
        json_bytes = json_bytes.replace(b"\xe2\x80\xa8", rb"\u2028")
    if b"\xe2\x80\xa9" in json_bytes:
        json_bytes = json_bytes.replace(b"\xe2\x80\xa9", rb"\u2029")
    if b"\xc2\x85" in json_bytes:
        json_bytes = json_bytes.replace(b"\xc2\x85", rb"\u0085")
    return json_bytes


def encode_json(value: object) -> bytes:
    """Encode a JSON value as one line, with escaped line separators.

    In a worker thread, the value is encoded in steps, so that the thread does not block the event loop. The strings must not
    contain lone surrogates.
    """
    return _encode_line(value) if in_event_loop() else encode_in_steps(value, _encode_line)


def _encode_line(value: object) -> bytes:
    return escape_separators(_encode(value))


def encode_text(text: str) -> bytes:
    """Encode a text as a JSON string in UTF-8, with escaped line separators. Lone surrogates become U+FFFD.

    The function is called for each token.
    """
    try:
        encoded = _encode(text)
    except UnicodeEncodeError:
        encoded = _encode(join_surrogates(text))
    # Searching the text for one character takes a tenth of the time of searching the bytes for two or three bytes.
    if text.isascii() or not ("\u2028" in text or "\u2029" in text or "\x85" in text):
        return encoded
    return escape_separators(encoded)

"""Bodies as lists of frames with one payload each, so that mutations can work on events instead of bytes.

For any body, ``join(split(body))`` is the same bytes.
"""

import json
import re
from binascii import crc32
from dataclasses import dataclass
from struct import pack, unpack_from

_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r)(?:\r\n|\n|\r)+|\Z")
_DATA_LINE = re.compile(rb"(?:(?<=\n)|(?<=\r)|\A)data: ?([^\r\n]*)")
_GAP = re.compile(r"[\s,\]]*")
_PRELUDE = 12
_CHECKSUM = 4


@dataclass(slots=True)
class Frame:
    """One event.

    Attributes:
        head: The bytes before the payload; of a binary frame its headers.
        payload: The payload, usually JSON text.
        tail: The bytes after the payload.
        binary: Whether it is a message of AWS's event stream encoding, whose lengths and checksums `join` computes.
    """

    head: bytes
    payload: bytes
    tail: bytes = b""
    binary: bool = False

    def encode(self) -> bytes:
        """Return its bytes."""
        if not self.binary:
            return self.head + self.payload + self.tail
        prelude = pack("!II", 16 + len(self.head) + len(self.payload), len(self.head))
        message = prelude + pack("!I", crc32(prelude)) + self.head + self.payload
        return message + pack("!I", crc32(message))


def join(frames: list[Frame]) -> bytes:
    """Return the body of these frames."""
    return b"".join([frame.encode() for frame in frames])


def split(body: bytes) -> list[Frame]:
    """Return the frames of a body; a body without known framing is one frame."""
    start = body.lstrip()[:1]
    if body[:1] == b"\0":
        frames = _binary(body)
    elif start == b"[":
        frames = _array(body)
    elif start == b"{":
        frames = _lines(body)
    else:
        frames = _events(body)
    return frames if join(frames) == body else [Frame(b"", body)]


def _events(body: bytes) -> list[Frame]:
    frames: list[Frame] = []
    begin = 0
    for blank in _BLANK_LINE.finditer(body):
        block, gap = body[begin : blank.start()], blank.group()
        data = _DATA_LINE.findall(block)
        match = _DATA_LINE.search(block)
        if match is not None and len(data) == 1:
            frames.append(Frame(block[: match.start(1)], match.group(1), block[match.end(1) :] + gap))
        elif block or gap:
            frames.append(Frame(block, b"", gap))
        begin = blank.end()
    return frames


def _lines(body: bytes) -> list[Frame]:
    return [
        Frame(b"", line.rstrip(b"\r\n"), line[len(line.rstrip(b"\r\n")) :])
        for line in body.splitlines(keepends=True)
    ]


def _array(body: bytes) -> list[Frame]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return []
    decoder = json.JSONDecoder()
    frames: list[Frame] = []
    begin, position = 0, text.index("[") + 1
    while (gap := _GAP.match(text, position)) is not None and gap.end() < len(text):
        try:
            _, end = decoder.raw_decode(text, gap.end())
        except (ValueError, RecursionError):
            return []
        frames.append(Frame(text[begin : gap.end()].encode(), text[gap.end() : end].encode()))
        begin = position = end
    return [*frames, Frame(text[begin:].encode(), b"")]


def _binary(body: bytes) -> list[Frame]:
    frames: list[Frame] = []
    position = 0
    while position + _PRELUDE + _CHECKSUM <= len(body):
        total, headers = unpack_from("!II", body, position)
        end = position + total
        if total < _PRELUDE + headers + _CHECKSUM or end > len(body):
            return []
        middle = position + _PRELUDE + headers
        frames.append(Frame(body[position + _PRELUDE : middle], body[middle : end - _CHECKSUM], binary=True))
        position = end
    return frames

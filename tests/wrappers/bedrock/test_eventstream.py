"""The frame decoder: each type of header, each position of a cut, each kind of damage, compared with botocore's decoder."""

import struct
import uuid
import zlib
from typing import Any, cast

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given, settings
from hypothesis import strategies as st

from support.event_frames import Header, frame, raw_frame, text_header
from support.scenarios import cut_at, in_reads
from tailrace.wrappers import UpstreamError, UpstreamFault
from tailrace.wrappers.bedrock import EventStreamDecoder

Frames = list[tuple[dict[str, Any], bytes]]


def decode(reads: list[bytes], decoder: EventStreamDecoder | None = None) -> Frames:
    decoder = decoder or EventStreamDecoder()
    return [(dict(each.headers), each.payload) for data in reads for each in decoder.feed(data)]


def by_botocore(body: bytes) -> Frames:
    """Decode a body with the official decoder."""
    buffer = cast("Any", EventStreamBuffer())
    buffer.add_data(body)
    return [(each.headers, each.payload) for each in buffer]


UUID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")

# An encoded header and its value.
HEADERS: dict[str, tuple[Header, object]] = {
    "true": ((0, b""), True),
    "false": ((1, b""), False),
    "byte": ((2, b"\xff"), -1),
    "short": ((3, b"\x01\x00"), 256),
    "integer": ((4, b"\xff\xff\xff\xfe"), -2),
    "long": ((5, b"\x00\x00\x00\x01\x00\x00\x00\x00"), 2**32),
    "bytes": ((6, b"\x00\x02\x00\xff"), b"\x00\xff"),
    "string": (text_header("é"), "é"),
    "timestamp": ((8, struct.pack("!q", 1_700_000_000_000)), 1_700_000_000_000),
    "uuid": ((9, UUID.bytes), UUID.bytes),
}


@pytest.mark.parametrize("name", HEADERS)
def test_each_type_of_header_is_read(name: str) -> None:
    written, meant = HEADERS[name]
    body = frame({name: written, "after": text_header("it")}, b"payload")
    assert decode([body]) == [({name: meant, "after": "it"}, b"payload")] == by_botocore(body)


def packed(form: str) -> st.SearchStrategy[bytes]:
    size = struct.calcsize(form)
    bound = 1 << (8 * size - 1)
    return st.integers(-bound, bound - 1).map(lambda number: struct.pack(form, number))


written_headers: st.SearchStrategy[Header] = st.one_of(
    st.just((0, b"")),
    st.just((1, b"")),
    st.tuples(st.just(2), packed("!b")),
    st.tuples(st.just(3), packed("!h")),
    st.tuples(st.just(4), packed("!i")),
    st.tuples(st.just(5) | st.just(8), packed("!q")),
    st.tuples(st.just(6), st.binary(max_size=9).map(lambda data: struct.pack("!H", len(data)) + data)),
    st.text(max_size=9).map(text_header),
    st.tuples(st.just(9), st.binary(min_size=16, max_size=16)),
)
frames = st.builds(
    frame,
    st.dictionaries(st.text(min_size=1, max_size=9), written_headers, max_size=4),
    st.binary(max_size=40),
)
bodies = st.lists(frames, max_size=5).map(b"".join)


@settings(deadline=None)
@given(bodies, st.sets(st.integers(0, 400)))
def test_frames_are_the_same_however_the_body_is_cut_and_as_botocore_has_them(
    body: bytes, cuts: set[int]
) -> None:
    expected = by_botocore(body)
    decoder = EventStreamDecoder()
    assert decode(cut_at(body, cuts), decoder) == expected
    assert (decoder.damage, decoder.unfinished) == ("", False)
    assert decode(in_reads(body, 1)) == expected


@settings(deadline=None)
@given(st.lists(frames, min_size=1, max_size=4), st.data())
def test_a_byte_that_is_changed_never_makes_another_frame(written: list[bytes], data: st.DataObject) -> None:
    body = bytearray(b"".join(written))
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] ^= data.draw(st.integers(1, 255))
    decoder = EventStreamDecoder()
    read = decode([bytes(body)], decoder)
    whole = decode([b"".join(written)])
    before = sum(position >= len(b"".join(written[: count + 1])) for count in range(len(written)))
    assert read == whole[:before]
    assert decoder.damage
    assert decoder.feed(frame({})) == []  # data after the damage is not trusted


@settings(deadline=None)
@given(st.lists(frames, min_size=1, max_size=3), st.data())
def test_a_body_that_breaks_off_has_its_whole_frames(written: list[bytes], data: st.DataObject) -> None:
    body = b"".join(written)
    length = data.draw(st.integers(0, len(body) - 1))
    decoder = EventStreamDecoder()
    whole = [each for count, each in enumerate(written) if len(b"".join(written[: count + 1])) <= length]
    assert decode([body[:length]], decoder) == decode(whole)
    assert decoder.unfinished == (length > len(b"".join(whole)))
    assert not decoder.damage


@given(st.binary(min_size=12, max_size=60))
def test_bytes_that_are_no_frames_are_damage(noise: bytes) -> None:
    decoder = EventStreamDecoder()
    assert decoder.feed(noise) == []
    assert decoder.damage


BAD_HEADERS = {
    "a name without an end": b"\x09ab",
    "a name without a type": b"\x02ab",
    "a truncated value": b"\x01a\x04\x00",
    "a text without its length": b"\x01a\x07\x00",
    "a truncated text": b"\x01a\x07\x00\x05abc",
    "truncated bytes": b"\x01a\x06\x00\x05abc",
    "a truncated uuid": b"\x01a\x09abc",
    "a type that does not exist": b"\x01a\x0aabc",
    "a name that is not UTF-8": b"\x01\xff\x00",
    "a text that is not UTF-8": b"\x01a\x07\x00\x01\xff",
    "a repeated name": b"\x01a\x00\x01a\x01",
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_headers_that_cannot_be_read_are_damage(name: str) -> None:
    decoder = EventStreamDecoder()
    good = frame({"a": (0, b"")}, b"1")
    assert decode([good + raw_frame(BAD_HEADERS[name]) + good], decoder) == [({"a": True}, b"1")]
    assert decoder.damage


def test_lengths_that_contradict_each_other_are_damage() -> None:
    lengths = struct.pack("!II", 20, 5)
    decoder = EventStreamDecoder()
    assert decoder.feed(lengths + struct.pack("!I", zlib.crc32(lengths)) + b"\0" * 8) == []
    assert decoder.damage == "a frame of 20 bytes cannot hold headers of 5"


def test_a_frame_that_is_too_large_is_refused_before_it_is_read() -> None:
    small, large = frame({}, b"x" * 20), frame({}, b"x" * 200)
    decoder = EventStreamDecoder(max_frame_bytes=100)
    assert len(decoder.feed(small + large[:12])) == 1
    for _ in range(2):
        with pytest.raises(UpstreamError) as caught:
            decoder.feed(small)
        assert caught.value.fault is UpstreamFault.TOO_LARGE
    with pytest.raises(UpstreamError, match="larger than the allowed 100 bytes"):
        EventStreamDecoder(max_frame_bytes=100).feed(large)


def test_a_frame_of_exactly_the_bound_is_read() -> None:
    body = frame({}, b"x" * 84)
    assert len(body) == 100
    assert len(EventStreamDecoder(max_frame_bytes=100).feed(body)) == 1


def test_frames_whose_headers_all_differ_are_read_too() -> None:
    body = b"".join(frame({"n": (4, struct.pack("!i", number))}) for number in range(100))
    assert [headers["n"] for headers, _ in decode([body])] == list(range(100))

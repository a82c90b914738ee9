"""The SSE decoder against the WHATWG text ("9.2.6 Interpreting an event stream"), wherever reads are cut."""

import json
import re
import tracemalloc
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.wrappers.decoding.framing import NDJSONDecoder, ServerSentEvent, SSEDecoder
from tailrace.wrappers.errors import UpstreamError, UpstreamFault

Item = TypeVar("Item")
Outcome = tuple[list[ServerSentEvent], str, int | None]


def decode(pieces: Iterable[bytes], *, error_field: bool = False) -> Outcome:
    """The events of a body, the last event id and the retry time."""
    decoder = SSEDecoder(error_field=error_field)
    events = [event for piece in pieces for event in decoder.feed(piece)]
    events += decoder.close()
    return events, decoder.last_event_id, decoder.retry


def decode_ndjson(pieces: Iterable[bytes]) -> list[bytes]:
    decoder = NDJSONDecoder()
    return [line for piece in pieces for line in decoder.feed(piece)] + decoder.close()


def every_way(body: bytes, run: Callable[[Iterable[bytes]], Item]) -> Item:
    """Decode a body complete, in single bytes (with empty reads between) and cut at each position; compare the results."""
    whole = run([body])
    assert run([piece for byte in body for piece in (bytes([byte]), b"")]) == whole
    for position in range(len(body) + 1):
        assert run([body[:position], body[position:]]) == whole, f"cut at {position}"
    return whole


def messages(*data: str) -> list[ServerSentEvent]:
    return [ServerSentEvent(text.encode()) for text in data]


# The streams of the standard's examples, then one case for each sentence of its algorithm.
CASES: dict[str, tuple[bytes, list[ServerSentEvent]]] = {
    "an event of several data lines": (
        b"data: YHOO\ndata: +2\ndata: 10\n\n",
        messages("YHOO\n+2\n10"),
    ),
    "comments, ids, a bare id and an event without a space": (
        b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
        [
            ServerSentEvent(b"first event", "", "1"),
            ServerSentEvent(b"second event"),
            ServerSentEvent(b" third event"),
        ],
    ),
    "data without a value is an empty event": (b"data\n\n", messages("")),
    "two data lines without a value are one line end": (b"data\ndata\n\n", messages("\n")),
    "data with a colon and no value is an empty event": (b"data:\n\n", messages("")),
    "only one space is removed": (b"data:test\n\ndata: test\n\ndata:  test\n\n", messages("test", "test", " test")),
    "a tab is not a space": (b"data:\ttest\n\n", messages("\ttest")),
    "a colon in the value belongs to it": (b"data: a: b\n\n", messages("a: b")),
    "an empty body": (b"", []),
    "blank lines alone": (b"\n\r\n\r\n\n", []),
    "blank lines before and between events": (b"\n\ndata: a\n\n\n\ndata: b\n\n\n", messages("a", "b")),
    "a comment is ignored": (b": keep-alive\n\n:\n\ndata: a\n: in between\ndata: b\n\n", messages("a\nb")),
    "line ends CRLF": (b"data: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n", messages("a\nb", "c")),
    "line ends CR": (b"data: a\rdata: b\r\rdata: c\r\r", messages("a\nb", "c")),
    "line ends mixed": (b"data: a\r\ndata: b\rdata: c\n\r\ndata: d\n\r", messages("a\nb\nc", "d")),
    "CRLF is one line end, LF CR are two": (b"data: a\n\rdata: b\r\n\ndata: c\r\r\n", messages("a", "b", "c")),
    "one BOM is dropped": (b"\xef\xbb\xbfdata: a\n\n", messages("a")),
    "a second BOM is part of the field's name": (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
    "a BOM later is part of the field's name": (b"\n\xef\xbb\xbfdata: a\n\n", []),
    "half a BOM is not one": (b"\xef\xbbdata: a\n\ndata: b\n\n", messages("b")),
    "half a BOM at the end": (b"\xef\xbb", []),
    "an event type": (b"event: error\ndata: a\n\ndata: b\n\n", [ServerSentEvent(b"a", "error"), *messages("b")]),
    "an event type after the data": (b"data: a\nevent: ping\n\n", [ServerSentEvent(b"a", "ping")]),
    "the last event type counts": (b"event: a\nevent: b\ndata: c\n\n", [ServerSentEvent(b"c", "b")]),
    "an event without data is not dispatched and its type is reset": (
        b"event: ping\n\ndata: a\n\n",
        messages("a"),
    ),
    "an id persists until the next one": (
        b"id: 7\ndata: a\n\ndata: b\n\nid: 8\n\ndata: c\n\n",
        [ServerSentEvent(b"a", "", "7"), ServerSentEvent(b"b", "", "7"), ServerSentEvent(b"c", "", "8")],
    ),
    "an id with NUL is ignored": (b"id: 7\nid: 8\0\ndata: a\n\n", [ServerSentEvent(b"a", "", "7")]),
    "an empty id resets it": (b"id: 7\n\nid:\ndata: a\n\n", messages("a")),
    "unknown fields and names in another case": (b"foo: bar\nData: a\n data: b\ndata : c\ndatax\n\n", []),
    "raw U+2028, U+2029, U+0085, VT and FF end no line": (
        "data: a\u2028b\u2029c\u0085d\x0be\x0cf\n\n".encode(),
        messages("a\u2028b\u2029c\u0085d\x0be\x0cf"),
    ),
    "characters of two, three and four bytes": ("data: é€😀\nevent: ü\n\n".encode(), [ServerSentEvent("é€😀".encode(), "ü")]),
    "an event that no blank line closes": (b"data: a\n\nid: 3\nevent: x\ndata: b\n", [*messages("a"), ServerSentEvent(b"b", "x", "3")]),
    "an event whose last line no line end closes": (b"data: a\ndata: b", messages("a\nb")),
    "[DONE] without any line end": (b"data: a\n\ndata: [DONE]", messages("a", "[DONE]")),
    "the last line is CR": (b"data: a\n\r", messages("a")),
    "an unfinished line that is not data": (b"data: a\n\nevent: err", messages("a")),
    "an incomplete id is ignored": (b"id: 1\ndata: a\nid: 12", [ServerSentEvent(b"a", "", "1")]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_event_stream_is_read_as_specified(name: str) -> None:
    body, expected = CASES[name]
    assert every_way(body, decode)[0] == expected


@pytest.mark.parametrize(
    ("body", "last_event_id"),
    [
        (b"", ""),
        (b"id: 1\n\n", "1"),
        (b"id: 1\ndata: a\n\n", "1"),
        (b"id: 1\n\nid: 2\ndata: a\n", "1"),
        (b"id: 1\n\nid: 2\ndata: a\n\n", "2"),
        (b"id: 1\n\nid\n\n", ""),
        (b"id: 1\n\nid: \0\n\n", "1"),
        ("id: é\n\n".encode(), "é"),
    ],
)
def test_an_id_is_valid_from_the_blank_line_on(body: bytes, last_event_id: str) -> None:
    assert every_way(body, decode)[1] == last_event_id


@pytest.mark.parametrize(
    ("body", "retry"),
    [
        (b"", None),
        (b"retry: 3000\n", 3000),
        (b"retry:0\n", 0),
        (b"retry: 1\nretry: 2\n\n", 2),
        (b"retry: -5\n", None),
        (b"retry: 1.5\n", None),
        (b"retry: 10 \n", None),
        (b"retry:  10\n", None),
        (b"retry: 1e3\n", None),
        (b"retry\n", None),
        (b"retry:\n", None),
        ("retry: ٣\n".encode(), None),
        (b"retry: 007\n", 7),
        (b"retry: 10", None),
    ],
)
def test_retry_is_digits_only(body: bytes, retry: int | None) -> None:
    assert every_way(body, decode)[2] == retry


def test_a_retry_of_many_thousand_digits_is_ignored() -> None:
    assert decode([b"retry: " + b"9" * 10_000 + b"\ndata: a\n\n"]) == (messages("a"), "", None)


def test_the_error_field_is_an_event_of_its_own_if_enabled() -> None:
    body = b'id: 4\n\ndata: a\nerror: {"code": 500}\ndata: b\n\nerror:x\nerror\nerror: cut'
    errors = [ServerSentEvent(text, "error", "4") for text in (b'{"code": 500}', b"x", b"", b"cut")]
    events = every_way(body, lambda pieces: decode(pieces, error_field=True))[0]
    assert events == [errors[0], ServerSentEvent(b"a\nb", "", "4"), *errors[1:]]
    assert every_way(body, decode)[0] == [ServerSentEvent(b"a\nb", "", "4")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "lines", ["data: a", "event: e|data: a", "event: error|data: a", "event: x y|data: "]
)
def test_an_event_a_read_is_the_same_as_all_in_one(lines: str, end: str) -> None:
    events = [line.replace("|", end).encode() + 2 * end.encode() for line in (lines, "data: b", lines)]
    whole = decode([b"".join(events)])
    assert decode(events) == whole
    data = lines.rpartition("data: ")[2].encode()
    assert [event.data for event in whole[0]] == [data, b"b", data]


def test_closing_twice_gives_nothing_more() -> None:
    decoder = SSEDecoder()
    decoder.feed(b"data: a")
    assert decoder.close() == messages("a")
    assert decoder.close() == []


def reference(body: bytes) -> Outcome:
    """The standard's algorithm line by line, then the unfinished event, which `close` returns."""
    text = body.decode("utf-8", "replace").removeprefix("\ufeff")
    *lines, rest = re.split("\r\n|\n|\r", text)
    if rest.partition(":")[0] == "data":
        lines.append(rest)
    events: list[ServerSentEvent] = []
    data, event_type, id_buffer, last_event_id = "", "", "", ""
    retry: int | None = None
    for line in lines:
        if not line:
            last_event_id = id_buffer
            if data:
                events.append(ServerSentEvent(data.removesuffix("\n").encode(), event_type, last_event_id))
            data = event_type = ""
            continue
        if line.startswith(":"):
            continue
        field, colon, value = line.partition(":")
        if colon and value.startswith(" "):
            value = value[1:]
        if field == "event":
            event_type = value
        elif field == "data":
            data += value + "\n"
        elif field == "id" and "\0" not in value:
            id_buffer = value
        elif field == "retry" and re.fullmatch("[0-9]{1,15}", value):
            retry = int(value)
    if data:
        events.append(ServerSentEvent(data.removesuffix("\n").encode(), event_type, id_buffer))
    return events, last_event_id, retry


fragments = st.sampled_from(
    [b"data", b"data:", b"data: ", b"event: ", b"event", b"id", b"id: ", b"retry: ", b":", b": ", b" ", b"a", b"{}",
     b"12", b"\n", b"\n\n", b"\r", b"\r\n", b"\r\n\r\n", b"\0", b"error: ", b"\xef\xbb\xbf", "é😀".encode(),
     "\u2028\x85".encode(), b"data: x\n\n"]
)  # fmt: skip
bodies = st.lists(fragments | st.binary(max_size=3), max_size=25).map(b"".join)


def cut(body: bytes, positions: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(position, len(body)) for position in positions), len(body)]
    return [body[start:end] for start, end in pairwise(edges)]


cut_positions = st.lists(st.integers(0, 80), max_size=8)


def as_text(outcome: Outcome) -> Outcome:
    """Data with invalid UTF-8 replaced, as the standard requires before parsing."""
    events, last_event_id, retry = outcome
    replaced = [
        ServerSentEvent(event.data.decode("utf-8", "replace").encode(), event.event, event.id)
        for event in events
    ]
    return replaced, last_event_id, retry


@given(bodies)
def test_any_body_gives_what_the_standards_algorithm_gives(body: bytes) -> None:
    assert as_text(decode([body])) == reference(body)


@given(bodies, cut_positions, st.booleans())
def test_any_cut_of_any_body_gives_the_same_events(
    body: bytes, positions: list[int], error_field: bool
) -> None:
    assert decode(cut(body, positions), error_field=error_field) == decode([body], error_field=error_field)


reads = st.lists(
    st.sampled_from([b"data: x\n\n", b"data: x\n\ndata: y\n\n", b"data: \n\n", b"data: x\r\n\r\n", b"event: a\ndata: x\n\n",
        b"event: a\r\ndata: x\r\n\r\n", b"event: error\ndata: x\n\n", b"data: x\n", b"data: x\r\n", b"\n", b"\r", b"id: 7\ndata: x\n\n",
        b"event: \rdata: x\n\n", b"data: x\rdata: y\n\n", b"data: x\n\ndata: y\ndata: z\n\n", b": ping\n\n", b"da"])
    | bodies,
    max_size=8,
)  # fmt: skip


@given(reads)
def test_reads_of_whole_events_give_the_same_as_single_bytes(reads: list[bytes]) -> None:
    assert decode(reads) == decode([bytes([byte]) for byte in b"".join(reads)])


@given(reads)
def test_what_is_seen_at_a_glance_is_what_feeding_gives(reads: list[bytes]) -> None:
    decoder = SSEDecoder()
    for read in reads:
        event, payloads = decoder.complete_events(read) if decoder.idle else ("", [])
        events = decoder.feed(read)
        if payloads:
            assert [(found.event, found.data) for found in events] == [(event, data) for data in payloads]


@given(bodies, cut_positions, st.integers(3, 12))
def test_a_bound_strikes_at_the_same_place_however_the_body_is_cut(
    body: bytes, positions: list[int], bound: int
) -> None:
    def until_error(pieces: list[bytes]) -> tuple[list[ServerSentEvent], str]:
        decoder = SSEDecoder(max_event_bytes=bound)
        events: list[ServerSentEvent] = []
        try:
            for piece in pieces:
                events += decoder.feed(piece)
            events += decoder.close()
        except UpstreamError as error:
            return events, str(error)
        return events, ""

    assert until_error(cut(body, positions)) == until_error([body])


@pytest.mark.parametrize(
    "body",
    [
        b"x" * 101,
        b": " + b"x" * 99 + b"\n",
        b"data: " + b"x" * 95,
        b"data: " + b"x" * 95 + b"\n\n",
        b"data: " + b"x" * 45 + b"\ndata:" + b"y" * 45,
        b"data\n" * 26,
        b"data: \n" * 17,
    ],
)
def test_an_event_above_the_bound_is_an_upstream_error(body: bytes) -> None:
    def fault(pieces: Iterable[bytes]) -> UpstreamFault:
        decoder = SSEDecoder(max_event_bytes=100)
        with pytest.raises(UpstreamError, match="larger than the allowed 100 bytes") as caught:  # noqa: PT012
            for piece in pieces:
                assert decoder.feed(piece) == []
            decoder.close()
        return caught.value.fault

    assert every_way(body, fault) is UpstreamFault.TOO_LARGE


def test_an_event_at_the_bound_passes() -> None:
    decoder = SSEDecoder(max_event_bytes=100)
    body = b"data: " + b"x" * 44 + b"\ndata: " + b"y" * 44 + b"\n\n"
    assert len(decoder.feed(body * 3 + b": " + b"z" * 98 + b"\n")) == 3
    assert decoder.feed(b"data: a\n\n") == messages("a")


@pytest.mark.parametrize(
    "excess", [b"x" * 101, b"x" * 101 + b"\n", b"data: " + b"x" * 45 + b"\ndata:" + b"y" * 45 + b"\n"]
)
def test_what_is_whole_is_handed_over_before_the_error_is_raised(excess: bytes) -> None:
    decoder = SSEDecoder(max_event_bytes=100)
    assert decoder.feed(b"data: a\n\ndata: b\n\n" + excess) == messages("a", "b")
    for _ in range(2):
        with pytest.raises(UpstreamError):
            decoder.feed(b"\n\ndata: c\n\n")
    with pytest.raises(UpstreamError):
        decoder.close()


def bytes_allocated(feed: Callable[[bytes], object], body: bytes) -> int:
    """Bytes allocated while a body is fed in pieces of 64 bytes: the sum of the peaks of all calls."""
    total = 0
    tracemalloc.start()
    try:
        for start in range(0, len(body), 64):
            piece = body[start : start + 64]
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            feed(piece)
            total += tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    return total


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"data: " + b"x" * 4_000_000 + b"\n\n", id="one long line"),
        pytest.param(b"data: xy\n" * 100_000 + b"\n", id="many data lines of one event"),
        pytest.param(b": " + b"x" * 1_000_000 + b"\ndata: a\n\n", id="one long comment"),
    ],
)
def test_work_is_linear_in_the_bytes_fed(body: bytes) -> None:
    decoder = SSEDecoder()
    events: list[ServerSentEvent] = []
    allocated = bytes_allocated(lambda piece: events.extend(decoder.feed(piece)), body)
    # Small lines cost their objects; a decoder that copies its buffer needs thousands of times the body.
    assert allocated // len(body) < 50
    assert events == decode([body])[0]


def test_ndjson_work_is_linear_in_the_bytes_fed() -> None:
    body = b'"' + b"x" * 1_000_000 + b'"\n'
    decoder = NDJSONDecoder()
    lines: list[bytes] = []
    assert bytes_allocated(lambda piece: lines.extend(decoder.feed(piece)), body) // len(body) < 50
    assert lines == [body[:-1]]


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b"", []),
        (b"\n \n\t\r\n", []),
        (b'{"a": 1}\n{"b": 2}\n', [b'{"a": 1}', b'{"b": 2}']),
        (b'{"a": 1}\r\n\r\n{"b": 2}\r\n', [b'{"a": 1}', b'{"b": 2}']),
        (b'{"a": 1}\n{"b": 2}', [b'{"a": 1}', b'{"b": 2}']),
        (b'\n\n{"a": 1}\n\n', [b'{"a": 1}']),
        (b"\xef\xbb\xbf1\n", [b"1"]),
        ('"é\u2028\u0085😀"\n'.encode(), ['"é\u2028\u0085😀"'.encode()]),
    ],
)
def test_ndjson_gives_one_payload_a_line(body: bytes, lines: list[bytes]) -> None:
    assert every_way(body, decode_ndjson) == lines


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(json_values, max_size=6), st.sampled_from([b"\n", b"\r\n"]), st.booleans(), cut_positions)
def test_any_json_values_come_through_ndjson(
    values: list[object], line_end: bytes, ended: bool, positions: list[int]
) -> None:
    body = line_end.join(json.dumps(value, ensure_ascii=False).encode() for value in values)
    body += line_end if ended else b""
    assert [json.loads(line) for line in decode_ndjson(cut(body, positions))] == values


@given(st.lists(json_values, max_size=6), st.sampled_from([b"\n", b"\r\n", b"\r"]), cut_positions)
def test_any_json_values_come_through_an_event_stream(
    values: list[object], line_end: bytes, positions: list[int]
) -> None:
    body = b"".join(
        b"data: " + json.dumps(value, ensure_ascii=False).encode() + line_end * 2 for value in values
    )
    assert [json.loads(event.data) for event in decode(cut(body, positions))[0]] == values


def test_an_ndjson_line_above_the_bound_is_an_upstream_error() -> None:
    for body in (b"x" * 11, b"x" * 11 + b"\n"):

        def fault(pieces: Iterable[bytes]) -> UpstreamFault:
            decoder = NDJSONDecoder(max_line_bytes=10)
            with pytest.raises(UpstreamError, match="one line of the stream") as caught:  # noqa: PT012
                for piece in pieces:
                    assert decoder.feed(piece) == []
                decoder.close()
            return caught.value.fault

        assert every_way(body, fault) is UpstreamFault.TOO_LARGE


def test_ndjson_lines_before_one_that_is_too_large_are_handed_over() -> None:
    decoder = NDJSONDecoder(max_line_bytes=10)
    assert decoder.feed(b"1\n2\n" + b"x" * 11 + b"\n3\n") == [b"1", b"2"]
    with pytest.raises(UpstreamError):
        decoder.feed(b"4\n")
    with pytest.raises(UpstreamError):
        decoder.close()

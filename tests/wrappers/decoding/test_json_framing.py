"""JSON objects outside an event stream: lines, pretty-printed objects and arrays, wherever reads are cut."""

import itertools
import json
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.scenarios import cut_at, in_reads
from support.strategies import json_objects
from tailrace.wrappers.decoding.framing import ServerSentEvent
from tailrace.wrappers.decoding.json_framing import JSONDecoder
from tailrace.wrappers.errors import UpstreamError, UpstreamFault


def decode(pieces: Iterable[bytes], bound: int = 20_000_000) -> list[bytes]:
    """The objects of a body, and the incomplete rest at its end."""
    decoder = JSONDecoder(max_value_bytes=bound)
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()
    assert all(event == ServerSentEvent(event.data) for event in events)
    return [event.data for event in events]


def every_way(body: bytes) -> list[bytes]:
    """Decode a body complete, in single bytes (with empty reads between) and cut at each position; compare the results."""
    whole = decode([body])
    assert decode([piece for byte in body for piece in (bytes([byte]), b"")]) == whole
    for position in range(len(body) + 1):
        assert decode([body[:position], body[position:]]) == whole, f"cut at {position}"
    return whole


CASES: dict[str, tuple[bytes, list[bytes]]] = {
    "nothing": (b"", []),
    "white space": (b" \n\t\r\n", []),
    "one object": (b'{"a": 1}', [b'{"a": 1}']),
    "one object and a line end": (b'{"a": 1}\n', [b'{"a": 1}']),
    "one per line": (b'{"a": 1}\n{"b": 2}\n', [b'{"a": 1}', b'{"b": 2}']),
    "one per line, CRLF and blank lines": (b'{"a": 1}\r\n\r\n{"b": 2}\r\n', [b'{"a": 1}', b'{"b": 2}']),
    "one per line, CR": (b'{"a": 1}\r{"b": 2}\r', [b'{"a": 1}', b'{"b": 2}']),
    "one per line, the last one unterminated": (b'{"a": 1}\n{"b": 2}', [b'{"a": 1}', b'{"b": 2}']),
    "one per line, the last one truncated": (b'{"a": 1}\n{"b": "x', [b'{"a": 1}', b'{"b": "x']),
    "a line that is not JSON": (b'{"a": 1}\nBad gateway {\n{"b": 2}\n', [b'{"a": 1}', b"Bad gateway {", b'{"b": 2}']),
    "a line that is not an object": (b'{"a": 1}\n[DONE]\n', [b'{"a": 1}', b"[DONE]"]),
    "objects in a row": (b'{"a": 1}{"b": 2} {"c": 3}\n{"d": 4}', [b'{"a": 1}', b'{"b": 2}', b'{"c": 3}', b'{"d": 4}']),
    "an object over several lines": (b'{\n "a": 1\n}\n', [b'{\n "a": 1\n}']),
    "objects over several lines": (b'{\n "a": 1\n}\n{}\n{\n "b": [\n2]\n}', [b'{\n "a": 1\n}', b"{}", b'{\n "b": [\n2]\n}']),
    "an array": (b'[{"a": 1},\r\n{"b": 2}\r\n,{"c": 3}]', [b'{"a": 1}', b'{"b": 2}', b'{"c": 3}']),
    "an array over several lines": (b'[\n  {\n "a": 1\n},\n{"b": 2}\n]\n', [b'{\n "a": 1\n}', b'{"b": 2}']),
    "an array of a single line": (b'[{"a": 1}]\n', [b'{"a": 1}']),
    "an array with other values": (b'["{", 1, null, {"a": 1}, "}"]', [b'{"a": 1}']),
    "an array of arrays": (b'[[{"a": 1}], [2]]', [b'[{"a": 1}]', b"[2]"]),
    "an array and what follows it": (b'[{"a": 1}]\n[{"b": 2}]\n{"c": 3}', [b'{"a": 1}', b'[{"b": 2}]', b'{"c": 3}']),
    "an array truncated between its elements": (b'[{"a": 1},', [b'{"a": 1}']),
    "an array truncated inside an element": (b'[{"a": 1}, {"b": "', [b'{"a": 1}', b'{"b": "']),
    "an empty array": (b"[]", []),
    "unmatched closing brackets": (b']}{"a": 1}}}]{"b": 2}', [b'{"a": 1}', b'{"b": 2}']),
    "garbage between objects": (b'x {"a": 1} and <b> {"b": 2}; 3', [b'{"a": 1}', b'{"b": 2}']),
    "a BOM": (b'\xef\xbb\xbf{"a": 1}\n{"b": 2}\n', [b'{"a": 1}', b'{"b": 2}']),
    "braces and quotes in strings": (
        b'[{"a": "}{][", "b\\"}": "\\\\"}, {"c": "\\"{\\\\\\"" }]',
        [b'{"a": "}{][", "b\\"}": "\\\\"}', b'{"c": "\\"{\\\\\\"" }'],
    ),
    "a string truncated after a backslash": (b'{"a": "b\\', [b'{"a": "b']),
    "raw line ends and U+2028 in a string": ('{"a": "é\u2028😀"}{"b": "\n"}'.encode(), ['{"a": "é\u2028😀"}'.encode(), b'{"b": "\n"}']),
}  # fmt: skip


@pytest.mark.parametrize(("body", "objects"), CASES.values(), ids=CASES.keys())
def test_each_object_comes_out_however_the_body_is_cut(body: bytes, objects: list[bytes]) -> None:
    assert every_way(body) == objects


LAYOUTS = {
    "lines": ("", "\n", "", None),
    "lines ended by CRLF": ("", "\r\n", "", None),
    "pretty": ("", "\n", "\n", 2),
    "in a row": ("", "", "", None),
    "an array": ("[", ",", "]", None),
    "a pretty array": ("[\n", ",\n", "\n]\n", 1),
}


@given(
    objects=st.lists(json_objects, max_size=4),
    layout=st.sampled_from(list(LAYOUTS)),
    positions=st.lists(st.integers(0, 200), max_size=8),
)
def test_any_objects_come_through_in_any_layout(
    objects: list[dict[str, object]], layout: str, positions: list[int]
) -> None:
    begin, between, end, indent = LAYOUTS[layout]
    texts = [json.dumps(value, ensure_ascii=False, indent=indent) for value in objects]
    body = (begin + between.join(texts) + end).encode()
    if indent is not None and objects and not objects[0]:
        return  # an empty object is one line even when pretty-printed: the framing is lines
    assert [json.loads(data) for data in decode(cut_at(body, positions))] == objects


@given(
    body=st.lists(st.sampled_from(list(b'{}[]",:\\\n\r a')), max_size=30).map(bytes),
    positions=st.lists(st.integers(0, 30), max_size=6),
    bound=st.integers(1, 8),
)
def test_any_bytes_give_the_same_however_they_are_cut(body: bytes, positions: list[int], bound: int) -> None:
    def until_error(pieces: list[bytes]) -> tuple[list[bytes], UpstreamFault | None]:
        decoder = JSONDecoder(max_value_bytes=bound)
        found: list[bytes] = []
        try:
            for piece in pieces:
                found += [event.data for event in decoder.feed(piece)]
            found += [event.data for event in decoder.close()]
        except UpstreamError as error:
            return found, error.fault
        return found, None

    assert until_error(cut_at(body, positions)) == until_error([body])


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": "' + b"x" * 100 + b'"}',
        b'{"a": "' + b"x" * 100,
        b'[{"a": ' + b"1" * 100,
        b"{" * 101,
        b'{}\n{"a": "' + b"x" * 100,
    ],
    ids=["a whole object", "a string", "an element", "braces", "a line"],
)
def test_an_object_above_the_bound_is_an_upstream_error(body: bytes) -> None:
    for reads in ([body], in_reads(body, 1), in_reads(body, 7)):
        decoder = JSONDecoder(max_value_bytes=100)
        with pytest.raises(UpstreamError, match="larger than the allowed 100 bytes") as caught:  # noqa: PT012
            for data in [*reads, b"x"]:
                assert decoder.feed(data) in ([], [ServerSentEvent(b"{}")])
        assert caught.value.fault is UpstreamFault.TOO_LARGE
        with pytest.raises(UpstreamError):
            decoder.feed(b"}")
        with pytest.raises(UpstreamError):
            decoder.close()


@pytest.mark.parametrize("before", [b'{"a": 1}', b'{"a": 1}\n', b'[{"a": 1}, '])
def test_what_is_whole_is_handed_over_before_the_error_is_raised(before: bytes) -> None:
    decoder = JSONDecoder(max_value_bytes=100)
    assert decoder.feed(before + b'{"b": "' + b"x" * 100) == [ServerSentEvent(b'{"a": 1}')]
    with pytest.raises(UpstreamError):
        decoder.feed(b"x")


def test_an_object_at_the_bound_passes() -> None:
    body = b'{"a": "' + b"x" * 91 + b'"}'
    assert decode([body * 3], bound=len(body)) == [body] * 3


def test_garbage_between_objects_is_not_held() -> None:
    decoder = JSONDecoder(max_value_bytes=100)
    decoder.feed(b"[")
    for _ in range(10):
        assert decoder.feed(b" keep-alive " * 100) == []
    assert decoder.feed(b'{"a": 1}') == [ServerSentEvent(b'{"a": 1}')]


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": "' + b"x" * 2_000_000 + b'"}',
        b'{"a": "' + b'\\"' * 500_000 + b'"}',
        b'[{"a": [' + b'{"b": 1},' * 50_000 + b"0]}]",
    ],
    ids=["a huge string", "a string of escapes", "many small values"],
)
def test_work_is_linear_in_the_bytes_fed(body: bytes) -> None:
    decoder = JSONDecoder()
    allocated, found = 0, list[bytes]()
    tracemalloc.start()
    try:
        for piece in in_reads(body, 64):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            found += [event.data for event in decoder.feed(piece)]
            allocated += tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    # Small reads cost their objects; a decoder that copies its buffer needs thousands of times the body.
    assert allocated // len(body) < 50
    assert found == decode([body])


def test_a_huge_string_in_one_read_is_no_reason_to_fail() -> None:
    text = b'\\"{x' * 2_000_000
    assert decode([b'{"a": "' + text, text + b'"}']) == [b'{"a": "' + text * 2 + b'"}']


def test_closing_twice_gives_nothing_more() -> None:
    decoder = JSONDecoder()
    decoder.feed(b'{"a": ')
    assert [event.data for event in itertools.chain(decoder.close(), decoder.close())] == [b'{"a": ']


reads_of_json = st.lists(
    st.sampled_from([b"[", b'[{"a": 1}', b'{"a": 1}', b'{"b": [1, "}"]}', b'{"a": 1}\n,\r\n{"b": 2}', b'\n,\r\n{"a": "\\"]"}\n', b"\n,\r\n", b",", b"]",
        b"\n", b"\r", b" ", b"x", b'"', b"{", b"}", b'{"a":', b"\\", b'{"a": 1}\n', b'{"a": 1}\r\n', b'[{"a": 1}\n,\r\n{"b": 2}]', b'{"a": [}']),
    max_size=10,
)  # fmt: skip


@given(reads_of_json, st.sampled_from([8, 16, 20_000_000]))
def test_reads_of_whole_objects_give_the_same_as_single_bytes(reads: list[bytes], bound: int) -> None:
    def until_error(pieces: list[bytes]) -> tuple[list[bytes], str]:
        decoder, found = JSONDecoder(max_value_bytes=bound), list[bytes]()
        try:
            for piece in pieces:
                found += [event.data for event in decoder.feed(piece)]
            found += [event.data for event in decoder.close()]
        except UpstreamError as error:
            return found, str(error)
        return found, ""

    assert until_error(reads) == until_error([bytes([byte]) for byte in b"".join(reads)])


def is_object(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@given(reads_of_json)
def test_what_is_seen_at_a_glance_is_what_feeding_gives(reads: list[bytes]) -> None:
    decoder = JSONDecoder()
    for read in reads:
        seen = decoder.find_object(read) if decoder.idle else b""
        found = [event.data for event in decoder.feed(read)]
        if is_object(seen):
            assert found == [seen]
            assert decoder.idle


def test_elements_of_an_array_are_seen_at_a_glance() -> None:
    decoder = JSONDecoder()
    assert [event.data for event in decoder.feed(b'[{"a": 1}\n')] == [b'{"a": 1}']
    assert decoder.idle
    assert decoder.find_object(b',\r\n{"b": "}{"}\n]\n') == b'{"b": "}{"}'
    assert decoder.find_object(b',\r\n[{"b": 1}]') == b""
    assert decoder.find_object(b',\r\n{"b": ') == b""

"""From bytes to chunks in any framing, which is detected from the first bytes, wherever reads are cut."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.deltas import Delta
from support.scenarios import cut_at, in_reads
from tailrace.wrappers import ChunkDetails, UpstreamError, UpstreamFault
from tailrace.wrappers.decoding.decoder import EventDecoder, merged_usage


class NumberDecoder(EventDecoder[Delta]):
    """Objects with the field ``n``; an object with ``last`` ends the response."""

    def __init__(self, *, max_event_bytes: int = 10_000_000) -> None:
        super().__init__(provider="numbers", max_event_bytes=max_event_bytes)

    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[Delta]:
        if error_event:
            return [self.wrap_error(UpstreamError(str(fields), fault=UpstreamFault.PROVIDER))]
        self.done = self.done or "last" in fields
        return [Delta(None, text=str(fields["n"]))] if "n" in fields else []

    def wrap_error(self, error: UpstreamError) -> Delta:
        return Delta(None, details=ChunkDetails(error=error))


class QuickNumberDecoder(NumberDecoder):
    """The same, with a fast tier for objects that have no field but ``n``."""

    def __init__(self, *, max_event_bytes: int = 10_000_000) -> None:
        super().__init__(max_event_bytes=max_event_bytes)
        self.quick: list[bytes] = []

    def wrap_common(self, payload: bytes) -> list[Delta]:
        if not (payload.startswith(b'{"n":') and payload[5:-1].strip().isdigit() and payload.endswith(b"}")):
            return []
        self.quick.append(payload)
        return [Delta(None, text=str(int(payload[5:-1])))]


every_decoder = pytest.mark.parametrize("decoder_type", [NumberDecoder, QuickNumberDecoder])


def read(reads: Iterable[bytes], decoder: NumberDecoder | None = None) -> list[str]:
    """The numbers of a body, and the message of each error."""
    decoder = decoder or NumberDecoder()
    deltas = [delta for data in reads for delta in decoder.feed(data)] + decoder.close()
    return [str(delta.details.error) if delta.details is not None else delta.text for delta in deltas]


def every_way(body: bytes, decoder_type: type[NumberDecoder] = NumberDecoder) -> list[str]:
    """Read a body complete, in single bytes (with empty reads between) and cut at each position; compare the results."""
    whole = read([body], decoder_type())
    assert read([piece for byte in body for piece in (bytes([byte]), b"")], decoder_type()) == whole
    for position in range(len(body) + 1):
        assert read([body[:position], body[position:]], decoder_type()) == whole, f"cut at {position}"
    return whole


SSE = b'data: {"n": 1}\n\ndata: {"n": 2}\n\n'
LINES = b'{"n": 1}\n{"n": 2}\n'
ARRAY = b'[{"n": 1},\n{"n": 2}]'
PRETTY = b'{\n "n": 1\n}\n{\n "n": 2\n}'

BODIES = {
    "an event stream": SSE,
    "an event stream without spaces": SSE.replace(b": {", b":{"),
    "an event stream in CRLF": SSE.replace(b"\n", b"\r\n"),
    "an event stream after comments": b": waiting\n\n: waiting\n\n" + SSE,
    "an event stream after other fields": b"retry: 3\nid: 7\n\n" + SSE,
    "an event stream of two chunks an event": b'data: [{"n": 1}, {"n": 2}]\n\n',
    "lines": LINES,
    "lines in CRLF": LINES.replace(b"\n", b"\r\n"),
    "lines without the last end": LINES.rstrip(),
    "an array": ARRAY,
    "objects over several lines": PRETTY,
}
LEADS = {
    "nothing": b"",
    "a BOM": b"\xef\xbb\xbf",
    "blank lines": b"\n\r\n\n",
    "a BOM and blank lines": b"\xef\xbb\xbf\n\n",
}


@every_decoder
@pytest.mark.parametrize("lead", LEADS.values(), ids=LEADS.keys())
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_the_framing_is_detected_from_the_body(
    body: bytes, lead: bytes, decoder_type: type[NumberDecoder]
) -> None:
    assert every_way(lead + body, decoder_type) == ["1", "2"]


@pytest.mark.parametrize("body", [LINES, ARRAY, PRETTY])
def test_spaces_may_stand_before_json(body: bytes) -> None:
    assert every_way(b" \t\n " + body) == ["1", "2"]


@pytest.mark.parametrize("body", [SSE, LINES, ARRAY])
@pytest.mark.parametrize("kept_alive", [b"\n", b"\r\n" * 500])
def test_keep_alives_of_white_space_may_go_on_for_long(body: bytes, kept_alive: bytes) -> None:
    assert read([b"\xef", b"\xbb\xbf", *([kept_alive] * 40), body]) == ["1", "2"]


@pytest.mark.parametrize("body", [SSE, LINES, ARRAY])
def test_a_large_first_read_is_read_from_its_beginning(body: bytes) -> None:
    large = body.replace(b'{"n": 1', b'{"padding": "' + b"x" * 100_000 + b'", "n": 1')
    for reads in ([large], [b"\xef\xbb\xbf" + large], [b"\xef\xbb", b"\xbf" + large], [b"\n", large]):
        assert read(reads) == ["1", "2"]


def test_white_space_without_end_is_not_held() -> None:
    decoder = NumberDecoder()
    for _ in range(100):
        assert decoder.feed(b"\n" * 10_000) == []
    assert len(decoder._head) < 100_000  # pyright: ignore[reportPrivateUsage] — the bound is the point
    assert read([SSE], decoder) == ["1", "2"]


@given(
    body=st.sampled_from(
        [*BODIES.values(), b"<html>", b'{"n": 1}\noops\n{"n": 2}\n', b"data: x\n\n", b" data"]
    ),
    lead=st.sampled_from(list(LEADS.values())),
    positions=st.lists(st.integers(0, 60), max_size=6),
    quick=st.booleans(),
)
def test_no_cut_changes_the_content_of_a_body(
    body: bytes, lead: bytes, positions: list[int], quick: bool
) -> None:
    whole = read([lead + body])
    decoder = QuickNumberDecoder() if quick else NumberDecoder()
    assert read(cut_at(lead + body, positions), decoder) == whole


# --- further members of a body --------------------------------------------------------------------------------


def test_a_stream_of_objects_without_content_is_empty() -> None:
    assert every_way(b'data: {"type": "ping"}\n\n') == []


@pytest.mark.parametrize(
    "body", [b"<html>\n<b>502</b>", b'{"odd": 1}', b"[1, 2]", b"{", b'[{"n":', b"[DONE]"]
)
def test_a_body_without_events_is_quoted_in_the_error(body: bytes) -> None:
    (error,) = every_way(body)
    assert error.startswith("numbers: the provider sent a body that is not an event stream: ")
    assert repr(body.decode()) in error


def test_only_the_beginning_of_a_body_without_events_is_shown() -> None:
    (error,) = read([b"<html>" + b"x" * 200_000])
    assert len(error) < 200


@pytest.mark.parametrize(
    "body", [b"", b"\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf \n", b": ping\n\n", b"event: ping\n\n"]
)
def test_a_body_of_keep_alives_is_empty(body: bytes) -> None:
    assert every_way(body) == []


@every_decoder
def test_a_line_that_is_no_json_is_an_error_in_its_place(decoder_type: type[NumberDecoder]) -> None:
    for body in (b'{"n": 1}\noops\n{"n": 2}\n', b'data: {"n": 1}\n\ndata: oops\n\ndata: {"n": 2}\n\n'):
        found = every_way(body, decoder_type)
        assert found == ["1", "numbers: the provider sent an event that is not JSON: 'oops'", "2"]


@pytest.mark.parametrize("body", [b'data: {"n": 1}\n\ndata: {"n"', b'{"n": 1}\n{"n"', b'[{"n": 1}, {"n"'])
def test_an_object_that_is_cut_is_an_error_behind_the_others(body: bytes) -> None:
    assert every_way(body) == ["1", "numbers: the stream broke off in the middle of an event"]


@every_decoder
def test_nothing_counts_behind_done(decoder_type: type[NumberDecoder]) -> None:
    decoder = decoder_type()
    assert read([SSE + b"data: [DONE]\n\n" + SSE, SSE], decoder) == ["1", "2"]
    assert decoder.done
    assert decoder.feed(SSE) == []
    assert read([LINES + b"[DONE]\n" + LINES]) == ["1", "2"]


def test_an_object_may_be_the_last_that_needs_to_be_read() -> None:
    decoder = NumberDecoder()
    decoder.feed(b'data: {"n": 1, "last": true}\n\n')
    assert decoder.done


@every_decoder
def test_an_object_beyond_the_bound_is_an_upstream_error(decoder_type: type[NumberDecoder]) -> None:
    for body in (SSE, LINES, ARRAY):
        decoder = decoder_type(max_event_bytes=100)
        assert [delta.text for delta in decoder.feed(body.rstrip(b"]") + b"\n")] == ["1", "2"]
        with pytest.raises(UpstreamError) as raised:  # noqa: PT012
            decoder.feed(b'data: {"n": "' + b"x" * 200)
            decoder.feed(b"x")
        assert raised.value.fault is UpstreamFault.TOO_LARGE


# --- the fast tier ----------------------------------------------------------------------------------------------


def test_usual_events_are_decoded_at_speed_whether_they_come_alone_or_not() -> None:
    decoder = QuickNumberDecoder()
    event = b'data: {"n": 3}\n\n'
    assert read([event, event, event * 3, event[:9], event[9:], b"event: x\n" + event], decoder) == ["3"] * 7
    assert len(decoder.quick) == 7


def test_an_event_of_another_shape_is_read_the_other_way() -> None:
    decoder = QuickNumberDecoder()
    assert read([SSE, b'data: {"n": 3, "odd": 1}\n\n', b'data: "x"\n\n', SSE], decoder) == [
        "1",
        "2",
        "3",
        "1",
        "2",
    ]
    assert len(decoder.quick) == 4


def test_an_event_of_type_error_is_never_a_usual_one() -> None:
    decoder = QuickNumberDecoder()
    assert read([SSE, b'event: error\ndata: {"n": 3}\n\n', b'error: {"n": 4}\n\n'], decoder) == [
        "1",
        "2",
        "{'n': 3}",
        "{'n': 4}",
    ]


def test_lines_are_decoded_at_speed_too() -> None:
    decoder = QuickNumberDecoder()
    assert read(in_reads(LINES, 5), decoder) == ["1", "2"]
    assert len(decoder.quick) == 2


# --- usage ------------------------------------------------------------------------------------------------------


def test_usage_is_merged_field_by_field() -> None:
    assert merged_usage({"in": 1, "out": 0}, {"out": 5, "in": None, "more": {}}) == {
        "in": 1,
        "out": 5,
        "more": {},
    }
    assert merged_usage({"in": 1}, None) == {"in": 1}
    known = json.loads('{"in": 1}')
    assert merged_usage(known, [1]) is not known


# --- objects without separators ---------------------------------------------------------------------------------


@every_decoder
@pytest.mark.parametrize("between", ["\n", "\r\n"])
@pytest.mark.parametrize("done", ["", "data: [DONE]"])
@pytest.mark.parametrize("blank", [True, False])
def test_events_without_blank_lines_between_them_are_read(
    decoder_type: type[NumberDecoder], between: str, done: str, blank: bool
) -> None:
    lines = ['data: {"n": 1}', 'data:{"n": 2}', 'data: {"n": 3}', *([done, 'data: {"n": 4}'] if done else [])]
    body = between.join([*lines, "", ""] if blank else lines).encode()
    assert every_way(body, decoder_type) == ["1", "2", "3"]


@every_decoder
@pytest.mark.parametrize("between", [b"", b" ", b"\t"])
def test_objects_on_one_data_line_are_read(decoder_type: type[NumberDecoder], between: bytes) -> None:
    line = b"data: " + between.join([b'{"n": 1}', b'{"n": 2}', b'{"a": "}{\\""}', b'{"n": 3}'])
    assert every_way(SSE + line + b"\n\n" + SSE, decoder_type) == ["1", "2", "1", "2", "3", "1", "2"]
    assert every_way(line + b"[DONE]\n\n" + SSE, decoder_type) == ["1", "2", "3"]


def test_pretty_objects_in_a_row_are_read() -> None:
    pretty = b"".join(b"data: " + line + b"\n" for line in (PRETTY + b"\n" + PRETTY).split(b"\n"))
    assert every_way(pretty + b"\n") == ["1", "2", "1", "2"]


def test_what_broke_off_behind_whole_objects_loses_none_of_them() -> None:
    broken = ["1", "2", "numbers: the stream broke off in the middle of an event"]
    assert every_way(b'data: {"n": 1}\ndata: {"n": 2}\ndata: {"n"') == broken
    assert every_way(b'data: {"n": 1}\ndata: {"n": 2}\ndata: [DO') == ["1", "2"]


def test_what_is_no_json_behind_whole_objects_is_an_error_still() -> None:
    wrong = "numbers: the provider sent an event that is not JSON: 'oops'"
    assert every_way(b'data: {"n": 1}\ndata: oops\n\n' + SSE) == ["1", wrong, "1", "2"]


def test_an_event_of_errors_is_one_for_each() -> None:
    assert every_way(b'event: error\ndata: {"n": 1}\ndata: {"n": 2}\n\n') == ["{'n': 1}", "{'n': 2}"]


def test_deep_nesting_behind_an_object_is_an_error() -> None:
    body = b'data: {"n": 1}\ndata: ' + b'{"a":' * 40_000 + b"\n\n"
    first, error = read([body])
    assert first == "1"
    assert "not JSON" in error


@given(
    st.lists(
        st.sampled_from([b'{"n": 1}', b"[DONE]", b"\n", b" ", b"x", b"{", b'{"n": 2}', b"3"]), max_size=7
    )
)
def test_it_is_the_same_however_it_is_cut(pieces: list[bytes]) -> None:
    body = SSE + b"data: " + b"".join(pieces).replace(b"\n", b"\ndata: ") + b"\n\n" + SSE
    assert every_way(body) == every_way(body, QuickNumberDecoder)

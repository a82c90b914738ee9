"""The decoders of all providers: bodies cut at any position, damaged bodies, and errors."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.lenient_decoders import without_shortcuts
from support.messages import accumulate
from support.provider_cases import CASES, ProviderCase
from support.provider_rounds import CALLS
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import ProtocolError, UpstreamFault
from tailrace.wrappers.decoding.decoder import ResponseDecoder
from tailrace.wrappers.providers import FORMATS


def decode(name: str, reads: Iterable[bytes]) -> Accumulator:
    decoder = FORMATS[name].create_decoder(provider="p")
    wrappers = [wrapper for data in reads for wrapper in decoder.feed(data)]
    return accumulate([*wrappers, *decoder.close()])


def facts(answer: Accumulator) -> tuple[Any, ...]:
    return answer.message(), answer.usage, answer.metadata, answer.error


def body_of_call(name: str) -> bytes:
    steps = CALLS[name]("call00001", "weather", '{"city": "Bern", "days": [1, 2]}')
    body = b"".join(step for step in steps if isinstance(step, bytes))
    # Multi-byte characters in places where no length depends on them.
    return body if name == "bedrock" else body.replace(b"Bern", "Zürich\u2028".encode())


BODIES = {
    **{f"{name} text": (case, case.begin + case.rest) for name, case in CASES.items()},
    **{f"{name} call": (case, body_of_call(name)) for name, case in CASES.items()},
}


@pytest.mark.parametrize(("case", "body"), BODIES.values(), ids=BODIES)
def test_a_body_means_the_same_wherever_it_is_cut(case: ProviderCase, body: bytes) -> None:
    expected = decode(case.name, [body])
    assert expected.error is None
    assert expected.message().content != ()
    for at in range(1, len(body)):
        assert facts(decode(case.name, [body[:at], body[at:]])) == facts(expected)
    assert facts(decode(case.name, (body[at : at + 1] for at in range(len(body))))) == facts(expected)


def payloads(body: bytes) -> list[bytes]:
    """The JSON of each event of a body."""
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n")]
    return [line for line in lines if line.startswith(b"{")]


def as_events(body: bytes) -> bytes:
    return b"".join(b"data: " + each + b"\n\n" for each in payloads(body))


FRAMINGS: dict[str, Callable[[bytes], bytes]] = {
    "events without a name": as_events,
    "a marker at the end": lambda body: as_events(body) + b"data: [DONE]\n\n",
    "other line ends": lambda body: body.replace(b"\n", b"\r\n"),
    "one object per line": lambda body: b"".join(each + b"\n" for each in payloads(body)),
    "one list": lambda body: b"[" + b",".join(payloads(body)) + b"]",
    "no last line end": lambda body: body.rstrip(b"\n"),
}


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("name", [name for name in BODIES if not name.startswith("bedrock")])
def test_a_body_means_the_same_in_every_framing(name: str, framing: str) -> None:
    case, body = BODIES[name]
    assert facts(decode(case.name, [FRAMINGS[framing](body)])) == facts(decode(case.name, [body]))


# The end of Gemini's response is the end of its body.
@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.name != "gemini"], ids=lambda case: case.name
)
def test_a_decoder_is_done_at_the_end_of_the_response(case: ProviderCase) -> None:
    decoder = FORMATS[case.name].create_decoder()
    decoder.feed(case.begin)
    assert not decoder.done
    decoder.feed(case.rest)
    assert decoder.done


@pytest.mark.parametrize("name", FORMATS)
@given(reads=st.lists(st.binary(max_size=60), max_size=6))
@settings(deadline=None)
def test_no_bytes_make_a_decoder_fail(name: str, reads: list[bytes]) -> None:
    decode(name, reads)
    decode(name, [b"data: ", *reads, b"\n\n"])
    decode(name, [CASES[name].begin, *reads])


@given(body=st.sampled_from(sorted(BODIES)), data=st.data())
@settings(max_examples=300, deadline=None)
def test_no_damage_to_a_body_makes_a_decoder_fail(body: str, data: st.DataObject) -> None:
    case, whole = BODIES[body]
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(damaged)))
        stop = start + data.draw(st.integers(0, 12))
        damaged[start:stop] = data.draw(
            st.sampled_from([b"", b"\n", b'"', b"{", b"]", b"null", b"9e999", b"\\ud800", b"\xff"])
        )
    # A frame may declare a length above the bound.
    with suppress(ProtocolError):
        decode(case.name, [bytes(damaged)])


ODD: tuple[Any, ...] = (None, True, 1, "x", [], [None], ["x"], {}, {"x": [1]})
SAMPLES = Path(__file__).parents[1] / "fuzz/samples"


def with_odd_values(value: Any) -> Iterator[Any]:
    """The value with each of the unusual values in its place and in the place of each of its members."""
    yield from ODD
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        for name, member in members.items():
            yield from ({**members, name: odd} for odd in with_odd_values(member))
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        for at, item in enumerate(items):
            yield from ([*items[:at], odd, *items[at + 1 :]] for odd in with_odd_values(item))


def results(decoder: ResponseDecoder[Any], reads: Iterable[bytes]) -> tuple[Any, ...]:
    """The message, metadata and usage after each read, and the error."""
    accumulator = Accumulator()
    steps: list[Any] = []
    for chunks in (*map(decoder.feed, reads), decoder.close()):
        for chunk in chunks:
            accumulator.add(chunk)
        steps.append((accumulator.metadata.copy(), accumulator.usage))
    accumulator.close()
    message = accumulator.message()
    assert message.model_dump_json()
    return message, steps, str(accumulator.error)


@pytest.mark.parametrize("name", FORMATS)
def test_every_value_in_every_place_of_an_event_means_the_same_in_both_tiers(name: str) -> None:
    """One event of each kind of the API, complete and damaged in each place, between its neighbours."""
    create = partial(FORMATS[name].create_decoder, provider="p")
    lines = (SAMPLES / f"{name}.jsonl").read_bytes().splitlines()
    for at, line in enumerate(lines):
        before, after = lines[max(0, at - 2) : at + 1], lines[at + 1 : at + 2]
        for odd in (json.loads(line), *with_odd_values(json.loads(line))):
            reads = [each + b"\n" for each in (*before, json.dumps(odd).encode(), *after)]
            assert results(create(), reads) == results(without_shortcuts(create()), reads)


# Events that the fast tier reads, with facts that may change.
GEMINI_TEXT: dict[str, Any] = {
    "candidates": [{"content": {"parts": [{"text": "a"}], "role": "model"}, "index": 0}],
    "modelVersion": "m",
    "responseId": "r",
}
CHANGING: dict[str, list[dict[str, Any]]] = {
    "openai": [
        {"id": "x", "model": "m", "service_tier": tier, "choices": [{"index": 0, "delta": {"content": "a"}}]}
        for tier in ("default", "priority")
    ],
    "gemini": [
        {**GEMINI_TEXT, "usageMetadata": {"promptTokenCount": 1, "serviceTier": tier}}
        for tier in ("standard", "priority")
    ],
}


@pytest.mark.parametrize("name", FORMATS)
def test_events_in_any_order_mean_the_same_in_both_tiers(name: str) -> None:
    create = partial(FORMATS[name].create_decoder, provider="p")
    changing = [json.dumps(event).encode() for event in CHANGING.get(name, ())]
    lines = [line + b"\n" for line in [*(SAMPLES / f"{name}.jsonl").read_bytes().splitlines(), *changing]]
    for first, second in itertools.product(lines, lines):
        reads = [first, second, second, first, second]
        assert results(create(), reads) == results(without_shortcuts(create()), reads)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_errors_name_the_provider(case: ProviderCase) -> None:
    reported = decode(case.name, [case.begin, case.failure("out of memory")]).error
    assert reported is not None
    assert (reported.provider, reported.fault) == ("p", UpstreamFault.PROVIDER)
    page = decode(case.name, [b"<html>down</html>"]).error
    assert page is not None
    assert page.provider == "p"

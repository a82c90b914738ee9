"""Splitting bodies into frames, mutating and joining them."""

import json

import pytest

from fuzz.corpus import seeds, vocabulary
from fuzz.framing import Frame, join, split
from fuzz.json_text import Raw, parse, places, write
from fuzz.minimiser import minimised
from fuzz.mutations import NAMES, mutate
from tailrace.wrappers.providers import FORMATS


@pytest.mark.parametrize("format", FORMATS)
def test_the_frames_of_a_body_are_the_body(format: str) -> None:
    for seed in seeds(format):
        assert join(split(seed.body)) == seed.body, seed.name


@pytest.mark.parametrize(
    ("body", "payloads"),
    [
        (
            b'event: a\ndata: {"a":1}\n\n: x\n\ndata:{}\r\n\r\ndata: [DONE]',
            [b'{"a":1}', b"", b"{}", b"[DONE]"],
        ),
        (b'{"a":1}\n\n{"b":2}\r\n{"c":', [b'{"a":1}', b"", b'{"b":2}', b'{"c":']),
        (b'[{"a":1}\n,\r\n{"b":[2]}]\n', [b'{"a":1}', b'{"b":[2]}', b""]),
        (b"data: 1\ndata: 2\n\n", [b""]),
        (b"<html>", [b""]),
        (b"[{", [b"[{"]),
    ],
)
def test_each_frame_holds_one_payload(body: bytes, payloads: list[bytes]) -> None:
    assert [frame.payload for frame in split(body)] == payloads
    assert join(split(body)) == body


def test_a_binary_frame_gets_the_lengths_and_checksums_of_its_payload() -> None:
    body = next(seed.body for seed in seeds("bedrock") if seed.body[:1] == b"\0")
    frames = split(body)
    assert len(frames) > 5
    frames[0].payload = b'{"role":"user"}'
    again = split(join(frames))
    assert again == frames
    assert all(frame.binary for frame in again)


def test_json_that_is_no_value_can_be_written() -> None:
    tree = parse(b'{"a":1,"a":{"b":"\\ud83d"},"c":[2.5,null]}')
    assert write(tree) == b'{"a":1,"a":{"b":"\\ud83d"},"c":[2.5,null]}'
    assert [place.key for place in places([tree])] == ["", "a", "a", "c", "b", "", ""]
    places([tree])[1].put(Raw("NaN,"))
    assert write(tree).startswith(b'{"a":NaN,,"a":')


@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_a_mutation_changes_bodies_and_does_the_same_each_time(name: str) -> None:
    bodies = [
        seed.body for format in ("anthropic", "bedrock", "gemini", "ollama") for seed in seeds(format)[:6]
    ]
    words = vocabulary("anthropic")
    made = [mutate(name, number, body, bodies[0], words) for number, body in enumerate(bodies)]
    assert made == [mutate(name, number, body, bodies[0], words) for number, body in enumerate(bodies)]
    assert made != bodies
    assert mutate(name, 0, b"", b"", words) == b""


def test_a_body_is_made_as_small_as_its_fault_allows() -> None:
    events = [{"index": index, "text": "x" * 50, "more": [{"deep": index}]} for index in range(40)]
    body = b"".join([b"event: e\ndata: %s\n\n" % json.dumps(event).encode() for event in events])

    def fails(candidate: bytes) -> bool:
        return any(b'"deep"' in frame.payload and b"17" in frame.payload for frame in split(candidate))

    assert fails(body)
    assert len(minimised(body, fails)) < 30
    assert fails(minimised(body, fails))


def test_a_body_that_nothing_can_be_left_out_of_stays() -> None:
    body = join([Frame(b"data: ", b"{}", b"\n\n")])
    assert minimised(body, lambda candidate: candidate == body) == body

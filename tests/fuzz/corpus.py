"""The bodies to mutate, by format, and the vocabulary of each format.

Sources: the conformance scenarios, the recorded local model, generated bodies of every provider, and one
event of each documented kind (``samples``). Recordings of real providers' servers are included where they are
available.
"""

import csv
import json
import os
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, cast

from benchmarks.bodies import WRITERS, Kind, pieces, write_body
from benchmarks.bodies.bedrock import frame
from fuzz.framing import join, split
from fuzz.json_text import parse, places
from tailrace.wrappers.providers import find_provider

HERE = Path(__file__).parent
_SCENARIOS = HERE.parent / "wrappers/scenarios"
_FIXTURES = HERE.parent / "fixtures"
RECORDINGS = Path(os.environ.get("TAILRACE_RECORDINGS") or HERE.parents[1] / "../shared/providers/recordings")
_LONGEST = 24_000  # bytes of one seed; longer ones take time and find nothing else

# The parts of a response in generated bodies.
_ANSWERS: tuple[tuple[tuple[Kind, int], ...], ...] = (
    ((Kind.TEXT, 12),),
    ((Kind.REASONING, 6), (Kind.TEXT, 6)),
    ((Kind.REASONING, 4), (Kind.TEXT, 3), (Kind.CALL, 5), (Kind.CALL, 3)),
    ((Kind.TEXT, 3), (Kind.CALL, 4), (Kind.TEXT, 3), (Kind.REASONING, 2), (Kind.TEXT, 2)),
)
# The recordings' APIs whose names are not names of a provider.
_APIS = {"gemini-generate-jsonarray": "gemini"}


@dataclass(frozen=True, slots=True)
class Seed:
    """One body.

    Attributes:
        name: The origin of the body.
        body: The body.
    """

    name: str
    body: bytes


@dataclass(slots=True)
class Vocabulary:
    """The vocabulary of a format.

    Attributes:
        keys: Names of members.
        words: Values of members with few values (types, roles, reasons), by the member's name.
        events: Complete payloads.
    """

    keys: list[str] = field(default_factory=list[str])
    words: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    events: list[bytes] = field(default_factory=list[bytes])


@cache
def seeds(format: str) -> list[Seed]:
    """Return the bodies in a format, shortened for the fuzzer; ``format`` is a key of `tailrace.wrappers.providers.FORMATS`."""
    found = [*project_seeds(format), *recorded_seeds(format)]
    return [Seed(seed.name, _shortened(seed.body)) for seed in found]


def project_seeds(format: str) -> list[Seed]:
    """Return the complete bodies in a format that are part of the project."""
    found = [*_generated(format), *samples(format)]
    if format == "openai":
        found += [Seed(path.name, path.read_bytes()) for path in sorted(_SCENARIOS.glob("*.sse"))]
    return found + [Seed(path.name, path.read_bytes()) for path in sorted((_FIXTURES / format).glob("*.sse"))]


@cache
def vocabulary(format: str) -> Vocabulary:
    """The vocabulary of a format's bodies."""
    keys: dict[str, None] = {}
    words: dict[str, dict[str, None]] = {}
    events: dict[bytes, None] = {}
    for seed in seeds(format):
        for each in split(seed.body):
            try:
                tree = parse(each.payload)
            except ValueError:
                continue
            if len(each.payload) < 2000:
                events[each.payload] = None
            for place in places(tree):
                keys[place.key] = None
                if isinstance(place.value, str) and len(place.value) < 40 and " " not in place.value:
                    words.setdefault(place.key, {})[place.value] = None
    # Most members contain texts and ids, which differ everywhere.
    few = {key: list(values) for key, values in words.items() if len(values) < 60}
    return Vocabulary(list(keys), few, list(events))


def _generated(format: str) -> Iterator[Seed]:
    for provider, writer in WRITERS.items():
        if find_provider(provider).format != format:
            continue
        for number, answer in enumerate(_ANSWERS):
            rng = Random(f"{provider}/{number}")
            made = writer(rng)
            blocks = [(kind, _pieces(rng, kind, count, made.lengths)) for kind, count in answer]
            yield Seed(f"{provider}-{number}", b"".join(write_body(made, blocks)))


def _pieces(rng: Random, kind: Kind, count: int, lengths: str) -> list[str]:
    words = pieces(rng, count, lengths)
    if kind is not Kind.CALL:
        return words
    return ['{"query":"', *[json.dumps(word)[1:-1] for word in words], '"}']


def samples(format: str) -> list[Seed]:
    """One event of each kind in the order of a response: as a line each, and in the provider's framing."""
    lines = (HERE / "samples" / f"{format}.jsonl").read_bytes()
    framed = b"".join([b"data: %s\n\n" % line for line in lines.splitlines()])
    if format == "bedrock":
        framed = _frames(lines)
    return [Seed("samples", lines), Seed("framed samples", framed)]


def recorded_seeds(format: str) -> Iterator[Seed]:
    """Yield the complete bodies of a format from the folder of recordings, if it exists."""
    index = RECORDINGS / "INDEX.tsv"
    if not index.exists():
        return
    with index.open(encoding="utf-8", newline="") as rows:
        for row in csv.DictReader(rows, delimiter="\t"):
            provider = "mistral" if row["provider"] == "mistral" else row["api"]
            if find_provider(_APIS.get(provider, provider)).format != format:
                continue
            body = (RECORDINGS / row["file"]).read_bytes()
            yield Seed(row["file"], body)
            if format == "bedrock":
                yield Seed(row["file"] + " as frames", _frames(body))


def _frames(lines: bytes) -> bytes:
    """Bedrock's frames from lines ``{"event": …, "payload": …}``, the form of the samples."""
    found: list[bytes] = []
    for line in lines.splitlines():
        event = cast("dict[str, Any]", json.loads(line))
        if "event" not in event:  # a sample in another form: the event's name is its only key
            ((kind, payload),) = event.items()
            event = {"event": kind, "payload": payload}
        kind, payload = str(event["event"]), event["payload"]
        if "chunk_bytes" in event:
            payload = {"bytes": b64encode(json.dumps(payload).encode()).decode()}
        what = "exception" if kind.endswith("Exception") else "event"
        headers = {f":{what}-type": kind, ":content-type": "application/json", ":message-type": what}
        found.append(frame(headers, json.dumps(payload, ensure_ascii=False).encode()))
    return b"".join(found)


def _shortened(body: bytes) -> bytes:
    """The body without as many frames from its middle as exceed the maximum size."""
    if len(body) <= _LONGEST:
        return body
    frames = [each for each in split(body) if len(each.payload) < _LONGEST]
    while len(frames) > 8 and sum([len(each.payload) for each in frames]) > _LONGEST:
        del frames[len(frames) // 3 : -(-len(frames) * 2 // 3)]
    return join(frames)

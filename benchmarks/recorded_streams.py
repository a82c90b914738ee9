"""``python -m benchmarks.recorded_streams``: the median cost of a chunk in recorded streams of every vocabulary.

A *vocabulary* is the set of events of one API. The cost includes decoding, wrapping and accumulating, with one event per read.
The recordings are in a folder with an ``INDEX.tsv``. Without a folder, the bodies are the project's own recordings (Chat
Completions), and generated bodies.
"""

import csv
import os
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from benchmarks.bodies import WRITERS, Kind, pieces, write_body
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers.providers import find_provider

_ROOT = Path(__file__).parents[1]
_FIXTURES = _ROOT / "tests/fixtures/openai"
# Vocabularies not named after their provider.
_PROVIDERS = {"gemini-generate-jsonarray": "gemini"}
# Generated bodies, by the name of the vocabulary in an index of recordings.
_GENERATED = {
    "openai-completions": "openai-completions",
    "openai-responses": "openai-responses",
    "anthropic": "anthropic-messages",
    "gemini": "gemini-generate",
    "gemini-generate": "gemini-generate-jsonarray",
    "google-interactions": "google-interactions",
    "ollama": "ollama-chat",
    "ollama-generate": "ollama-generate",
    "cohere": "cohere-v2",
    "bedrock": "bedrock-converse",
    "bedrock-invoke": "bedrock-invoke",
    "mistral": "mistral",
}
_EVENT = re.compile(rb"(?s).*?(?:\r\n\r\n|\n\n|\r\r|$)")
_BETWEEN = re.compile(rb"(?<=\n)(?=,)")  # the elements of an indented array

MAX_MICROSECONDS = 4.0
"""Bound on the median cost of a chunk of any vocabulary."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded body.

    Attributes:
        vocabulary: The vocabulary of its events.
        provider: The provider whose wire format decodes the body.
        reads: Its bytes, one event each.
    """

    vocabulary: str
    provider: str
    reads: list[bytes]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a chunk of one vocabulary.

    Attributes:
        vocabulary: Its name.
        bodies: Number of bodies.
        chunks: Number of chunks in the median, without the first and the last of each body.
        median: The median cost of a chunk in µs.
    """

    vocabulary: str
    bodies: int
    chunks: int
    median: float


def recordings(folder: Path | None) -> Iterator[Recording]:
    if folder is not None and (folder / "INDEX.tsv").exists():
        with (folder / "INDEX.tsv").open(encoding="utf-8", newline="") as rows:
            for row in csv.DictReader(rows, delimiter="\t"):
                api = "mistral" if row["provider"] == "mistral" else row["api"]
                yield Recording(
                    api, _PROVIDERS.get(api, api), split_reads((folder / row["file"]).read_bytes())
                )
        return
    for path in sorted(_FIXTURES.glob("*.sse")):
        yield Recording("openai-chat", "openai", split_reads(path.read_bytes()))
    for provider, vocabulary in _GENERATED.items():
        rng = Random(vocabulary)
        writer = WRITERS[provider](rng)
        words = pieces(rng, 200, writer.lengths)
        yield Recording(vocabulary, provider, write_body(writer, [(Kind.TEXT, words)]))


def split_reads(body: bytes) -> list[bytes]:
    """Split a body into reads of one event, line, element or frame."""
    head = body.lstrip(b"\xef\xbb\xbf \r\n\t")[:1]
    if head == b"{":
        return body.splitlines(keepends=True)
    if head == b"[":
        return _BETWEEN.split(body)
    if head == b"\0":
        reads: list[bytes] = []
        while body:
            length = max(int.from_bytes(body[:4], "big"), 1)
            reads.append(body[:length])
            body = body[length:]
        return reads
    return [event for event in _EVENT.findall(body) if event]


def measure(recording: Recording, repeats: int) -> list[float]:
    """Return the cost in µs of each chunk except the first and the last.

    The cost of a chunk is the lowest of all repeats.
    """
    clock = time.perf_counter_ns
    wire_format = find_provider(recording.provider).wire_format
    own = min(-(clock() - clock()) for _ in range(1000))  # the cost of reading the clock
    best = [1 << 60] * len(recording.reads)
    for _ in range(repeats):
        decoder, accumulator = wire_format.create_decoder(), Accumulator()
        feed, add = decoder.feed, accumulator.add
        for position, data in enumerate(recording.reads):
            begin = clock()
            chunks: list[Any] = feed(data)
            for chunk in chunks:
                add(chunk)
            best[position] = min(best[position], clock() - begin)
    return [(taken - own) / 1000 for taken in best[1:-1]]


def costs(folder: Path | None, repeats: int = 15) -> list[Cost]:
    """Return the cost of a chunk of every vocabulary, by name."""
    taken: dict[str, list[list[float]]] = {}
    for recording in recordings(folder):
        taken.setdefault(recording.vocabulary, []).append(measure(recording, repeats))
    found: list[Cost] = []
    for vocabulary, bodies in sorted(taken.items()):
        chunks = [chunk for body in bodies for chunk in body]
        found.append(Cost(vocabulary, len(bodies), len(chunks), statistics.median(chunks) if chunks else 0.0))
    return found


def known_folder() -> Path | None:
    """Return the folder named by the environment, if any."""
    named = os.environ.get("TAILRACE_RECORDINGS")
    return Path(named) if named else None


def main(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder with recordings and INDEX.tsv (by default, TAILRACE_RECORDINGS, or the project's own recordings)."
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Repeats of each body; the lowest time of each chunk counts.")
    ] = 15,
    check: Annotated[bool, typer.Option("--check", help="Exit status 1 if a median is above 4 µs.")] = False,
) -> None:
    """Measure the median time to process a chunk of each API, in µs."""
    broken = False
    for cost in costs(folder or known_folder(), repeats):
        holds = cost.median <= MAX_MICROSECONDS
        broken = broken or not holds
        print(
            f"{cost.vocabulary:28} {cost.median:6.2f} µs  {cost.chunks:6} chunks of {cost.bodies} bodies"
            + ("" if holds else f"  above {MAX_MICROSECONDS:g}")
        )
    if check and broken:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

"""Inputs of all contestants: streams in the providers' formats, identical in every run.

A stream has three parts, because most behaviours measure only the deltas between the beginning and the end.
"""

import json
import random
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice

from benchmarks.bodies import WRITERS, Kind, pieces

DISTINCT_CHUNKS = 1000
"""Number of different chunks; longer streams repeat them.

Megabytes of prepared reads would not be in the processor's cache, in contrast to the data of a read in a server.
"""


class Shape(StrEnum):
    """The contents of a stream: its provider, and the kind of its deltas."""

    TEXT = "openai text"
    REASONING = "openai reasoning"
    TOOL_CALL = "openai call"
    OPENROUTER = "openrouter text"
    AZURE = "azure text"
    MISTRAL = "mistral text"
    MISTRAL_REASONING = "mistral reasoning"
    RESPONSES = "openai-responses text"
    ANTHROPIC = "anthropic text"
    GEMINI = "gemini text"
    OLLAMA = "ollama text"
    COHERE = "cohere text"
    BEDROCK = "bedrock text"
    COMPLETIONS = "openai-completions text"
    GEMINI_ARRAY = "gemini-generate text"
    INTERACTIONS = "google-interactions text"
    OLLAMA_GENERATE = "ollama-generate text"
    BEDROCK_INVOKE = "bedrock-invoke text"

    @property
    def is_chat_completions(self) -> bool:
        """True if every contestant reads the format."""
        return self.provider in ("openai", "openrouter", "azure", "mistral")

    @property
    def provider(self) -> str:
        """The provider, a key of `WRITERS`."""
        return self.partition(" ")[0]

    @property
    def kind(self) -> Kind:
        """The kind of its deltas."""
        return Kind(self.partition(" ")[2])


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Consecutive reads of a body.

    Attributes:
        reads: The bytes, as they arrive.
        chunks: The number of chunks in them.
    """

    reads: tuple[bytes, ...]
    chunks: int


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """One response body.

    Attributes:
        shape: The contents of its deltas.
        opening: Up to and including the first delta with text.
        body: The measured deltas.
        closing: The end.
        text: The contents of all deltas: text, reasoning, or the arguments of the call.
    """

    shape: Shape
    opening: Part
    body: Part
    closing: Part
    text: str

    @property
    def parts(self) -> tuple[Part, Part, Part]:
        """All parts, in order."""
        return self.opening, self.body, self.closing

    @property
    def chunks(self) -> int:
        """The number of chunks in all parts."""
        return sum(part.chunks for part in self.parts)


def make_stream(shape: Shape, chunks: int, *, chunks_per_read: int = 1, seed: int = 0) -> Stream:
    """Return a stream of this shape. The same arguments result in the same bytes.

    Args:
        shape: The contents of the deltas.
        chunks: The number of deltas in the body.
        chunks_per_read: The number of chunks per read.
        seed: Selects a different response.
    """
    rng = random.Random(f"{shape}/{chunks}/{seed}")
    writer, kind = WRITERS[shape.provider](rng), shape.kind
    words = pieces(rng, min(chunks, DISTINCT_CHUNKS), writer.lengths)
    first, last = "Once", "."
    if kind is Kind.CALL:
        words = [json.dumps(word, ensure_ascii=False)[1:-1] for word in words]
        first, last = '{"query":"', '"}'
    text = "".join((first, *islice(cycle(words), chunks), last))
    opening = [*writer.begin(), *writer.open(kind), writer.delta(kind, first)]
    body = list(islice(cycle([writer.delta(kind, word) for word in words]), chunks))
    closing = [writer.delta(kind, last), *writer.shut(kind, text), *writer.end(chunks)]
    reads = [b"".join(body[at : at + chunks_per_read]) for at in range(0, chunks, chunks_per_read)]
    return Stream(
        shape,
        opening=Part(tuple(opening), _chunks(opening)),
        body=Part(tuple(reads), chunks),
        closing=Part(tuple(closing), _chunks(closing)),
        text=text,
    )


def _chunks(events: list[bytes]) -> int:
    return sum(1 for event in events if event[:1] != b":" and b"[DONE]" not in event)

"""What every contestant is fed: streams in the providers' formats, the same ones in every run.

A stream has three parts, because most behaviours measure what one more chunk costs, not what it costs to begin and to
end: `opening` (the role, the first words), `body` (as many deltas as were asked for) and `closing` (finish reason,
usage, ``[DONE]``).
"""

import json
import random
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice

from benchmarks.bodies import WRITERS, Kind, pieces

DISTINCT_CHUNKS = 1000
"""How many chunks differ; longer streams repeat them. On a server a read has just been copied by the kernel and is
in the processor's cache; megabytes of prepared reads would not be."""


class Shape(StrEnum):
    """What a stream carries: whose it is, and of which kind its deltas are."""

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
        """It is in the format that every contestant reads."""
        return self.provider in ("openai", "openrouter", "azure", "mistral")

    @property
    def provider(self) -> str:
        """A key of `WRITERS`."""
        return self.partition(" ")[0]

    @property
    def kind(self) -> Kind:
        """Of its deltas."""
        return Kind(self.partition(" ")[2])


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some reads of a body that belong together.

    Attributes:
        reads: The bytes, as they arrive.
        chunks: How many chunks they hold.
    """

    reads: tuple[bytes, ...]
    chunks: int


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """One response body.

    Attributes:
        shape: What its deltas carry.
        opening: Up to and including the first delta that says something.
        body: The deltas that are measured.
        closing: What ends it.
        text: What all deltas together say: text, reasoning, or the arguments of the call.
    """

    shape: Shape
    opening: Part
    body: Part
    closing: Part
    text: str

    @property
    def parts(self) -> tuple[Part, Part, Part]:
        """All of it, in order."""
        return self.opening, self.body, self.closing

    @property
    def chunks(self) -> int:
        """How many chunks it has from its beginning to its end."""
        return sum(part.chunks for part in self.parts)


def make_stream(shape: Shape, chunks: int, *, chunks_per_read: int = 1, seed: int = 0) -> Stream:
    """A stream of that shape; the same arguments give the same bytes.

    Args:
        shape: What the deltas carry.
        chunks: How many deltas the body holds.
        chunks_per_read: How many of them arrive together.
        seed: Another seed, another answer.
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

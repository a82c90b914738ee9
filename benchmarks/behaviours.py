"""What is measured, by name."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice

from benchmarks.inputs import DISTINCT_CHUNKS, Shape, Stream, make_stream


class Stage(StrEnum):
    """Which part of the way a behaviour measures."""

    PATH = "path"
    """Bytes of the body in; the answer folded, and (where a contestant has them) encoded A2A events out."""
    SSE = "sse"
    """Bytes in, payloads out."""
    DECODE = "decode"
    """Bytes in, chunk objects out: server-sent events and JSON."""
    FOLD = "fold"
    """Chunk objects in, the answer so far."""
    ENCODE = "encode"
    """One more piece of text in, one encoded A2A event out."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One named thing to measure.

    Attributes:
        name: How it is asked for.
        title: What the table says.
        group: Behaviours of one group are measured in turns in one process, so that their ratios mean something.
        stage: Which part of the way.
        shape: What the stream carries.
        chunks: How long one stream is.
        chunks_per_read: How many chunks arrive together.
        whole: Beginning and ending the stream are measured too, and counted to its chunks.
    """

    name: str
    title: str
    group: str
    stage: Stage = Stage.PATH
    shape: Shape = Shape.TEXT
    chunks: int = 1000
    chunks_per_read: int = 1
    whole: bool = False

    def streams(self, least_chunks: int) -> list[Stream]:
        """As many streams as it takes to come to that many chunks: at least one, and some of them the same."""
        distinct = [
            make_stream(self.shape, self.chunks, chunks_per_read=self.chunks_per_read, seed=seed)
            for seed in range(max(1, DISTINCT_CHUNKS // self.chunks))
        ]
        return list(islice(cycle(distinct), max(1, least_chunks // self.chunks)))


BEHAVIOURS = (
    Behaviour("text-100", "text, 100 chunks", "length", chunks=100),
    Behaviour("text-1000", "text, 1,000 chunks", "length", chunks=1000),
    Behaviour("text-4000", "text, 4,000 chunks", "length", chunks=4000),
    Behaviour("text-16000", "text, 16,000 chunks", "length", chunks=16_000),
    Behaviour("whole-100", "text, 100 chunks, all in", "whole", chunks=100, whole=True),
    Behaviour("merged", "text, 20 chunks a read", "merged", chunks_per_read=20),
    Behaviour("openrouter", "text, OpenRouter", "openrouter", shape=Shape.OPENROUTER),
    Behaviour("azure", "text, Azure", "azure", shape=Shape.AZURE),
    Behaviour("reasoning", "reasoning", "reasoning", shape=Shape.REASONING),
    Behaviour("tool-call", "tool call", "tool-call", shape=Shape.TOOL_CALL),
    Behaviour("sse", "SSE alone", "parts", Stage.SSE),
    Behaviour("decode", "SSE and JSON alone", "parts", Stage.DECODE),
    Behaviour("fold", "fold alone", "parts", Stage.FOLD),
    Behaviour("encode", "encode alone", "parts", Stage.ENCODE),
)


def named(names: Iterable[str]) -> list[Behaviour]:
    """The behaviours of those names, in the table's order.

    Raises:
        ValueError: There is none of that name.
    """
    wanted = set(names)
    unknown = wanted - {behaviour.name for behaviour in BEHAVIOURS}
    if unknown:
        raise ValueError(f"no behaviour is called {', '.join(sorted(unknown))}")
    return [behaviour for behaviour in BEHAVIOURS if behaviour.name in wanted]

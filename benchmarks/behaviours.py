"""The measured behaviours, by name."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice

from benchmarks.inputs import DISTINCT_CHUNKS, Shape, Stream, make_stream


class Stage(StrEnum):
    """The stages of processing that a behaviour measures."""

    ANSWER = "answer"
    """Input: the bytes of a complete body. Output: one message."""
    CHUNK = "chunk"
    """As `ANSWER`, without the beginning and the end of a body."""
    PATH = "path"
    """Input: the bytes of a body. Output: the accumulated response, and encoded A2A events if the contestant creates them."""
    SSE = "sse"
    """Input: bytes. Output: the payloads of server-sent events."""
    DECODE = "decode"
    """Input: bytes. Output: chunk objects."""
    FOLD = "fold"
    """Input: chunk objects. Output: the response so far."""
    ENCODE = "encode"
    """Input: one more text delta. Output: one encoded A2A event."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One measured behaviour.

    Attributes:
        name: The name on the command line.
        title: The title in the table.
        group: Behaviours of one group are measured alternately, so that their ratios are meaningful.
        stage: The measured stages.
        shape: The contents of the stream.
        chunks: The length of one stream.
        chunks_per_read: The number of chunks per read.
        whole: True to include the beginning and the end of each task.
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
        """Return as many streams as are needed for ``least_chunks`` chunks, at least one."""
        distinct = [
            make_stream(self.shape, self.chunks, chunks_per_read=self.chunks_per_read, seed=seed)
            for seed in range(max(1, DISTINCT_CHUNKS // self.chunks))
        ]
        return list(islice(cycle(distinct), max(1, least_chunks // self.chunks)))


def _answer(name: str, title: str, shape: Shape, chunks: int = 1000) -> Behaviour:
    return Behaviour(name, title, name, Stage.ANSWER, shape, chunks)


def _chunk(name: str, title: str, shape: Shape, chunks_per_read: int = 1) -> Behaviour:
    name, title = f"chunk-{name}", f"a chunk: {title}"
    return Behaviour(name, title, name, Stage.CHUNK, shape, chunks_per_read=chunks_per_read)


BEHAVIOURS = (
    _answer("openai", "OpenAI, text", Shape.TEXT),
    _answer(
        "openai-short", "OpenAI, text, 20 chunks", Shape.TEXT, 15
    ),  # plus five chunks at the beginning and the end
    _answer("openai-reasoning", "compatible, reasoning, 8,000", Shape.REASONING, 8000),
    _answer("openai-tool-call", "OpenAI, tool call", Shape.TOOL_CALL),
    _answer("azure", "Azure, text", Shape.AZURE),
    _answer("openrouter", "OpenRouter, text", Shape.OPENROUTER),
    _answer("mistral", "Mistral, text", Shape.MISTRAL),
    _answer("mistral-reasoning", "Mistral, reasoning", Shape.MISTRAL_REASONING),
    _chunk("openai", "OpenAI, text", Shape.TEXT),
    _chunk("openai-merged", "OpenAI, text, 20 a read", Shape.TEXT, 20),
    _chunk("openai-reasoning", "compatible, reasoning", Shape.REASONING),
    _chunk("openai-tool-call", "OpenAI, tool call", Shape.TOOL_CALL),
    _chunk("azure", "Azure, text", Shape.AZURE),
    _chunk("openrouter", "OpenRouter, text", Shape.OPENROUTER),
    _chunk("mistral", "Mistral, text", Shape.MISTRAL),
    _chunk("mistral-reasoning", "Mistral, reasoning", Shape.MISTRAL_REASONING),
    _chunk("responses", "Responses, text", Shape.RESPONSES),
    _chunk("anthropic", "Anthropic, text", Shape.ANTHROPIC),
    _chunk("gemini", "Gemini, text", Shape.GEMINI),
    _chunk("ollama", "Ollama, text", Shape.OLLAMA),
    _chunk("cohere", "Cohere, text", Shape.COHERE),
    _chunk("bedrock", "Bedrock, text", Shape.BEDROCK),
    _chunk("bedrock-invoke", "Bedrock InvokeModel, text", Shape.BEDROCK_INVOKE),
    _chunk("completions", "Completions, text", Shape.COMPLETIONS),
    _chunk("gemini-array", "Gemini array, text", Shape.GEMINI_ARRAY),
    _chunk("interactions", "Interactions, text", Shape.INTERACTIONS),
    _chunk("ollama-generate", "Ollama generate, text", Shape.OLLAMA_GENERATE),
    Behaviour("text-100", "A2A: text, 100 chunks", "length", chunks=100),
    Behaviour("text-1000", "A2A: text, 1,000 chunks", "length", chunks=1000),
    Behaviour("text-4000", "A2A: text, 4,000 chunks", "length", chunks=4000),
    Behaviour("text-16000", "A2A: text, 16,000 chunks", "length", chunks=16_000),
    Behaviour("whole-100", "A2A: text, 100 chunks, all in", "whole", chunks=100, whole=True),
    Behaviour("merged", "A2A: text, 20 chunks a read", "merged", chunks_per_read=20),
    Behaviour("text-azure", "A2A: text, Azure", "text-azure", shape=Shape.AZURE),
    Behaviour("text-openrouter", "A2A: text, OpenRouter", "text-openrouter", shape=Shape.OPENROUTER),
    Behaviour("reasoning", "A2A: reasoning", "reasoning", shape=Shape.REASONING),
    Behaviour("tool-call", "A2A: tool call", "tool-call", shape=Shape.TOOL_CALL),
    Behaviour("sse", "SSE alone", "parts", Stage.SSE),
    Behaviour("decode", "SSE and JSON alone", "parts", Stage.DECODE),
    Behaviour("fold", "fold alone", "parts", Stage.FOLD),
    Behaviour("encode", "encode alone", "parts", Stage.ENCODE),
)

SHORT = ("openai", "chunk-anthropic", "text-100", "text-16000")
"""The behaviours of a short run."""


def named(names: Iterable[str]) -> list[Behaviour]:
    """Return the behaviours with these names, in the order of the table.

    Raises:
        ValueError: No behaviour has this name.
    """
    wanted = set(names)
    unknown = wanted - {behaviour.name for behaviour in BEHAVIOURS}
    if unknown:
        raise ValueError(f"no behaviour is called {', '.join(sorted(unknown))}")
    return [behaviour for behaviour in BEHAVIOURS if behaviour.name in wanted]

"""What every contestant is fed: Chat Completions streams of about 300 bytes a chunk, the same ones in every run.

The shapes are the one that OpenAI documents and those that OpenRouter and Azure send. A stream has three parts,
because most behaviours measure what one more chunk costs, not what it costs to begin and to end: `opening` (the role,
the first words), `body` (as many deltas as were asked for) and `closing` (finish reason, usage, ``[DONE]``).
"""

import json
import random
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice
from string import ascii_letters, digits
from typing import Any

# Tokens as a tokenizer cuts prose, a few of them outside ASCII, as in most answers of any length.
_WORDS = (
    " the", " stream", " of", " tokens", " is", " carried", " on", ",", " and", ".", " to", " every", " reader",
    " who", " asks", ":", " a", " mill", " wheel", "'s", " tail", "race", "\n\n", " in", " order", " without",
    " loss", " un", "accompan", "ied", " —", " café", " 東京",
)  # fmt: skip
_WEIGHTS = [4 if word.isascii() else 1 for word in _WORDS]
_CREATED = 1_755_006_475
_SAFE = {"filtered": False, "severity": "safe"}
_FILTERS = {"hate": _SAFE, "self_harm": _SAFE, "sexual": _SAFE, "violence": _SAFE}

DISTINCT_CHUNKS = 1000
"""How many chunks differ; longer streams repeat them. On a server a read has just been copied by the kernel and is
in the processor's cache; megabytes of prepared reads would not be."""


class Shape(StrEnum):
    """What the deltas of a stream carry."""

    TEXT = "text"
    OPENROUTER = "text as OpenRouter sends it"
    AZURE = "text as Azure sends it"
    REASONING = "reasoning"
    TOOL_CALL = "tool call"


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


def make_stream(shape: Shape, chunks: int, *, chunks_per_read: int = 1, seed: int = 0) -> Stream:
    """A stream of that shape; the same arguments give the same bytes.

    Args:
        shape: What the deltas carry.
        chunks: How many deltas the body holds.
        chunks_per_read: How many of them arrive together.
        seed: Another seed, another answer.
    """
    rng = random.Random(f"{shape}/{chunks}/{seed}")
    words = rng.choices(_WORDS, _WEIGHTS, k=min(chunks, DISTINCT_CHUNKS))
    first, last = "Once", "."
    if shape is Shape.TOOL_CALL:
        words = [json.dumps(word, ensure_ascii=False)[1:-1] for word in words]
        first, last = '{"query":"', '"}'
    writer = _ChunkWriter(shape, rng)
    body = list(islice(cycle([writer.delta(word) for word in words]), chunks))
    reads = [b"".join(body[at : at + chunks_per_read]) for at in range(0, chunks, chunks_per_read)]
    return Stream(
        shape,
        opening=Part((writer.first(), writer.delta(first)), 2),
        body=Part(tuple(reads), chunks),
        closing=Part((writer.delta(last), writer.finish(), writer.usage(chunks), b"data: [DONE]\n\n"), 3),
        text="".join((first, *islice(cycle(words), chunks), last)),
    )


class _ChunkWriter:
    """Writes the chunks of one response."""

    def __init__(self, shape: Shape, rng: random.Random) -> None:
        self._shape = shape
        self._rng = rng
        self._id = "".join(rng.choices(ascii_letters + digits, k=29))

    def first(self) -> bytes:
        if self._shape is Shape.OPENROUTER:
            return b": OPENROUTER PROCESSING\n\n" + self.delta("")
        delta: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
        if self._shape is Shape.TOOL_CALL:
            function = {"name": "search", "arguments": ""}
            call = {"index": 0, "id": "call_" + self._id[:24], "type": "function", "function": function}
            delta = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None}
        return self._chunk(delta)

    def delta(self, text: str) -> bytes:
        if self._shape is Shape.OPENROUTER:
            return self._chunk({"role": "assistant", "content": text, "reasoning": None})
        if self._shape is Shape.REASONING:
            return self._chunk({"reasoning_content": text})
        if self._shape is Shape.TOOL_CALL:
            return self._chunk({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})
        return self._chunk({"content": text})

    def finish(self) -> bytes:
        delta = {"role": "assistant", "content": ""} if self._shape is Shape.OPENROUTER else {}
        return self._chunk(delta, "tool_calls" if self._shape is Shape.TOOL_CALL else "stop")

    def usage(self, tokens: int) -> bytes:
        usage = {"prompt_tokens": 24, "completion_tokens": tokens, "total_tokens": 24 + tokens}
        return _event({**self._head(), "choices": [], "usage": usage})

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice: dict[str, Any] = {"index": 0, "delta": delta}
        if self._shape is Shape.OPENROUTER:
            choice |= {
                "finish_reason": finish_reason,
                "native_finish_reason": finish_reason,
                "logprobs": None,
            }
            return _event({**self._head(), "choices": [choice]})
        choice |= {"logprobs": None, "finish_reason": finish_reason}
        if self._shape is Shape.AZURE:
            return _event({**self._head(), "choices": [{"content_filter_results": _FILTERS, **choice}]})
        # Random padding, against observers who would tell tokens by their length.
        padding = self._rng.choices(ascii_letters + digits, k=self._rng.randint(2, 8))
        return _event({**self._head(), "choices": [choice], "obfuscation": "".join(padding)})

    def _head(self) -> dict[str, Any]:
        if self._shape is Shape.OPENROUTER:
            return {
                "id": f"gen-{_CREATED}-{self._id[:20]}",
                "provider": "OpenAI",
                "model": "openai/gpt-4o-2024-08-06",
                "object": "chat.completion.chunk",
                "created": _CREATED,
            }
        return {
            "id": "chatcmpl-" + self._id,
            "object": "chat.completion.chunk",
            "created": _CREATED,
            "model": "gpt-4o-2024-08-06",
            "service_tier": "default",
            "system_fingerprint": "fp_07871e2ad8",
        }


def _event(payload: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()

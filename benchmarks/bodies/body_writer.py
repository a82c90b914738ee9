"""Common parts of the writers of all formats: kinds of content, words, and their division into deltas."""

import json
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import StrEnum
from random import Random
from string import ascii_letters, digits
from typing import Any

# Tokens of prose, a few of them outside ASCII.
_WORDS = (
    " the", " stream", " of", " tokens", " is", " carried", " on", ",", " and", ".", " to", " every", " reader",
    " who", " asks", ":", " a", " mill", " wheel", "'s", " tail", "race", "\n\n", " in", " order", " without",
    " loss", " un", "accompan", "ied", " —", " café", " 東京",
)  # fmt: skip
_WEIGHTS = [4 if word.isascii() else 1 for word in _WORDS]

CREATED = 1_755_006_475
"""Creation time of every response, in seconds since 1970."""

Lengths = Sequence[tuple[float, int]]
"""Lengths of deltas: pairs of a cumulative share of all deltas, and their maximum number of characters."""

_TOKENS: Lengths = ((0.25, 2), (0.5, 3), (0.75, 6), (0.9, 8), (0.99, 16), (1, 40))
LENGTHS: dict[str, Lengths] = {
    "tokens": _TOKENS,
    "anthropic": ((0.1, 2), (0.25, 4), (0.5, 8), (0.75, 18), (0.9, 47), (0.99, 120), (1, 216)),
    "gemini": ((0.1, 5), (0.25, 21), (0.5, 89), (0.75, 125), (0.9, 224), (0.99, 615), (1, 1222)),
}
"""Lengths of deltas in recorded responses."""


class Kind(StrEnum):
    """The kind of a block of a response."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


class BodyWriter(ABC):
    """Writes one response body, event by event. The same `Random` gives the same bytes.

    Args:
        rng: For ids and padding.

    Attributes:
        lengths: The lengths of this provider's deltas, a key of `LENGTHS`.
    """

    lengths = "tokens"

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def token(self, length: int) -> str:
        """Return a random id or signature."""
        return "".join(self.rng.choices(ascii_letters + digits, k=length))

    @abstractmethod
    def begin(self) -> list[bytes]:
        """Return the events before any content."""

    @abstractmethod
    def open(self, kind: Kind) -> list[bytes]:
        """Return the events at the beginning of a block; empty if the format has no blocks."""

    @abstractmethod
    def delta(self, kind: Kind, piece: str) -> bytes:
        """Return one delta of the open block's text, or of the JSON text of a call's arguments.

        If the format has only complete calls, return nothing for a call; `shut` returns it.
        """

    @abstractmethod
    def shut(self, kind: Kind, whole: str) -> list[bytes]:
        """Return the events at the end of the open block.

        Args:
            kind: The kind of the block.
            whole: All deltas of the block, joined.
        """

    @abstractmethod
    def end(self, tokens: int) -> list[bytes]:
        """Return the end of a body: finish reason, usage, and terminators.

        Args:
            tokens: The tokens of the response.
        """


def pieces(rng: Random, count: int, lengths: str = "tokens") -> list[str]:
    """Return prose, divided into deltas with the lengths of a provider's deltas.

    Args:
        rng: Determines the deltas.
        count: The number of deltas.
        lengths: A key of `LENGTHS`.
    """
    shares, longest = zip(*LENGTHS[lengths], strict=True)
    sizes: list[int] = []
    for _ in range(count):
        place = bisect_left(shares, rng.random())
        sizes.append(rng.randint(longest[place - 1] if place else 1, longest[place]))
    text = "".join(rng.choices(_WORDS, _WEIGHTS, k=sum(sizes)))  # no word is empty
    found: list[str] = []
    position = 0
    for size in sizes:
        found.append(text[position : position + size])
        position += size
    return found


def write_body(writer: BodyWriter, blocks: Iterable[tuple[Kind, Sequence[str]]]) -> list[bytes]:
    """Return the events of a complete body.

    Args:
        writer: A new writer.
        blocks: The blocks of the response.
    """
    events = writer.begin()
    tokens = 0
    for kind, parts in blocks:
        events += writer.open(kind)
        events += [event for part in parts if (event := writer.delta(kind, part))]
        events += writer.shut(kind, "".join(parts))
        tokens += len(parts)
    return events + writer.end(tokens)


def compact(payload: dict[str, Any]) -> bytes:
    """Return an object as JSON without white space."""
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()


def sse(payload: dict[str, Any], event: str = "") -> bytes:
    name = b"event: %s\n" % event.encode() if event else b""
    return b"%sdata: %s\n\n" % (name, compact(payload))

"""What the writers of all formats have in common: the kinds of content, the words, and how they are cut."""

import json
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import StrEnum
from random import Random
from string import ascii_letters, digits
from typing import Any

# Tokens as a tokenizer cuts prose, a few of them outside ASCII, as in most answers of any length.
_WORDS = (
    " the", " stream", " of", " tokens", " is", " carried", " on", ",", " and", ".", " to", " every", " reader",
    " who", " asks", ":", " a", " mill", " wheel", "'s", " tail", "race", "\n\n", " in", " order", " without",
    " loss", " un", "accompan", "ied", " —", " café", " 東京",
)  # fmt: skip
_WEIGHTS = [4 if word.isascii() else 1 for word in _WORDS]

CREATED = 1_755_006_475
"""When every answer was made, in seconds since 1970."""

Lengths = Sequence[tuple[float, int]]
"""Characters of one delta: a share of all deltas, and how long those up to there are at most."""

_TOKENS: Lengths = ((0.25, 2), (0.5, 3), (0.75, 6), (0.9, 8), (0.99, 16), (1, 40))
LENGTHS: dict[str, Lengths] = {
    "tokens": _TOKENS,
    "anthropic": ((0.1, 2), (0.25, 4), (0.5, 8), (0.75, 18), (0.9, 47), (0.99, 120), (1, 216)),
    "gemini": ((0.1, 5), (0.25, 21), (0.5, 89), (0.75, 125), (0.9, 224), (0.99, 615), (1, 1222)),
}
"""Counted in recorded responses. Most providers send a token a delta; two gather several."""


class Kind(StrEnum):
    """What a block of an answer is."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


class BodyWriter(ABC):
    """Writes one response body, event by event. The same `Random` gives the same bytes.

    Args:
        rng: For ids and padding.

    Attributes:
        lengths: How long this provider's deltas are, a key of `LENGTHS`.
    """

    lengths = "tokens"

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def token(self, length: int) -> str:
        """Something that looks like an id or a seal."""
        return "".join(self.rng.choices(ascii_letters + digits, k=length))

    @abstractmethod
    def begin(self) -> list[bytes]:
        """What comes before any content."""

    @abstractmethod
    def open(self, kind: Kind) -> list[bytes]:
        """A block begins; there is nothing to say where the format has no blocks."""

    @abstractmethod
    def delta(self, kind: Kind, piece: str) -> bytes:
        """One piece of the open block's text, or of the JSON text of a call's arguments.

        Empty for a call in a format that sends calls whole: `shut` has it then.
        """

    @abstractmethod
    def shut(self, kind: Kind, whole: str) -> list[bytes]:
        """The open block ends.

        Args:
            kind: Its kind.
            whole: All its pieces.
        """

    @abstractmethod
    def end(self, tokens: int) -> list[bytes]:
        """Finish reason, usage, and whatever else ends a body.

        Args:
            tokens: Of the answer.
        """


def pieces(rng: Random, count: int, lengths: str = "tokens") -> list[str]:
    """Running prose in pieces as long as a provider's deltas are.

    Args:
        rng: The same one gives the same pieces.
        count: How many.
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
    """A whole body, as its events.

    Args:
        writer: A fresh one.
        blocks: What the answer consists of.
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
    """An object as JSON without white space."""
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()


def sse(payload: dict[str, Any], event: str = "") -> bytes:
    """An object as a server-sent event."""
    name = b"event: %s\n" % event.encode() if event else b""
    return b"%sdata: %s\n\n" % (name, compact(payload))

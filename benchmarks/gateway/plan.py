"""The plan of a response, encoded in the prompt, which every server forwards to the upstream.

A *burst* is sent without pauses. Each delta of a *paced* response contains its index and the time at which it was sent, so that a
reader detects losses and measures latency.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.inputs import Shape, Stream, make_stream

_PROMPT = re.compile(rb"bench tokens=(\d+) rate=(\d+) hold=(\d+) seed=(\d+)")
_PIECE = re.compile(r"(\d+)@(\d+) ")
_ENDS = 2  # deltas of a generated stream in addition to its body
SEEDS = 5
"""Number of different bursts of one length."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a response.

    Attributes:
        tokens: The number of text deltas.
        rate: Deltas per second; 0 for all at once.
        hold: Deltas sent before the response waits for a release; 0 for all.
        seed: Selects one of several bursts of the same length.
    """

    tokens: int
    rate: int = 0
    hold: int = 0
    seed: int = 0

    @property
    def prompt(self) -> str:
        """The prompt that requests this plan."""
        return f"bench tokens={self.tokens} rate={self.rate} hold={self.hold} seed={self.seed}"

    @property
    def timed(self) -> bool:
        """True if the deltas contain the time at which they were sent."""
        return self.rate > 0

    @property
    def stream(self) -> Stream:
        """Return the bytes of a burst, and its text."""
        return _burst(self.tokens, self.seed % SEEDS)

    def matches(self, text: str) -> bool:
        """Return True if the text is the complete response, in order and without duplicates."""
        if not self.timed:
            return text == self.stream.text
        return [piece.index for piece in pieces(text)] == list(range(self.tokens)) and not _PIECE.sub(
            "", text
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """A delta of a paced response.

    Attributes:
        index: Its index, from 0.
        sent: The time at which the upstream sent it, in ns of the monotonic clock.
    """

    index: int
    sent: int


def piece(index: int, sent: int) -> str:
    """Return the text of a delta of a paced response."""
    return f"{index}@{sent} "


def pieces(text: str) -> Iterable[Piece]:
    """Return the deltas in a text."""
    return (Piece(int(found[1]), int(found[2])) for found in _PIECE.finditer(text))


def find_plan(request: bytes) -> Plan | None:
    """Return the plan in the last message of a request."""
    found = _PROMPT.findall(request)
    return Plan(*map(int, found[-1])) if found else None


@lru_cache(maxsize=256)
def _burst(tokens: int, seed: int) -> Stream:
    return make_stream(Shape.TEXT, tokens - _ENDS, seed=seed)

"""What a reader asks of the upstream, said in the prompt: every server hands that on, whatever protocol it speaks.

A burst is an answer as `benchmarks.inputs` makes it, sent at once. A paced answer says in each piece which one it is and
when it was sent, so that a reader can tell what was lost and how long each piece took, whoever cut it up or merged it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.inputs import Shape, Stream, make_stream

_PROMPT = re.compile(rb"bench tokens=(\d+) rate=(\d+) hold=(\d+) seed=(\d+)")
_PIECE = re.compile(r"(\d+)@(\d+) ")
_ENDS = 2  # pieces of a made stream beside its body: the first words, and the full stop
SEEDS = 5
"""How many different bursts of one length there are."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One answer.

    Attributes:
        tokens: Its pieces of text.
        rate: Pieces a second; 0 for all at once.
        hold: How many of the pieces are sent before the upstream is told to go on; 0 for all.
        seed: Which one of several bursts of that length.
    """

    tokens: int
    rate: int = 0
    hold: int = 0
    seed: int = 0

    @property
    def prompt(self) -> str:
        """How a caller asks for it."""
        return f"bench tokens={self.tokens} rate={self.rate} hold={self.hold} seed={self.seed}"

    @property
    def timed(self) -> bool:
        """Its pieces say when they were sent."""
        return self.rate > 0

    @property
    def stream(self) -> Stream:
        """The bytes of a burst, and what they say."""
        return _burst(self.tokens, self.seed % SEEDS)

    def is_said_by(self, text: str) -> bool:
        """Whether that is the answer: all of it, in order, nothing twice."""
        if not self.timed:
            return text == self.stream.text
        return [piece.index for piece in pieces(text)] == list(range(self.tokens)) and not _PIECE.sub(
            "", text
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a paced answer.

    Attributes:
        index: Which one, from 0.
        sent: When the upstream sent it: ns of the machine's monotonic clock, which all its processes share.
    """

    index: int
    sent: int


def piece(index: int, sent: int) -> str:
    """The text of a piece of a paced answer."""
    return f"{index}@{sent} "


def pieces(text: str) -> Iterable[Piece]:
    """The pieces that a text holds."""
    return (Piece(int(found[1]), int(found[2])) for found in _PIECE.finditer(text))


def find_plan(request: bytes) -> Plan | None:
    """The plan that the last message of a request asks for."""
    found = _PROMPT.findall(request)
    return Plan(*map(int, found[-1])) if found else None


@lru_cache(maxsize=256)
def _burst(tokens: int, seed: int) -> Stream:
    return make_stream(Shape.TEXT, tokens - _ENDS, seed=seed)

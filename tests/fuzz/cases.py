"""A fuzz case: the body, its mutations, and its reads, small enough to be stored."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from random import Random
from typing import Any

from fuzz.corpus import Seed, seeds, vocabulary
from fuzz.mutations import NAMES, mutate
from tailrace.wrappers.providers import FORMATS

_SHORT = 2000  # only bodies below this many bytes arrive byte by byte


@dataclass(frozen=True, slots=True)
class Case:
    """The mutations of a body.

    Attributes:
        format: The format of the body and of its decoder.
        body: The index of the body among those of the format, modulo their number.
        other: The index of the body that mutations mix in, of another format or of the same one.
        steps: The mutations, each with its name and the seed of its choices.
        reads: The seed of the cuts between reads.
        bound: The bound on one event in bytes; 0 for the decoder's default.
        think_tags: Whether reasoning in tags is separated from the text.
        detecting: Whether the decoder detects the format.
    """

    format: str
    body: int
    other: int
    steps: tuple[tuple[str, int], ...]
    reads: int
    bound: int = 0
    think_tags: bool = False
    detecting: bool = False

    def build(self) -> bytes:
        """Return the mutated body."""
        body = _nth(seeds(self.format), self.body).body
        other = _nth(_all_seeds(self.format), self.other).body
        words = vocabulary(self.format)
        for name, number in self.steps:
            body = mutate(name, number, body, other, words)
        return body

    def to_json(self) -> str:
        """Return the case as text for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Case":
        """Return the case that a text describes."""
        fields: dict[str, Any] = json.loads(text)
        steps = tuple((str(name), int(number)) for name, number in fields.pop("steps"))
        return cls(**fields, steps=steps)

    @classmethod
    def random(cls, rng: Random, format: str) -> "Case":
        """Return a random case."""
        count = min(12, 1 + int(rng.expovariate(0.5)))
        return cls(
            format,
            rng.randrange(1 << 16),
            rng.randrange(1 << 16),
            tuple((rng.choice(NAMES), rng.randrange(1 << 32)) for _ in range(count)),
            rng.randrange(1 << 32),
            rng.choice((0, 0, 0, 0, 0, 0, 0, 300)),
            rng.random() < 0.3,
            rng.random() < 0.05,
        )


def cut(body: bytes, number: int) -> list[bytes]:
    """The body in reads, whose sizes follow from the seed."""
    rng = Random(number)
    way = rng.randrange(4)
    if way == 0 and len(body) < _SHORT:
        return [body[at : at + 1] for at in range(len(body))]
    if way == 1:
        size = rng.choice((1, 2, 3, 7, 16, 64, 1000)) if len(body) < _SHORT else rng.randint(64, 5000)
        return [body[at : at + size] for at in range(0, len(body), size)]
    places = sorted(rng.randrange(len(body) + 1) for _ in range(rng.choice((1, 2, 10, 60))))
    edges = [0, *places, len(body)]
    return [body[begin:end] for begin, end in pairwise(edges)]  # some of them empty


def _all_seeds(format: str) -> list[Seed]:
    """The bodies to mix in: the format's own twice, since these mixtures find the most."""
    own = seeds(format)
    return [*own, *own, *(seed for name in FORMATS for seed in seeds(name))]


def _nth(items: Sequence[Seed], number: int) -> Seed:
    return items[number % len(items)]

"""One case: a seed and its mutations, small enough to be stored, repeated, and minimised."""

import copy
import json
from dataclasses import dataclass
from random import Random
from typing import Any

from fuzz.json_text import parse, write
from fuzz.requests.calls import Call
from fuzz.requests.mutations import ON_BODY, ON_CALL, ON_TREE, change_call, change_tree
from fuzz.requests.seeds import Seed, bodies_from_grammar, seeds, serialize

MOST_BYTES = 8_300_000
"""The size of a mutated body, below the server's limit (``TAILRACE_MAX_REQUEST_BYTES``) in most cases."""

_FROM_GRAMMAR = "grammar"
_RATIO = 40  # ratio of the size of JSON to that of a protobuf message, whose values cost more


@dataclass(frozen=True, slots=True)
class Case:
    """The mutations of a seed.

    Attributes:
        seed: The index of the seed.
        steps: The mutations, each with its name and the seed of its choices.
        most_bytes: The maximum size of the body; mutations of size may use less.
    """

    seed: int
    steps: tuple[tuple[str, int], ...]
    most_bytes: int = MOST_BYTES

    @property
    def origin(self) -> Seed:
        """The unchanged seed."""
        return seeds()[self.seed]

    def build(self) -> Call:
        """Return the call."""
        seed = self.origin
        call = copy.deepcopy(seed.call)
        steps = [step for step in self.steps if step[0] in ON_TREE or step[0] == _FROM_GRAMMAR]
        if seed.tree is not None and steps:
            tree: Any = seed.tree
            if steps[0][0] == _FROM_GRAMMAR:
                tree = bodies_from_grammar(seed, Random(steps[0][1]))
            room = self.most_bytes if seed.kind is None else self.most_bytes // _RATIO
            tree = parse(json.dumps(tree).encode())
            for name, number in steps:
                if name in ON_TREE:
                    tree = change_tree(name, number, tree, room)
            call.body = write(tree)
            if seed.kind is not None:
                call.body = _as_message(seed.kind, call.body) or seed.call.body
        for name, number in self.steps:
            if name in ON_BODY or name in ON_CALL:
                change_call(name, number, call, self.most_bytes)
        return call

    @classmethod
    def random(cls, rng: Random, *, most_bytes: int = MOST_BYTES, seed: int | None = None) -> "Case":
        """Return a random case of all seeds or of one."""
        at = rng.randrange(len(seeds())) if seed is None else seed
        origin = seeds()[at]
        count = min(6, 1 + int(rng.expovariate(0.8)))
        steps: list[tuple[str, int]] = []
        if origin.schema is not None and rng.random() < 0.4:
            steps.append((_FROM_GRAMMAR, rng.randrange(1 << 32)))
            count -= rng.random() < 0.3
        steps += [(_step(rng, origin), rng.randrange(1 << 32)) for _ in range(count)]
        return cls(at, tuple(steps), most_bytes)


def _step(rng: Random, seed: Seed) -> str:
    if seed.kind is not None:
        return rng.choice((*ON_TREE, *ON_BODY, "header", "header", "caller"))
    if seed.tree is None:
        return rng.choice(
            ("header", "header", "query", "query", "path", "path", "caller", "method", "whole-body")
        )
    if rng.random() < 0.75:
        return rng.choice(tuple(ON_TREE))
    return rng.choice((*ON_BODY, *ON_CALL))


def _as_message(kind: Any, body: bytes) -> bytes:
    try:
        return serialize(kind, json.loads(body))
    except (ValueError, RecursionError):
        return b""

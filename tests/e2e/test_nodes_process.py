"""A short run of the torture test of several nodes; in full: ``make torture ARGS="--only nodes"``."""

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from torture import continuations, cross_node_calls, deliveries, node_losses
from torture.outcome import Outcome

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

RUNS: dict[str, Callable[[Path, random.Random, Outcome], Awaitable[object]]] = {
    "the same events at every node": lambda folder, _, outcome: deliveries.run(
        folder, outcome, streams=9, rate=200, seconds=3, bursts=1, burst=3_000, timed=False
    ),
    "requests to other nodes": lambda folder, rng, outcome: cross_node_calls.run(
        folder, rng, outcome, each=8, timed=False
    ),
    "killed nodes": lambda folder, rng, outcome: node_losses.kills(folder, rng, outcome, rounds=4, streams=6),
    "continued responses of killed nodes": lambda folder, rng, outcome: continuations.kill_nodes(
        folder, rng, outcome, "prefill", 2, 6, timed=False
    ),
    "cut connections": lambda folder, rng, outcome: node_losses.cuts(
        folder, rng, outcome, rounds=5, streams=6
    ),
    "rolling restart": lambda folder, rng, outcome: node_losses.rolling(folder, rng, outcome, streams=6),
}


@pytest.mark.parametrize("name", RUNS)
async def test_no_rule_is_violated(tmp_path: Path, name: str) -> None:
    outcome = Outcome("short")
    await RUNS[name](tmp_path, random.Random("short"), outcome)
    assert not outcome.violated, outcome.explain()

"""A short run of the torture of several nodes; in full: ``make torture ARGS="--only nodes"``."""

import random
from pathlib import Path

import pytest

from torture import deliveries, errands, losses
from torture.outcome import Outcome

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.fixture
def rng() -> random.Random:
    return random.Random("short")


@pytest.fixture
def outcome() -> Outcome:
    return Outcome("short")


async def test_readers_of_every_node_are_shown_the_same(tmp_path: Path, outcome: Outcome) -> None:
    await deliveries.run(
        tmp_path, outcome, streams=9, rate=200, seconds=3, bursts=1, burst=3_000, timed=False
    )
    assert not outcome.violated, outcome.explain()


async def test_what_is_asked_of_another_node_happens_once(
    tmp_path: Path, rng: random.Random, outcome: Outcome
) -> None:
    await errands.run(tmp_path, rng, outcome, each=8, timed=False)
    assert not outcome.violated, outcome.explain()


async def test_nothing_is_lost_with_a_node_or_with_valkey(
    tmp_path: Path, rng: random.Random, outcome: Outcome
) -> None:
    await losses.kills(tmp_path, rng, outcome, rounds=4, streams=6)
    assert not outcome.violated, outcome.explain()


async def test_a_node_that_is_cut_off_does_no_harm(
    tmp_path: Path, rng: random.Random, outcome: Outcome
) -> None:
    await losses.cuts(tmp_path, rng, outcome, rounds=5, streams=6)
    assert not outcome.violated, outcome.explain()


async def test_nodes_can_be_restarted_one_after_the_other(
    tmp_path: Path, rng: random.Random, outcome: Outcome
) -> None:
    await losses.rolling(tmp_path, rng, outcome, streams=6)
    assert not outcome.violated, outcome.explain()

"""A short run of each scenario of ``make torture``, with the same real server.

Durations are not checked here, since they depend on the machine; ``make torture`` checks them.
"""

import random
import sys
from pathlib import Path

import pytest

from torture import (
    approvals,
    chaos,
    continuations,
    disks,
    filters,
    kills,
    leaks,
    ledger,
    llmock_verdict,
    responses,
    resumes,
    stalls,
)
from torture.outcome import Outcome, table

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit and /proc")


@pytest.fixture
def rng() -> random.Random:
    return random.Random("short")


def check(outcome: Outcome) -> None:
    assert not outcome.violated, outcome.explain()
    assert outcome.rounds


async def test_a_killed_server_has_kept_everything_that_it_showed(tmp_path: Path, rng: random.Random) -> None:
    check(await kills.run(tmp_path, rng, kills=2, streams=10))


async def test_a_stream_goes_on_after_every_event(tmp_path: Path, rng: random.Random) -> None:
    check(await resumes.run(tmp_path, rng, pieces=20, paces=(0.0, 0.02), step=3))


async def test_the_openai_client_resumes_background_responses(tmp_path: Path, rng: random.Random) -> None:
    # `make torture` also runs the client for Node, which needs npm, and kills nodes.
    check(await responses.run(tmp_path, rng, drops=8, kills=2, node_kills=0, node=False))


async def test_interrupted_responses_are_continued(tmp_path: Path, rng: random.Random) -> None:
    check(await continuations.run(tmp_path, rng, cuts=16, kills=3, node_kills=0, streams=6, timed=False))


async def test_the_responses_of_a_killed_server_are_continued(tmp_path: Path, rng: random.Random) -> None:
    # `make torture` also kills nodes, and servers whose provider does not continue a text.
    outcome = Outcome("continue")
    await continuations.kill_server(tmp_path / "server", rng, outcome, "prefill", 1, 10, timed=False)
    check(outcome)


async def test_the_approvals_of_a_killed_server_count_once(tmp_path: Path, rng: random.Random) -> None:
    # `make torture` also kills nodes.
    check(await approvals.run(tmp_path, rng, kills=3, node_kills=0))


async def test_one_that_never_reads_takes_nothing_from_the_others(tmp_path: Path, rng: random.Random) -> None:
    # Enough to fill the connection of the stalled reader.
    check(await stalls.run(tmp_path, rng, events=40_000, readers=3, repeats=1, max_growth=None))


async def test_a_provider_that_does_everything_wrong(tmp_path: Path, rng: random.Random) -> None:
    check(await chaos.run(tmp_path, rng, each=1, timed=False))


async def test_llmock_finds_the_server_resilient(tmp_path: Path, rng: random.Random) -> None:
    check(await llmock_verdict.run(tmp_path, rng, each=1))


@linux
async def test_a_disk_that_is_full_or_locked(tmp_path: Path, rng: random.Random) -> None:
    check(await disks.run(tmp_path, rng, rounds=1, streams=4))


@linux
async def test_many_turns_leave_nothing_behind(tmp_path: Path, rng: random.Random) -> None:
    check(await leaks.run(tmp_path, rng, turns=100, warm_up=60, max_growth=None))


async def test_the_ledger_equals_what_the_provider_counted(tmp_path: Path, rng: random.Random) -> None:
    check(await ledger.run(tmp_path, rng, cuts=4, kills=1, streams=8))


async def test_no_forbidden_text_is_in_the_events_of_a_killed_server(
    tmp_path: Path, rng: random.Random
) -> None:
    # `make torture` sends more messages, and kills servers with all filters.
    check(await filters.run(tmp_path, rng, cases=20, kills=2, kinds=("words", "moderation")))


def test_the_table_has_a_line_for_each_scenario() -> None:
    lines = table([Outcome("kill", 3, figures=["a", "b"]), Outcome("resume", lost=2)]).splitlines()
    assert lines[1].split() == ["kill", "3", "0", "0", "0", "0", "0", "a;", "b"]
    assert lines[2].split() == ["resume", "0", "2", "0", "0", "0", "0"]
    assert Outcome("x", lost=1).violated
    assert not Outcome("x", lost=1, comparison=True).violated
    assert Outcome("x", faults=["y"]).explain() == "y"

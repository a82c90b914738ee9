"""Run every scenario in full, one after the other, and print a table of outcomes; exit status 1 for a violation."""

import argparse
import random
import shutil
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

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
    nodes,
    responses,
    resumes,
    sdk_comparison,
    stalls,
)
from torture.outcome import Outcome, table

Scenario = Callable[[Path, random.Random], Awaitable[Outcome]]

SCENARIOS: dict[str, Scenario] = {
    "kill": kills.run,
    "resume": resumes.run,
    "peer": sdk_comparison.run,
    "stall": stalls.run,
    "chaos": chaos.run,
    "verdict": llmock_verdict.run,
    "disk": disks.run,
    "leak": leaks.run,
    "nodes": nodes.run,
    "responses": responses.run,
    "continue": continuations.run,
    "approvals": approvals.run,
    "ledger": ledger.run,
    "filters": filters.run,
}


async def run_scenario(name: str, folder: Path, seed: int) -> Outcome:
    """Run one scenario in a new folder, which is kept if there is a violation."""
    shutil.rmtree(folder, ignore_errors=True)
    await anyio.Path(folder).mkdir(parents=True)
    begun = time.monotonic()
    try:
        outcome = await SCENARIOS[name](folder, random.Random(f"{seed} {name}"))
    except Exception:
        outcome = Outcome(name, faults=[f"the scenario failed: {traceback.format_exc()}"])
    outcome.seconds = time.monotonic() - begun
    if not outcome.violated:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


async def run_all(names: list[str], folder: Path, seed: int) -> list[Outcome]:
    """Run scenarios one after the other, and print the outcome of each."""
    outcomes: list[Outcome] = []
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        outcome = await run_scenario(name, folder / name, seed)
        if outcome.violated:
            print(f"{outcome.explain()}\nlogs and database: {folder / name}", file=sys.stderr, flush=True)
        print(f"{name}: {outcome.rounds} rounds; {'; '.join(outcome.figures)}", file=sys.stderr, flush=True)
        outcomes.append(outcome)
    return outcomes


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="torture",
        description="Run `tailrace serve` under faults and check that no event is lost.",
    )
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(10**6), help="repeat a run"
    )
    parser.add_argument(
        "--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), help="some scenarios"
    )
    parser.add_argument("--folder", type=Path, default=Path("build/torture"), help="for databases and logs")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    outcomes: list[Outcome] = anyio.run(
        run_all,
        arguments.only,
        arguments.folder.absolute(),
        arguments.seed,
        backend_options={"use_uvloop": True},
    )
    print(table(outcomes))
    broken = [outcome.name for outcome in outcomes if outcome.violated]
    print(f"BROKEN: {', '.join(broken)} (seed {arguments.seed})" if broken else "no event was lost")
    return 1 if broken else 0

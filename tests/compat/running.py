"""Run the matrix: install each program, hold it to every expectation, and write what came of it.

``python -m compat [NAME …]`` runs programs; ``--newer`` lists the newer versions of what they pin; ``--table`` writes the
tables of docs/works-with.md from the results, and ``--check`` compares them.
"""

import argparse
import datetime
import json
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio

from compat.agent_expectations import AGENT_EXPECTATIONS, AgentTrial
from compat.agents import running_agent
from compat.background_runs import finishes_across_restarts
from compat.expectations import EXPECTATIONS, Trial
from compat.programs import HERE, Program, read_programs
from compat.table import check_tables, write_tables
from e2e.clients.agent import serving_agent
from e2e.clients.programs import running_client
from support.rpc import Rpc

RESULTS = HERE / "results.json"

_SECONDS = 120
"""The limit for one expectation."""


async def run_program(program: Program, folder: Path) -> dict[str, str]:
    """Hold a program to every expectation; return ``works``, ``absent`` or the failure of each."""
    cells: dict[str, str] = {}
    running = _agent_trials if program.is_agent else _client_trials
    async with running(program, folder) as trials:
        for name, trial in trials.items():
            if name in program.absent:
                cells[name] = "absent"
                continue
            try:
                await trial()
            except Exception as error:
                cause = _innermost(error)
                if name not in program.fails:
                    traceback.print_exception(cause, chain=False)
                cells[name] = f"{type(cause).__name__}: {cause}".partition("\n")[0]
            else:
                cells[name] = "works"
            print(f"  {name}: {cells[name]}", flush=True)
    return cells


def find_undeclared(program: Program, cells: dict[str, str]) -> dict[str, str]:
    """Return the cells of `run_program` that are not as the program declares."""
    return {
        name: outcome
        for name, outcome in cells.items()
        if (outcome in ("works", "absent")) == (name in program.fails)
    }


def find_uv() -> str:
    """Return the path of uv."""
    return shutil.which("uv") or str(HERE.parents[1] / ".uv/bin/uv")


_Trials = dict[str, Callable[[], Awaitable[None]]]


@asynccontextmanager
async def _client_trials(program: Program, folder: Path) -> AsyncGenerator[_Trials]:
    # The server's defaults, not those of the tests of deltas.
    settings = {"TAILRACE_COALESCE": "read", **program.settings}
    async with serving_agent(folder, extra_options=(), **settings) as agent:

        async def carry_out(name: str) -> None:
            # A process for each: what one leaves running cannot reach the next.
            own = folder / name
            await anyio.Path(own).mkdir()
            async with running_client(program.kind, agent.url, str(own)) as client:
                with anyio.fail_after(_SECONDS):
                    await EXPECTATIONS[name](Trial(agent, client, instructs=program.instructs))

        trials: _Trials = {name: partial(carry_out, name) for name in EXPECTATIONS}
        if program.background:
            trials["background"] = partial(finishes_across_restarts, program, folder / "background")
        yield trials


@asynccontextmanager
async def _agent_trials(program: Program, folder: Path) -> AsyncGenerator[_Trials]:
    async with running_agent(program, folder) as agent:

        async def carry_out(name: str) -> None:
            async with Rpc(agent.url) as rpc:
                with anyio.fail_after(_SECONDS):
                    await AGENT_EXPECTATIONS[name](AgentTrial(agent, rpc))

        yield {name: partial(carry_out, name) for name in AGENT_EXPECTATIONS}


def _innermost(error: Exception) -> Exception:
    """Return the first exception of nested groups."""
    if not isinstance(error, ExceptionGroup):
        return error
    return _innermost(cast("ExceptionGroup[Exception]", error).exceptions[0])


def run(programs: list[Program], uv: str) -> int:
    """Run programs, and write their results.

    Returns:
        How many cells are not as their program declares.
    """
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    unexpected = 0
    for program in programs:
        print(f"{program.name} {program.version}", flush=True)
        started = time.monotonic()
        program.install(uv)
        installed = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            cells = anyio.run(run_program, program, Path(folder))
        undeclared = find_undeclared(program, cells)
        unexpected += len(undeclared)
        for name, outcome in undeclared.items():
            print(f"  not as declared: {name}: {outcome}", flush=True)
        results[program.name] = {
            "version": program.version,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "megabytes": _megabytes(program.environment),
            "install_seconds": round(installed - started),
            "run_seconds": round(time.monotonic() - installed),
            "cells": cells,
        }
        RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    return unexpected


def _megabytes(folder: Path) -> int:
    size = subprocess.run(["du", "-sm", str(folder)], check=True, capture_output=True, text=True).stdout
    return int(size.split()[0])


def main() -> int:
    """Run what the command line names.

    Returns:
        The exit status: 1 when a cell is not as declared, or the tables are not those of the results.
    """
    programs = {program.name: program for program in read_programs()}
    parser = argparse.ArgumentParser(prog="python -m compat", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(programs)}; all without one")
    parser.add_argument("--newer", action="store_true", help="list newer versions instead")
    parser.add_argument("--table", action="store_true", help="write the tables of docs/works-with.md instead")
    parser.add_argument("--check", action="store_true", help="compare those tables with the results instead")
    options = parser.parse_args()
    uv = find_uv()
    if unknown := set(options.names) - set(programs):
        parser.error(f"there is no program {', '.join(sorted(unknown))}: {', '.join(programs)}")
    chosen = [program for name, program in programs.items() if not options.names or name in options.names]
    if options.newer:
        for program in chosen:
            if newer := program.list_newer(uv):
                print(f"{program.name}\n{newer}")
        return 0
    if options.check:
        return check_tables(list(programs.values()), json.loads(RESULTS.read_text()))
    if options.table:
        write_tables(list(programs.values()), json.loads(RESULTS.read_text()))
        return 0
    unexpected = run(chosen, uv)
    print(f"{len(chosen)} programs, {unexpected} cells not as declared", file=sys.stderr)
    return 1 if unexpected else 0

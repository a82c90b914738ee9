"""``python -m benchmarks.gateway``: run the servers, and print a table per scenario and a summary."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from benchmarks.gateway import bounds, runner, tables
from benchmarks.gateway.scenarios import SCENARIOS, named
from benchmarks.gateway.servers import OURS, Server, in_environment
from benchmarks.gateway.servers import named as server_named

_ERRORS = Console(stderr=True)
_WIDTH = 150  # width of a table in a file


def main(
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            "--scenario",
            "-s",
            help="Run only this scenario, or those with this prefix (by default, all); can be repeated.",
        ),
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option("--server", "-c", help="Measure only this server (by default, all); can be repeated."),
    ] = None,
    other: Annotated[
        str,
        typer.Option(
            metavar="PYTHON", help="Interpreter of another environment, whose tailrace is measured, too."
        ),
    ] = "",
    short: Annotated[
        bool,
        typer.Option("--short", help="Run fewer scenarios, servers and repeats, and print only the summary."),
    ] = False,
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1, help="Repeats of each measurement (by default, 1 to 5, depending on the scenario)."
        ),
    ] = None,
    pin: Annotated[
        bool, typer.Option("--pin", help="Give the measured server a processor of its own.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write all figures to this file.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Also compare the figures with the bounds; exit status 1 if one is exceeded."
        ),
    ] = False,
    list_all: Annotated[
        bool, typer.Option("--list", help="List the scenarios and their servers, and exit.")
    ] = False,
) -> None:
    """Measure complete servers (tailrace, others, a byte relay): CPU time, added latency, memory."""
    if list_all:
        for each in SCENARIOS:
            print(f"{each.name:16} {each.title}: {', '.join(each.servers)}")
        return
    try:
        wanted = named(scenario) if scenario else list(SCENARIOS)
        servers: list[Server] | None = [server_named(name) for name in server] if server else None
        cores = runner.pinned_cores() if pin else runner.Cores()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if short and not scenario:
        wanted = [each for each in wanted if each.short]
    if servers is not None and OURS not in servers:
        _ERRORS.print("Ratios require tailrace among the servers.")
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=_ERRORS, transient=True) as progress:
        bar = progress.add_task("")
        try:
            found = runner.run(
                wanted,
                servers,
                other=in_environment(other) if other else None,
                short=short,
                repeats=repeats,
                cores=cores,
                report=lambda what: progress.update(bar, description=what),
            )
        except subprocess.CalledProcessError as error:
            _ERRORS.print(f"Another package could not be installed: {error}", style="red", markup=False)
            raise typer.Exit(1) from None
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    for line in tables.heading(found):
        console.print(line, highlight=False, markup=False)
    if not short:
        for each in wanted:
            console.print(tables.table(each, found))
    console.print(tables.summary(found))
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(
            json.dumps(found.to_dict(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )
    if check:
        verdicts = bounds.judge(found)
        for verdict in verdicts:
            word = "[green]holds [/]" if verdict.holds else "[red]broken[/]"
            console.print(f"{word} {verdict.what}: {verdict.figure:.2f} ({verdict.bound})", highlight=False)
        if not all(verdict.holds for verdict in verdicts):
            raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

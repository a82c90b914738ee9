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
            "--scenario", "-s", help="Only this one, or those whose names begin so; may be repeated."
        ),
    ] = None,
    server: Annotated[
        list[str] | None, typer.Option("--server", "-c", help="Only this one; may be repeated.")
    ] = None,
    other: Annotated[
        str,
        typer.Option(
            metavar="PYTHON", help="The interpreter of another environment: its tailrace takes turns."
        ),
    ] = "",
    short: Annotated[
        bool, typer.Option("--short", help="Fewer scenarios, servers and repeats; one table of ratios.")
    ] = False,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="How often, in place of each scenario's own number.")
    ] = None,
    pin: Annotated[
        bool, typer.Option("--pin", help="The server on one processor, upstream and readers on the others.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write every figure there, too.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Hold the figures against the bounds; exit 1 if one is broken.")
    ] = False,
    list_all: Annotated[bool, typer.Option("--list", help="Say what there is, and end.")] = False,
) -> None:
    """Measure the cost of complete servers: CPU, added latency, memory; ours, others, and a byte relay."""
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
        _ERRORS.print("Without tailrace among the servers there are no ratios.")
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
            _ERRORS.print(f"A peer could not be installed: {error}", style="red", markup=False)
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

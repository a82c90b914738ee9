"""``python -m benchmarks``: measures the contestants, and prints one table."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from benchmarks import agent_rounds, bounds, recorded_streams, runner, startup
from benchmarks.behaviours import BEHAVIOURS, SHORT, Behaviour, named
from benchmarks.runner import CONTESTANTS, OPENAI, OURS, Contestant, Figure, Results

_ERRORS = Console(stderr=True)
_WIDTH = 170  # width of the table in a file


def main(
    behaviour: Annotated[
        list[str] | None,
        typer.Option(
            "--behaviour", "-b", help="Measure only this behaviour (by default, all); can be repeated."
        ),
    ] = None,
    contestant: Annotated[
        list[str] | None,
        typer.Option(
            "--contestant", "-c", help="Compare only with this package (by default, all); can be repeated."
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1, help="Repeats of each measurement (by default, 3 to 15, depending on the package)."
        ),
    ] = None,
    short: Annotated[
        bool,
        typer.Option("--short", help="Measure a few behaviours three times, and compare only with openai."),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write all figures to this file.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Also compare the figures with the project's bounds; exit status 1 if one is exceeded.",
        ),
    ] = False,
) -> None:
    """Measure the CPU time (µs per chunk) with which tailrace and other packages process the same response bodies."""
    if short:
        behaviour, contestant, repeats = (
            behaviour or list(SHORT),
            contestant or [OPENAI.package],
            repeats or 3,
        )
    try:
        behaviours = named(behaviour) if behaviour else list(BEHAVIOURS)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if check:
        names = {item.name for item in behaviours} if behaviour else set[str]()
        behaviours = named(names | bounds.BEHAVIOURS)
        contestant = [*(contestant or ()), runner.OPENAI.package] if contestant else None
    results = _measure(behaviours, _contestants(contestant), repeats)
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print(_table(results, behaviours))
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(
            json.dumps(results.to_dict(), ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
        )
    if check:
        verdicts = [
            *bounds.judge(results),
            *bounds.judge_recorded(recorded_streams.costs(recorded_streams.known_folder())),
            *bounds.judge_rounds(agent_rounds.costs()),
            *bounds.judge_startups(startup.startups()),
        ]
        for verdict in verdicts:
            word = "[green]holds [/]" if verdict.holds else "[red]broken[/]"
            console.print(f"{word} {verdict.what}: {verdict.figure:.2f} ({verdict.bound})", highlight=False)
        if not all(verdict.holds for verdict in verdicts):
            raise typer.Exit(1)


def _contestants(packages: list[str] | None) -> list[Contestant]:
    known = {item.package for item in CONTESTANTS}
    unknown = set(packages or ()) - known
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: there are {', '.join(sorted(known))}")
    return [item for item in CONTESTANTS if not packages or item is OURS or item.package in packages]


def _measure(behaviours: list[Behaviour], contestants: list[Contestant], repeats: int | None) -> Results:
    results = Results()
    tasks = runner.tasks(behaviours, contestants)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, console=_ERRORS, transient=True) as progress:
        bar = progress.add_task("installing the other packages", total=len(tasks))
        runner.prepare({contestant for contestant, _ in tasks})
        for contestant, wanted in tasks:
            names = ", ".join(item.name for item in wanted)
            progress.update(bar, description=f"{contestant.package}: {names}")
            try:
                runner.run(contestant, wanted, results, repeats)
            except subprocess.CalledProcessError as error:
                _ERRORS.print(
                    error.stderr, f"{contestant.package} failed at {names}", style="red", markup=False
                )
                sys.exit(1)
            progress.advance(bar)
    return results


def _table(results: Results, behaviours: list[Behaviour]) -> Table:
    machine = runner.machine()
    title = f"µs of CPU time per chunk, and its ratio to tailrace's · {machine['python']} · {machine['processor']}"
    table = Table(title=title, title_justify="left")
    table.add_column("behaviour", no_wrap=True)
    shown = [contestant for contestant in CONTESTANTS if contestant.package in results.versions]
    for contestant in shown:
        table.add_column(f"{contestant.package}\n{results.versions[contestant.package]}", justify="right")
    previous = ""
    for behaviour in behaviours:
        section = behaviour.group if behaviour.group == "parts" else behaviour.stage
        if previous and previous != section:
            table.add_section()
        previous = section
        cells = (_cell(results.of(behaviour.name, contestant.package), results) for contestant in shown)
        table.add_row(behaviour.title, *cells)
    return table


def _cell(figure: Figure | None, results: Results) -> str:
    if figure is None:
        return ""
    if figure.failure:
        return f"[red]fails: {figure.failure.partition(':')[0]}[/]"
    if figure.contestant == OURS.package:
        return f"{figure.median:.2f} ({min(figure.repeats):.2f} … {max(figure.repeats):.2f})"
    ratio = results.ratio(figure)
    return _short(figure.median) if ratio is None else f"{_short(figure.median)}  {_short(ratio)}x"


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}"


if __name__ == "__main__":
    typer.run(main)

"""``python -m benchmarks``: run the contestants and print one table."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from benchmarks import bounds, runner
from benchmarks.behaviours import BEHAVIOURS, Behaviour, named
from benchmarks.runner import Results


def main(
    behaviour: Annotated[
        list[str] | None, typer.Option("--behaviour", "-b", help="Only this one; may be repeated.")
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(min=1, help="How often each is measured, in place of each contestant's own number."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write every figure there, too.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Hold the figures against the project's bounds; exit 1 if one is broken."
        ),
    ] = False,
) -> None:
    """CPU time a chunk, of tailrace and of others on the same bytes."""
    try:
        behaviours = named(behaviour) if behaviour else list(BEHAVIOURS)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if check:
        names = {item.name for item in behaviours} if behaviour else set[str]()
        behaviours = named(names | bounds.BEHAVIOURS)
    results = _measure(behaviours, repeats)
    console = Console()
    console.print(_table(results, behaviours))
    if json_file is not None:
        json_file.write_text(
            json.dumps(results.to_dict(), ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
        )
    if check:
        verdicts = bounds.judge(results)
        for verdict in verdicts:
            word = "[green]holds [/]" if verdict.holds else "[red]broken[/]"
            console.print(f"{word} {verdict.what}: {verdict.figure:.2f} ({verdict.bound})", highlight=False)
        if not all(verdict.holds for verdict in verdicts):
            raise typer.Exit(1)


def _measure(behaviours: list[Behaviour], repeats: int | None) -> Results:
    results = Results()
    tasks = runner.tasks(behaviours)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=len(tasks))
        for contestant, wanted in tasks:
            names = ", ".join(item.name for item in wanted)
            progress.update(bar, description=f"{contestant.package}: {names}")
            try:
                results.figures += runner.run(contestant, wanted, repeats)
            except subprocess.CalledProcessError:
                Console(stderr=True).print(f"{contestant.package} failed at {names}", style="red")
                sys.exit(1)
            progress.advance(bar)
    return results


def _table(results: Results, behaviours: list[Behaviour]) -> Table:
    versions = runner.machine()
    title = f"µs of CPU time a chunk · {versions['python']} · {versions['processor']}"
    table = Table(title=title, title_justify="left")
    table.add_column("behaviour")
    table.add_column("contestant")
    for name in ("median", "min", "max", "ratio"):
        table.add_column(name, justify="right")
    for behaviour in behaviours:
        label = behaviour.title
        for contestant in runner.CONTESTANTS:
            figure = results.of(behaviour.name, contestant.package)
            if figure is None:
                continue
            ratio = results.ratio(figure)
            table.add_row(
                label,
                f"{contestant.package} {versions['versions'][contestant.package]}",
                f"{figure.median:.2f}",
                f"{min(figure.repeats):.2f}",
                f"{max(figure.repeats):.2f}",
                "" if ratio is None or contestant is runner.OURS else f"{ratio:.1f}",
            )
            label = ""
        table.add_section()
    return table


if __name__ == "__main__":
    typer.run(main)

"""``python -m benchmarks.calls``: count the function calls of a token, and of the beginning of a turn, on a running server."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.calls import bounds, path
from benchmarks.calls.measure import measure


def main(
    python: Annotated[
        str, typer.Option(help="Interpreter of the environment whose tailrace is measured.")
    ] = sys.executable,
    tokens: Annotated[int, typer.Option(min=100, help="Tokens that are counted in each mode.")] = 2500,
    functions: Annotated[
        bool, typer.Option("--functions", help="Also list every function with its calls per token.")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Write the call path into docs/architecture.md.")
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
) -> None:
    """Count the Python and C function calls per token of a server with 50 streams, SQLite and JSON-RPC."""
    found = measure(tokens=tokens, python=python)
    print("\n".join(path.summary(found)))
    print()
    print("\n".join(path.listing(found.alone)))
    if functions:
        print()
        for function in found.grouped.functions:
            print(f"{function.calls:9.3f}  {function.name:60} {function.file}".rstrip())
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
    if write:
        page = path.PAGE.read_text(encoding="utf-8")
        path.PAGE.write_text(path.insert(page, path.section(found)), encoding="utf-8")
    if check:
        verdicts = bounds.judge(found)
        for verdict in verdicts:
            word = "[green]holds [/]" if verdict.holds else "[red]broken[/]"
            Console().print(f"{word} {verdict.what}: {verdict.figure:.2f} ({verdict.bound})", highlight=False)
        if not all(verdict.holds for verdict in verdicts):
            raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

"""``python -m benchmarks.gateway.page FIGURES.json``: write the table of a run into docs/performance.md."""

import json
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.gateway.runner import Findings
from benchmarks.gateway.tables import markdown

PAGE = Path(__file__).parents[2] / "docs/performance.md"
_BEGIN, _END = (
    "<!-- figures: python -m benchmarks.gateway.page FIGURES.json -->\n",
    "<!-- end of figures -->\n",
)


def put(text: str, table: str) -> str:
    """Return the page with its table replaced.

    Raises:
        ValueError: The page has no markers for the table.
    """
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError("the page has no place for figures")
    return f"{before}{begin}\n{table}\n{end}{after}"


def main(figures: Annotated[Path, typer.Argument(help="What `--json` wrote.")]) -> None:
    """Rewrite the page."""
    found = Findings.from_dict(json.loads(figures.read_text(encoding="utf-8")))
    PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), markdown(found)), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)

"""``python -m benchmarks.gateway.page FIGURES.json``: write the table of a run into docs/performance.md."""

import json
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.gateway.runner import Findings
from benchmarks.gateway.tables import markdown
from benchmarks.generated_sections import replace_section

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
    return replace_section(text, _BEGIN, _END, table)


def main(
    figures: Annotated[
        Path, typer.Argument(help="The file that `python -m benchmarks.gateway --json` wrote.")
    ],
) -> None:
    """Write the summary of a run into docs/performance.md."""
    found = Findings.from_dict(json.loads(figures.read_text(encoding="utf-8")))
    PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), markdown(found)), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)

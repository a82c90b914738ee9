"""The tables of docs/works-with.md, made of the results of the matrix."""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from compat.agent_expectations import AGENT_EXPECTATIONS
from compat.expectations import EXPECTATIONS
from compat.programs import HERE, Program

PAGE = HERE.parents[1] / "docs/works-with.md"

_BEGIN, _END = "<!-- compat: begin -->", "<!-- compat: end -->"

_QUOTED = (
    "react_a2a/artifact_client.mjs",
    "deep_chat_a2a/handler.mjs",
    "openai_agents/background_responses.py",
)
"""Code that the page shows and the matrix runs."""

Results = Mapping[str, Mapping[str, Any]]


def render_tables(programs: Sequence[Program], results: Results) -> str:
    """Return the tables, one for each section, and the notes of their cells."""
    tested = sorted(
        (program for program in programs if program.name in results), key=lambda each: each.section
    )
    notes: list[str] = []
    blocks: list[str] = []
    for section, members in groupby(tested, key=lambda program: program.section):
        rows = list(members)
        expectations = AGENT_EXPECTATIONS if rows[0].is_agent else EXPECTATIONS
        heads = ["program", "version", "date", *expectations, "configuration"]
        lines = [f"### {section}", "", _row(heads), _row(["---"] * len(heads))]
        for program in rows:
            result = results[program.name]
            cells = [_cell(program, name, result["cells"][name], notes) for name in expectations]
            first = [program.title, result["version"], result["date"]]
            lines.append(_row([*first, *cells, program.configuration]))
        blocks.append("\n".join(lines))
    numbered = "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1))
    return "\n\n".join([*blocks, numbered])


def write_tables(programs: Sequence[Program], results: Results) -> None:
    """Replace the tables of the page."""
    PAGE.write_text(_with_tables(PAGE.read_text(), render_tables(programs, results)))


def check_tables(programs: Sequence[Program], results: Results) -> int:
    """Return 0 if the page has the tables of the results and the tested code; print what to do and return 1 otherwise."""
    page = PAGE.read_text()
    if page != _with_tables(page, render_tables(programs, results)):
        print(
            "The tables of docs/works-with.md are not those of the results: run `make compat ARGS=--table`."
        )
        return 1
    if missing := [path for path in _QUOTED if (HERE / path).read_text() not in page]:
        print(f"docs/works-with.md does not quote {', '.join(missing)} as it is in tests/compat.")
        return 1
    return 0


def _with_tables(page: str, tables: str) -> str:
    pattern = re.compile(f"(?<={re.escape(_BEGIN)}\n).*(?={re.escape(_END)})", re.DOTALL)
    return pattern.sub(lambda _: f"\n{tables}\n\n", page)


def _cell(program: Program, name: str, outcome: str, notes: list[str]) -> str:
    if outcome == "works":
        return "✔"
    mark = "n/a" if outcome == "absent" else "✘"
    reason = program.absent.get(name) or program.fails.get(name) or outcome
    note = f"{program.title}: {reason}"
    if note not in notes:
        notes.append(note)
    return f"{mark} ({notes.index(note) + 1})"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

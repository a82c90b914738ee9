"""The path of a token as text: the functions in call order, for docs/architecture.md."""

from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

from benchmarks.calls.measure import Call, Measurement, Window
from benchmarks.generated_sections import replace_section

PAGE = Path(__file__).parents[2] / "docs/architecture.md"
_BEGIN = "<!-- calls: python -m benchmarks.calls --write -->\n"
_END = "<!-- end of calls -->\n"
_PACKAGE_PREFIX = "tailrace/"
_WIDTH = 130


def summary(found: Measurement) -> Iterator[str]:
    """Return the figures, a line per window."""
    titles = {
        "tokens by the clock (merged as the load has it)": found.paced,
        "groups of tokens, one of each stream": found.grouped,
        "one token at a time": found.alone,
    }
    yield f"{'a token':50}{'Python calls':>14}{'C calls':>10}{'callbacks':>12}"
    for title, window in titles.items():
        yield f"{title:50}{window.python_calls:14.1f}{window.c_calls:10.1f}{window.callbacks:12.2f}"
    python, c = found.alone.path_calls
    yield f"on the path of a token: {python} Python calls, {c} C calls"
    yield f"files on the path: {len(found.alone.files)}, of tailrace {len(_own_files(found.alone))}"
    yield f"a turn until its first text: {found.turn.python_calls:.0f} Python calls, {found.turn.c_calls:.0f} C calls"


def listing(window: Window) -> Iterator[str]:
    """Return the functions of the path in order, indented by depth."""
    number = 0
    for index, callback in enumerate(window.path, 1):
        yield f"callback {index} of the event loop"
        for call, c_functions in _with_c_functions(callback):
            number += 1
            name = f"{'  ' * call.depth}{call.name}"
            yield f"{number:4} {name:60} {call.file}".rstrip()
            if c_functions:
                yield f"     {'  ' * (call.depth + 1)}[{', '.join(c_functions)}]"


def section(found: Measurement) -> str:
    """Return the section of the page: a sentence with the figures, and the path."""
    exact = found.alone
    python, c = exact.path_calls
    figures = (
        f"With {found.grouped.streams} streams, of which {found.grouped.group} have a token at the same time, a token takes "
        f"{found.grouped.python_calls:.1f} Python calls and {found.grouped.c_calls:.1f} C calls. A token that is alone takes "
        f"{python} Python calls and {c} C calls in {len(exact.path)} callbacks of the event loop, in "
        f"{len(exact.files)} files, {len(_own_files(exact))} of them tailrace's. C functions are in brackets below the function "
        f"that calls them. A turn takes {round(found.turn.python_calls, -1):.0f} Python calls and "
        f"{round(found.turn.c_calls, -1):.0f} C calls until its first text."
    )
    return "\n".join((*wrap(figures, _WIDTH), "", "```text", *listing(exact), "```", ""))


def insert(page: str, text: str) -> str:
    """Return the page with the text between its markers.

    Raises:
        ValueError: The page has no markers.
    """
    return replace_section(page, _BEGIN, _END, text)


def _own_files(window: Window) -> list[str]:
    return [file for file in window.files if file.startswith(_PACKAGE_PREFIX)]


def _with_c_functions(callback: tuple[Call, ...]) -> list[tuple[Call, list[str]]]:
    """Return the Python functions of a callback, each with the C functions that it calls directly."""
    found: list[tuple[Call, list[str]]] = []
    callers: list[list[str]] = []  # the C functions that the running functions called, by depth
    for call in callback:
        if call.is_python:
            own: list[str] = []
            found.append((call, own))
            callers[call.depth :] = [own]
        else:
            callers[call.depth - 1].append(call.name)
    return found

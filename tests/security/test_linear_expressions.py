"""Every regular expression of the product takes linear time, whatever text it searches.

The texts repeat pieces of the expression itself (its literals and characters of its sets), since a backtracking search is slow
for texts that almost match. Quadratic expressions take 16 times as long for four times the text, linear ones four times.
"""

import importlib
import itertools
import pkgutil
import re
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

import tailrace

SIZES = 2_000, 8_000
"""Characters of the texts that are compared."""

MOST = 0.004
"""Seconds of CPU for a longer text that need no comparison: a search of linear time takes less."""

_GROWTH = 8
"""The growth from one size to the other, between that of linear and of quadratic time."""

_SAMPLES = (
    "a",
    "A",
    "0",
    " ",
    "\n",
    "-",
    "_",
    ".",
    "/",
    ":",
    "=",
    "\\",
    '"',
    "'",
    "[",
    "]",
    "{",
    "}",
    "(",
    "@",
    "é",
    "\u200b",
)
_LITERAL = re.compile(r"[\w/:@=-]{2,}")


def expressions() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Yield the compiled expressions of all modules, and of their classes, with names."""
    for module in pkgutil.walk_packages(tailrace.__path__, "tailrace."):
        if module.name.split(".")[-1] == "__main__" or ".migrations." in module.name:
            continue
        loaded = importlib.import_module(module.name)
        for name, value in vars(loaded).items():
            inner = vars(value).items() if isinstance(value, type) else ()
            for path, each in ((name, value), *((f"{name}.{member}", each) for member, each in inner)):
                if isinstance(each, re.Pattern):
                    yield f"{module.name}:{path}", cast("re.Pattern[Any]", each)


EXPRESSIONS = dict(sorted(expressions()))

AT_ONE_POSITION = (
    "tailrace.server.remote.agent_card:_RESERVED",
    "tailrace.server.runtime.caller_message_checks:_SCHEME",
    "tailrace.streaming.tools.command_line_tools:_MODULE",
    "tailrace.streaming.tools.command_line_tools:_VARIABLE",
    "tailrace.wrappers.decoding.json_framing:_STRING_END",
    "tailrace.wrappers.decoding.json_framing:_TOKEN",  # a search that begins in no string
)
"""Expressions that are only matched at one position, where a search for all matches would take quadratic time."""


def texts(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield beginnings, and pieces that are repeated after them."""
    literals = [literal for literal in _LITERAL.findall(pattern) if not literal.isdigit()][:12]
    pieces = dict.fromkeys(
        [*_SAMPLES, *literals, *(a + b for a, b in itertools.product(_SAMPLES, repeat=2) if a != b)]
    )
    for beginning in ("", *literals[:2], "://", '"'):
        for piece in (*pieces, *(f"{a}{b}" for a in literals for b in (" ", "-", ":", "."))):
            yield beginning, piece


def seconds(expression: re.Pattern[Any], text: str | bytes, *, searches: bool) -> float:
    """Return the CPU time of a search for all matches, or of one match, the shortest of three."""
    times: list[float] = []
    for _ in range(3):
        before = time.thread_time()
        if searches:
            for _ in expression.finditer(text):
                pass
        else:
            expression.match(text)
            expression.fullmatch(text)
        times.append(time.thread_time() - before)
        if times[-1] < MOST:
            break
    return min(times)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_takes_linear_time(name: str) -> None:
    expression, searches = EXPRESSIONS[name], name not in AT_ONE_POSITION
    source = expression.pattern
    is_bytes = isinstance(source, bytes)
    for beginning, piece in texts(source.decode("latin-1") if is_bytes else source):
        short, long = ((beginning + piece * (size // len(piece))) for size in SIZES)
        if (last := seconds(expression, long.encode() if is_bytes else long, searches=searches)) < MOST:
            continue
        first = seconds(expression, short.encode() if is_bytes else short, searches=searches)
        assert last < first * _GROWTH, f"{beginning!r}, then {piece!r}: {first:.4f} s, {last:.4f} s"


def test_expressions_of_quadratic_time_are_found() -> None:
    quadratic = re.compile(r"a+:b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EXPRESSIONS, "quadratic", quadratic)
        with pytest.raises(AssertionError, match="then 'a'"):
            test_an_expression_takes_linear_time("quadratic")
    assert len(EXPRESSIONS) > 40
    assert set(AT_ONE_POSITION) <= EXPRESSIONS.keys()

"""Bounds on the function calls of a token, and of the beginning of a turn."""

from benchmarks.bounds import Verdict
from benchmarks.calls.measure import Measurement

MAX_PYTHON_CALLS = 30.0
"""Python calls per token, if the server receives tokens in groups."""
MAX_C_CALLS = 46.5
"""C calls per token, if the server receives tokens in groups."""
MAX_PATH_CALLS = 45
"""Python calls on the path of a single token, including its commit."""
MAX_FILES = 17
"""Files of tailrace and its libraries whose functions are on the path of a single token."""
MAX_TURN_PYTHON_CALLS = 1_500
"""Python calls of a turn until its first text; 1,612 in version 0.1."""
MAX_TURN_C_CALLS = 1_107
"""C calls of a turn until its first text, as in version 0.1."""


def judge(found: Measurement) -> list[Verdict]:
    """Compare the figures that do not depend on the load with their bounds."""
    figures = (
        ("Python calls a token, in groups", found.grouped.python_calls, MAX_PYTHON_CALLS),
        ("C calls a token, in groups", found.grouped.c_calls, MAX_C_CALLS),
        ("Python calls on the path of a token", found.alone.path_calls[0], MAX_PATH_CALLS),
        ("files on the path of a token", len(found.alone.files), MAX_FILES),
        ("Python calls of a turn until its first text", found.turn.python_calls, MAX_TURN_PYTHON_CALLS),
        ("C calls of a turn until its first text", found.turn.c_calls, MAX_TURN_C_CALLS),
    )
    return [Verdict(what, figure, f"≤ {bound:g}", figure <= bound) for what, figure, bound in figures]

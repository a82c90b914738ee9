"""Bounds on a token's function calls."""

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


def judge(found: Measurement) -> list[Verdict]:
    """Compare the figures that do not depend on the load with their bounds."""
    figures = (
        ("Python calls a token, in groups", found.grouped.python_calls, MAX_PYTHON_CALLS),
        ("C calls a token, in groups", found.grouped.c_calls, MAX_C_CALLS),
        ("Python calls on the path of a token", found.alone.path_calls[0], MAX_PATH_CALLS),
        ("files on the path of a token", len(found.alone.files), MAX_FILES),
    )
    return [Verdict(what, figure, f"≤ {bound:g}", figure <= bound) for what, figure, bound in figures]

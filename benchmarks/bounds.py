"""What the figures must show: the bounds that this project sets itself for the cost of a chunk."""

from dataclasses import dataclass

from benchmarks.runner import OPENAI, Results

MAX_MICROSECONDS = 3.0
"""Of CPU time for one chunk of about 300 bytes, one chunk a read: decode, wrap, accumulate, encode."""
MIN_RATIO = 40.0
"""The openai package's cost for the same bytes, its stream and its accumulator, over ours."""
MAX_GROWTH = 1.2
"""A chunk of an answer of 16,000 over one of an answer of 100."""

_LENGTHS = ("text-100", "text-1000", "text-4000", "text-16000")
BEHAVIOURS = frozenset(_LENGTHS)
"""What has to be measured for `judge`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bound, and whether it holds."""

    what: str
    figure: float
    bound: str
    holds: bool


def judge(results: Results) -> list[Verdict]:
    """Hold medians against the bounds. Only for results that hold `BEHAVIOURS`."""
    verdicts: list[Verdict] = []
    for name in _LENGTHS:
        ours, theirs = results.of(name), results.of(name, OPENAI.package)
        if ours is None or theirs is None:
            raise ValueError(f"{name} was not measured")
        cost, ratio = ours.median, theirs.median / ours.median
        verdicts += [
            Verdict(f"{name}: µs a chunk", cost, f"≤ {MAX_MICROSECONDS:g}", cost <= MAX_MICROSECONDS),
            Verdict(f"{name}: openai / tailrace", ratio, f"≥ {MIN_RATIO:g}", ratio >= MIN_RATIO),
        ]
    short, long = results.of("text-100"), results.of("text-16000")
    if short is not None and long is not None:
        growth = long.median / short.median
        verdicts.append(
            Verdict("a chunk at 16,000 / at 100", growth, f"≤ {MAX_GROWTH:g}", growth <= MAX_GROWTH)
        )
    return verdicts

"""Bounds on the cost of a chunk, of a round of an agent, and of a startup.

The bounds for responses of different lengths (``text-100`` and so on) apply to medians. All other bounds apply to the lowest
figure of all repeats, because other load only increases a figure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.agent_rounds import MAX_MILLISECONDS, Costs
from benchmarks.behaviours import BEHAVIOURS as ALL
from benchmarks.behaviours import Stage
from benchmarks.inputs import Shape
from benchmarks.recorded_streams import MAX_MICROSECONDS as MAX_OTHER_MICROSECONDS
from benchmarks.recorded_streams import Cost
from benchmarks.runner import OPENAI, Results
from benchmarks.startup import MAX_SECONDS, Startup

MAX_TEXT_MICROSECONDS = 1.5
"""CPU time of a chunk of OpenAI's text: decode, wrap, accumulate."""
MAX_MICROSECONDS = 3.0
"""CPU time of one chunk of about 300 bytes, one chunk per read: decode, wrap, accumulate, encode."""
MIN_RATIO = 40.0
"""Minimum ratio of the openai package's cost for the same bytes to tailrace's cost."""
MAX_GROWTH = 1.2
"""Maximum ratio of the cost of a chunk in a response of 16,000 chunks to the cost in a response of 100 chunks."""

_LENGTHS = ("text-100", "text-1000", "text-4000", "text-16000")
_CHUNKS = tuple(item for item in ALL if item.stage is Stage.CHUNK)
BEHAVIOURS = frozenset(_LENGTHS) | {item.name for item in _CHUNKS}
"""Behaviours required by `judge`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of a figure with its bound."""

    what: str
    figure: float
    bound: str
    holds: bool


def judge(results: Results) -> list[Verdict]:
    """Compare the figures with the bounds.

    Raises:
        ValueError: One of `BEHAVIOURS` was not measured.
    """
    return [*_chunks(results), *_lengths(results)]


def judge_recorded(costs: Iterable[Cost]) -> list[Verdict]:
    return [
        Verdict(
            f"recorded {cost.vocabulary}: µs of the median chunk",
            cost.median,
            f"≤ {MAX_OTHER_MICROSECONDS:g}",
            cost.median <= MAX_OTHER_MICROSECONDS,
        )
        for cost in costs
    ]


def judge_rounds(costs: Costs) -> list[Verdict]:
    return [
        Verdict(
            f"agent-round{where}: ms a round", figure, f"≤ {MAX_MILLISECONDS:g}", figure <= MAX_MILLISECONDS
        )
        for where, figure in (("", costs.round), (" behind 400 messages", costs.long_round))
    ]


def judge_startups(startups: Iterable[Startup]) -> list[Verdict]:
    return [
        Verdict(f"tailrace {item.option}: s", item.seconds, f"≤ {MAX_SECONDS:g}", item.seconds <= MAX_SECONDS)
        for item in startups
    ]


def _chunks(results: Results) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for behaviour in _CHUNKS:
        ours = results.of(behaviour.name)
        if ours is None:
            raise ValueError(f"{behaviour.name} was not measured")
        best = min(ours.repeats, default=float("inf"))
        bound = MAX_TEXT_MICROSECONDS if behaviour.shape is Shape.TEXT else MAX_OTHER_MICROSECONDS
        what = f"{behaviour.name}: µs a chunk, best"
        verdicts.append(Verdict(what, best, f"≤ {bound:g}", best <= bound))
    return verdicts


def _lengths(results: Results) -> list[Verdict]:
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

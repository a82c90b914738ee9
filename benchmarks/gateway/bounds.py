"""Bounds on the figures of the complete server.

The bounds apply to tailrace with one worker and an SQLite store, over JSON-RPC. By default, a response has one subscriber.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.bounds import Verdict
from benchmarks.gateway.runner import Finding, Findings


@dataclass(frozen=True, slots=True)
class _Bound:
    """A limit on a figure of tailrace, or on its ratio to the figure of another server."""

    what: str
    scenario: str
    figure: str
    limit: float
    other: str = ""
    """The server of the ratio; empty for an absolute figure."""
    theirs_over_ours: bool = False
    minus: bool = False
    """Compare the difference instead of the ratio."""
    other_scenario: str = ""
    least: bool = False


def _memory(scenario: str) -> tuple[_Bound, ...]:
    return (
        _Bound(f"{scenario}: KB a live stream", scenario, "live_rss_kb", 60),
        _Bound(f"{scenario}: KB an idle reader", scenario, "reader_rss_kb", 30),
        _Bound(f"{scenario}: MB at start", scenario, "start_rss_mb", 85),
    )


BOUNDS = (
    _Bound("burst, 4,000 tokens: µs of CPU a chunk", "burst-4000", "cpu_us", 8),
    _Bound(
        "… a2a-sdk in memory, times ours",
        "burst-4000",
        "cpu_us",
        75,
        "a2a-sdk",
        theirs_over_ours=True,
        least=True,
    ),
    _Bound(
        "… a2a-sdk on SQLite, times ours",
        "burst-4000",
        "cpu_us",
        400,
        "a2a-sdk-sqlite",
        theirs_over_ours=True,
        least=True,
    ),
    _Bound(
        "burst: a token at 16,000 / at 500",
        "burst-16000",
        "cpu_us",
        1.15,
        "tailrace",
        other_scenario="burst-500",
    ),
    _Bound("paced, 200 streams: CPU a chunk, times the relay's", "paced-200", "cpu_us", 3, "relay"),
    _Bound("… added latency p50, ms", "paced-200", "latency_p50_ms", 2),
    _Bound("… added latency p99, ms", "paced-200", "latency_p99_ms", 10),
    _Bound("… added time to first token p50, ms", "paced-200", "first_p50_ms", 2, "direct", minus=True),
    _Bound("… added time to first token p99, ms", "paced-200", "first_p99_ms", 8, "direct", minus=True),
    _Bound("paced, 1,000 streams: streams not whole", "paced-1000", "lost", 0),
    _Bound("fan-out to 100: µs of CPU a delivery", "fan-out-100", "cpu_us", 3),
    _Bound("CancelTask beside 20 streams at once: p99, ms", "cancel-20", "cancel_p99_ms", 100),
    *_memory("memory"),
    *_memory("memory-200"),
    _Bound(
        "short turns a second, times a2a-sdk's in memory", "turns-16", "turns_s", 5, "a2a-sdk", least=True
    ),
)


def judge(found: Findings) -> list[Verdict]:
    """Compare the findings with the bounds of their scenarios.

    All measured streams of tailrace must also be complete.
    """
    return [*_judged(found), *_wholes(found)]


def _judged(found: Findings) -> Iterator[Verdict]:
    for bound in BOUNDS:
        ours = found.of(bound.scenario)
        if ours is None:
            continue
        figure = _value(ours, bound.figure)
        if bound.other:
            other = found.of(bound.other_scenario or bound.scenario, bound.other)
            if other is None:
                continue
            theirs = _value(other, bound.figure)
            how: Callable[[float, float], float] = (
                (lambda mine, other: mine - other)
                if bound.minus
                else (lambda mine, other: other / mine)
                if bound.theirs_over_ours
                else (lambda mine, other: mine / other)
            )
            figure = how(figure, theirs)
        holds = figure >= bound.limit if bound.least else figure <= bound.limit
        yield Verdict(bound.what, figure, f"{'≥' if bound.least else '≤'} {bound.limit:g}", holds)


def _value(finding: Finding, figure: str) -> float:
    return float(finding.lost) if figure == "lost" else finding.median(figure)


def _wholes(found: Findings) -> Iterator[Verdict]:
    for finding in found.all:
        if finding.server.startswith("tailrace") and finding.repeats:
            what = f"{finding.scenario}, {finding.server}: streams not whole"
            yield Verdict(what, finding.lost, "≤ 0", finding.lost == 0)
        elif finding.server.startswith("tailrace"):
            yield Verdict(f"{finding.scenario}, {finding.server}: {finding.failure}", 1, "≤ 0", False)

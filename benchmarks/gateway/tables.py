"""Tables and summaries of the figures."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.table import Table

from benchmarks.gateway.runner import Finding, Findings
from benchmarks.gateway.scenarios import SCENARIOS, Scenario
from benchmarks.gateway.servers import OURS, SERVERS, named

_TITLES = {
    "cpu_us": "CPU µs",
    "wall_us": "wall µs a chunk",
    "chunks_per_event": "chunks an event",
    "cancel_p99_ms": "cancel ms p99",
    "latency_p50_ms": "added ms p50",
    "latency_p99_ms": "p99",
    "first_p50_ms": "first text ms p50",
    "first_p99_ms": "p99",
    "turn_p50_ms": "turn ms p50",
    "turn_p99_ms": "p99",
    "event_us": "µs an event",
    "client_us": "µs a client",
    "client_p50_ms": "client ms p50",
    "client_p99_ms": "p99",
    "reader_rss_kb": "KB a reader",
    "start_rss_mb": "MB at start",
    "start_pss_mb": "of these its own share",
    "text_bytes": "bytes of text",
}
_SUMMED = {
    "cancel_p99_ms": "ms to cancel, p99",
    "latency_p50_ms": "ms added, p50",
    "latency_p99_ms": "ms added, p99",
    "first_p50_ms": "ms to first text, p50",
    "first_p99_ms": "ms to first text, p99",
    "reader_rss_kb": "KB an idle reader",
    "start_rss_mb": "MB at start",
}
"""Further figures in the summary, and their formats."""
_QUIET = 0.25
"""Load per processor above which a machine is not idle."""
_BUSY = 0.8
"""CPU utilisation above which a reader may be the bottleneck."""


def heading(found: Findings) -> Iterator[str]:
    """Return the conditions of the measurement."""
    facts = found.machine
    yield f"{facts['processor']} · {facts['cpus']} processors{', pinned' if found.pinned else ''} · {facts['python']}"
    if found.load > _QUIET * facts["cpus"]:
        yield f"The machine was busy (load {found.load:.0f}), which affects latencies and turns per second."
    yield " · ".join(f"{package} {version}" for package, version in sorted(found.versions.items()))
    for name, settings in found.settings.items():
        shown = (f"{key}={value}" for key, value in settings.items() if not key.endswith("API_KEY"))
        yield f"{name}: {' '.join(shown)}"


def table(scenario: Scenario, found: Findings) -> Table:
    result = Table(title=f"{scenario.name}: {scenario.title}", title_justify="left")
    result.add_column("server", no_wrap=True)
    result.add_column(scenario.unit, justify="right", no_wrap=True)
    result.add_column("ours = 1", justify="right")
    for figure in scenario.also:
        result.add_column(_TITLES[figure], justify="right")
    result.add_column("")
    ours = found.of(scenario.name)
    for finding in found.all:
        if finding.scenario != scenario.name:
            continue
        title = named(finding.server).title
        if not finding.repeats:
            result.add_row(title, "fails", "", *("" for _ in scenario.also), finding.failure.splitlines()[-1])
            continue
        least, greatest = finding.spread(scenario.metric)
        middle = finding.median(scenario.metric)
        ratio = "" if ours is None else f"{short(middle / ours.median(scenario.metric))}x"
        spread = f"{short(middle)} ({short(least)} … {short(greatest)})"
        also = (short(finding.median(figure)) for figure in scenario.also)
        result.add_row(title, spread, ratio, *also, _remarks(finding))
    return result


@dataclass(frozen=True, slots=True)
class Summary:
    """All scenarios in one table.

    Attributes:
        heads: The column headings.
        rows: The cells.
    """

    heads: list[str]
    rows: list[list[str]]


def summarise(found: Findings) -> Summary:
    """Summarise each scenario: the figure of tailrace, and the ratio of every other server's figure to it."""
    measured = {finding.server for finding in found.all if finding.server != OURS.name}
    others = [server for server in SERVERS if server.name in measured]
    rows: list[list[str]] = []
    for scenario in SCENARIOS:
        if not any(finding.scenario == scenario.name for finding in found.all):
            continue
        ours = found.of(scenario.name)
        for figure in (scenario.metric, *(name for name in scenario.also if name in _SUMMED)):
            value = short(ours.median(figure)) + _whole(ours) if ours is not None else "without a figure,"
            unit = scenario.unit if figure == scenario.metric else _SUMMED[figure]
            title = scenario.title if figure == scenario.metric else ""
            cells = (_beside(found.of(scenario.name, server.name), ours, figure) for server in others)
            rows.append([title, f"{value} {unit}", *cells])
    return Summary(["", OURS.title, *(server.title for server in others)], rows)


def summary(found: Findings) -> Table:
    """Format the summary for a terminal."""
    made = summarise(found)
    result = Table(title="tailrace, and the ratios of the other servers to it", title_justify="left")
    for number, head in enumerate(made.heads):
        result.add_column(head, justify="right" if number else "left", no_wrap=number == 1)
    for row in made.rows:
        result.add_row(*row)
    return result


def markdown(found: Findings) -> str:
    """Format the summary for a page, with its conditions."""
    made = summarise(found)
    lines = [made.heads, ["---", *("---:" for _ in made.heads[1:])], *made.rows]
    facts = "  \n".join(line for line in heading(found) if not line.startswith("tailrace"))
    return facts + "\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _beside(theirs: Finding | None, ours: Finding | None, figure: str) -> str:
    if theirs is None:
        return ""
    value = theirs.median(figure)
    if ours is None or not ours.median(figure) or not value:
        return short(value) + _whole(theirs)
    return f"{short(value / ours.median(figure))}x{_whole(theirs)}"


def _whole(finding: Finding) -> str:
    return " (not whole)" if finding.lost else ""


def _remarks(finding: Finding) -> str:
    remarks: list[str] = []
    if finding.lost:
        remarks.append(f"[red]{finding.lost} not whole[/]")
    if max(repeat.get("reader_load", 0) for repeat in finding.repeats) > _BUSY:
        remarks.append("the reader was busy")
    if finding.failure:
        remarks.append(f"then fails: {finding.failure.splitlines()[-1]}")
    return ", ".join(remarks)


def short(number: float) -> str:
    """Format a number with its significant digits."""
    if number >= 1000:
        return f"{number:,.0f}"
    digits = 0 if number >= 100 else 1 if number >= 10 else 2 if number >= 0.1 else 3
    return f"{number:.{digits}f}"

"""``python -m benchmarks.gateway.plots FIGURES.json``: plots of a run's figures, as SVG beside the file.

Needs matplotlib (dependency group ``bench``).
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.gateway.runner import Findings
from benchmarks.gateway.scenarios import SCENARIOS, Scenario
from benchmarks.gateway.servers import SERVERS


def draw(found: Findings, folder: Path) -> list[Path]:
    lines = (
        _line(
            found,
            folder,
            "burst",
            "tokens",
            "cpu_us",
            "tokens of an answer that comes at once",
            "µs of CPU a chunk",
        ),
        _line(
            found, folder, "paced", "streams", "cpu_us", "streams at 50 tokens a second", "µs of CPU a chunk"
        ),
        _line(
            found,
            folder,
            "paced",
            "streams",
            "latency_p99_ms",
            "streams at 50 tokens a second",
            "added ms, p99",
        ),
        _line(found, folder, "fan-out", "streams", "cpu_us", "readers of one task", "µs of CPU a delivery"),
    )
    bars = (
        _bars(found, folder, scenario)
        for scenario in SCENARIOS
        if scenario.measure in ("turns", "memory", "resume")
    )
    return [file for file in (*lines, *bars) if file is not None]


def _line(
    found: Findings, folder: Path, measure: str, over: str, figure: str, across: str, upwards: str
) -> Path | None:
    """Plot a figure of every server over the parameter of a group of scenarios; both axes logarithmic."""
    scenarios = [
        each
        for each in SCENARIOS
        if each.measure == measure
        and (measure != "burst" or each.streams == 1)
        and (measure != "fan-out" or not each.rate)
    ]
    pyplot = _pyplot()
    picture, axes = pyplot.subplots(figsize=(7, 4.5))
    for server in SERVERS:
        points = [
            (getattr(each, over), finding.median(figure))
            for each in scenarios
            if (finding := found.of(each.name, server.name)) is not None and finding.median(figure) > 0
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=server.title)
    if not axes.lines:
        return None
    axes.set(xscale="log", yscale="log", xlabel=across, ylabel=upwards)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize="small")
    return _saved(picture, folder / f"{measure}-{figure.replace('_', '-')}.svg")


def _bars(found: Findings, folder: Path, scenario: Scenario) -> Path | None:
    """Plot the compared figure of one scenario, a bar per server."""
    values = [
        (server.title, finding.median(scenario.metric))
        for server in SERVERS
        if (finding := found.of(scenario.name, server.name)) is not None
    ]
    if not values:
        return None
    picture, axes = _pyplot().subplots(figsize=(7, 0.5 * len(values) + 1.2))
    bars = axes.barh(*zip(*reversed(values), strict=True))
    axes.bar_label(bars, fmt="{:,.4g}", padding=3)
    axes.margins(x=0.15)
    axes.set(xlabel=scenario.unit, title=scenario.title)
    return _saved(picture, folder / f"{scenario.name}.svg")


def _saved(picture: Any, file: Path) -> Path:
    picture.savefig(file, bbox_inches="tight", metadata={"Date": None})  # reproducible files
    _pyplot().close(picture)
    return file


def _pyplot() -> Any:
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tailrace"
    return import_module("matplotlib.pyplot")


def main(
    figures: Annotated[
        Path, typer.Argument(help="The file that `python -m benchmarks.gateway --json` wrote.")
    ],
) -> None:
    """Plot the figures of a run as SVG files beside the file."""
    found = Findings.from_dict(json.loads(figures.read_text(encoding="utf-8")))
    for file in draw(found, figures.parent):
        print(file)


if __name__ == "__main__":
    typer.run(main)

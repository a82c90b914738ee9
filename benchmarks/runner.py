"""Running the contestants, each in a process of its own, and bringing their figures together."""

import importlib.metadata
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.behaviours import Behaviour, Stage


@dataclass(frozen=True, slots=True)
class Contestant:
    """Somebody who takes part.

    Attributes:
        module: Its module in `benchmarks.contestants`.
        package: The distribution that is measured.
        stages: What it can do.
        repeats: How often each behaviour is measured; fewer for who takes long.
    """

    module: str
    package: str
    stages: frozenset[Stage]
    repeats: int


OURS = Contestant("tailrace", "tailrace", frozenset(Stage), repeats=15)
OPENAI = Contestant("openai", "openai", frozenset(Stage) - {Stage.ENCODE}, repeats=5)
CONTESTANTS = (OURS, OPENAI, Contestant("a2a_sdk", "a2a-sdk", frozenset({Stage.ENCODE}), repeats=7))


@dataclass(frozen=True, slots=True)
class Figure:
    """What one contestant needs for one behaviour.

    Attributes:
        behaviour: The behaviour's name.
        contestant: The contestant's distribution.
        repeats: µs of CPU time a chunk, of each repeat.
    """

    behaviour: str
    contestant: str
    repeats: tuple[float, ...]

    @property
    def median(self) -> float:
        """µs a chunk."""
        return statistics.median(self.repeats)


@dataclass(slots=True)
class Results:
    """The figures of one run."""

    figures: list[Figure] = field(default_factory=list[Figure])

    def of(self, behaviour: str, contestant: str = OURS.package) -> Figure | None:
        """The figure, if it was measured."""
        found = (
            item for item in self.figures if (item.behaviour, item.contestant) == (behaviour, contestant)
        )
        return next(found, None)

    def ratio(self, figure: Figure) -> float | None:
        """How many times ours it needs; None where ours was not measured."""
        ours = self.of(figure.behaviour)
        return None if ours is None else figure.median / ours.median

    def to_dict(self) -> dict[str, Any]:
        """Everything, with what it was measured on, for a file."""
        return {
            "machine": machine(),
            "unit": "µs of CPU time a chunk",
            "figures": [
                {
                    "behaviour": figure.behaviour,
                    "contestant": figure.contestant,
                    "median": round(figure.median, 4),
                    "min": round(min(figure.repeats), 4),
                    "max": round(max(figure.repeats), 4),
                    "ratio": None if (ratio := self.ratio(figure)) is None else round(ratio, 2),
                    "repeats": [round(repeat, 4) for repeat in figure.repeats],
                }
                for figure in self.figures
            ],
        }


def machine() -> dict[str, Any]:
    """What a figure depends on: interpreter, processor, versions."""
    packages = [contestant.package for contestant in CONTESTANTS] + ["msgspec", "pydantic"]
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.platform(terse=True),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "versions": {package: importlib.metadata.version(package) for package in packages},
    }


def tasks(behaviours: Sequence[Behaviour]) -> list[tuple[Contestant, list[Behaviour]]]:
    """Who measures what in one process; contestants take turns, so that a drift of the machine meets them all."""
    return [
        (contestant, wanted)
        for _, group in itertools.groupby(behaviours, key=lambda behaviour: behaviour.group)
        for members in [list(group)]
        for contestant in CONTESTANTS
        if (wanted := [behaviour for behaviour in members if behaviour.stage in contestant.stages])
    ]


def run(
    contestant: Contestant, behaviours: Iterable[Behaviour], repeats: int | None = None
) -> Iterator[Figure]:
    """Measure behaviours of one contestant in a new process.

    Raises:
        subprocess.CalledProcessError: It failed; what it said is on stderr.
    """
    command = [sys.executable, "-m", f"benchmarks.contestants.{contestant.module}", "--json"]
    command += ["--repeats", str(repeats or contestant.repeats)]
    for behaviour in behaviours:
        command += ["--behaviour", behaviour.name]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name, figures in json.loads(output).items():
        yield Figure(name, contestant.package, tuple(figures))


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()

"""Runs of the contestants, each in its own process, and their collected figures."""

import importlib.metadata
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.behaviours import Behaviour, Stage

PEERS = Path(__file__).parent / "peers"
"""The project that pins the versions of the other contestants, with their environments (``.venv/<group>``)."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A contestant.

    Attributes:
        module: Its module in `benchmarks.contestants`.
        package: The measured distribution.
        stages: The stages it supports.
        repeats: Number of repeats of each behaviour; fewer for slow contestants.
        group: The dependency group of `PEERS`; empty for this environment.
        every_format: True if it reads all formats, not only Chat Completions.
    """

    module: str
    package: str
    stages: frozenset[Stage]
    repeats: int
    group: str = ""
    every_format: bool = False

    def measures(self, behaviour: Behaviour) -> bool:
        """Return True if the contestant supports a behaviour."""
        return behaviour.stage in self.stages and (self.every_format or behaviour.shape.is_chat_completions)


_ANSWER = frozenset({Stage.ANSWER})
OURS = Contestant("tailrace", "tailrace", frozenset(Stage), repeats=15, every_format=True)
OPENAI = Contestant("openai", "openai", frozenset(Stage) - {Stage.ENCODE}, repeats=5, group="openai")
CONTESTANTS = (
    OURS,
    OPENAI,
    Contestant("litellm", "litellm", _ANSWER, repeats=3, group="litellm"),
    Contestant("langchain_openai", "langchain-openai", _ANSWER, repeats=3, group="langchain-openai"),
    Contestant("pydantic_ai", "pydantic-ai-slim", _ANSWER, repeats=3, group="pydantic-ai"),
    Contestant("a2a_sdk", "a2a-sdk", frozenset({Stage.ENCODE}), repeats=7),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """The cost of one behaviour for one contestant.

    Attributes:
        behaviour: The behaviour's name.
        contestant: The contestant's distribution.
        repeats: µs of CPU time per chunk, of each repeat; empty after a failure.
        failure: The error, beginning with the exception's name; empty without one.
    """

    behaviour: str
    contestant: str
    repeats: tuple[float, ...]
    failure: str = ""

    @property
    def median(self) -> float:
        """The median µs per chunk."""
        return statistics.median(self.repeats)


@dataclass(slots=True)
class Results:
    """The figures of one run.

    Attributes:
        figures: In the order measured.
        versions: The version of each contestant, as installed in its environment.
    """

    figures: list[Figure] = field(default_factory=list[Figure])
    versions: dict[str, str] = field(default_factory=dict[str, str])

    def of(self, behaviour: str, contestant: str = OURS.package) -> Figure | None:
        """Return a figure, if it was measured."""
        found = (
            item for item in self.figures if (item.behaviour, item.contestant) == (behaviour, contestant)
        )
        return next(found, None)

    def ratio(self, figure: Figure) -> float | None:
        """Return the ratio of a contestant's cost to that of tailrace; None without both figures."""
        ours = self.of(figure.behaviour)
        return None if ours is None or not (ours.repeats and figure.repeats) else figure.median / ours.median

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "machine": machine(),
            "versions": self.versions,
            "unit": "µs of CPU time a chunk",
            "figures": [self._to_dict(figure) for figure in self.figures],
        }

    def _to_dict(self, figure: Figure) -> dict[str, Any]:
        fields: dict[str, Any] = {"behaviour": figure.behaviour, "contestant": figure.contestant}
        if figure.failure:
            return {**fields, "failure": figure.failure}
        ratio = self.ratio(figure)
        return {
            **fields,
            "median": round(figure.median, 4),
            "min": round(min(figure.repeats), 4),
            "max": round(max(figure.repeats), 4),
            "ratio": None if ratio is None else round(ratio, 2),
            "repeats": [round(repeat, 4) for repeat in figure.repeats],
        }


def machine() -> dict[str, Any]:
    """Return the conditions of a figure: interpreter, processor, versions."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.platform(terse=True),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "versions": {package: importlib.metadata.version(package) for package in ("msgspec", "pydantic")},
    }


def tasks(
    behaviours: Sequence[Behaviour], contestants: Sequence[Contestant] = CONTESTANTS
) -> list[tuple[Contestant, list[Behaviour]]]:
    """Return the contestant and behaviours of each process. The contestants alternate."""
    return [
        (contestant, wanted)
        for _, group in itertools.groupby(behaviours, key=lambda behaviour: behaviour.group)
        for members in [list(group)]
        for contestant in contestants
        if (wanted := [behaviour for behaviour in members if contestant.measures(behaviour)])
    ]


def prepare(contestants: Iterable[Contestant]) -> None:
    """Install the contestants' packages."""
    install({contestant.group for contestant in contestants if contestant.group})


def install(groups: Iterable[str]) -> None:
    """Install dependency groups of `PEERS` from their lock file, each in its own environment.

    Raises:
        subprocess.CalledProcessError: The installation failed; uv's error is on stderr.
        FileNotFoundError: uv is not installed.
    """
    for group in groups:
        command = [_uv(), "sync", "--quiet", "--frozen", "--project", str(PEERS), "--only-group", group]
        command += ["--python", f"{sys.version_info.major}.{sys.version_info.minor}"]
        environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(PEERS / ".venv" / group)}
        subprocess.run(command, check=True, env=environment)


def run(
    contestant: Contestant, behaviours: Iterable[Behaviour], results: Results, repeats: int | None = None
) -> None:
    """Run behaviours of one contestant in a new process, and add the figures to the results.

    Raises:
        subprocess.CalledProcessError: The process failed; its output is in ``stderr``.
    """
    command = [python_of(contestant.group), "-m", f"benchmarks.contestants.{contestant.module}", "--json"]
    command += ["--repeats", str(repeats or contestant.repeats)]
    for behaviour in behaviours:
        command += ["--behaviour", behaviour.name]
    # A failing package may warn thousands of times.
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"} if contestant.group else None
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found = json.loads(done.stdout)
    results.versions[contestant.package] = found["version"]
    for name, figures in found["figures"].items():
        results.figures.append(Figure(name, contestant.package, tuple(figures)))
    for name, failure in found["failures"].items():
        results.figures.append(Figure(name, contestant.package, (), failure))


def python_of(group: str) -> str:
    """Return the interpreter of a group's environment; the current interpreter if the group is empty."""
    return str(PEERS / ".venv" / group / _BINARIES / "python") if group else sys.executable


def version_of(package: str, group: str = "") -> str:
    """Return the version of a distribution in a group's environment; in the current environment if the group is empty."""
    if not group:
        return importlib.metadata.version(package)
    program = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    done = subprocess.run([python_of(group), "-c", program], check=True, capture_output=True, text=True)
    return done.stdout.strip()


_BINARIES = "Scripts" if sys.platform == "win32" else "bin"


def _uv() -> str:
    """Return the path of uv: from the environment if run by uv, else from the search path."""
    found = os.environ.get("UV") or shutil.which("uv")
    if found is None:
        raise FileNotFoundError("uv is needed to install the peers; run `make bench`, which fetches it")
    return found


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()

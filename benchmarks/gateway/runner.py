"""Runs the scenarios, and collects the figures."""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.gateway.order import Figures, Order
from benchmarks.gateway.scenarios import Scenario
from benchmarks.gateway.servers import OURS, Running, Server, named, running, running_upstream
from benchmarks.runner import install, machine, version_of

_READER_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Finding:
    """The figures of one server in one scenario.

    Attributes:
        scenario: The scenario's name.
        server: The server's name.
        repeats: The figures of each repeat; empty after a failure.
        failure: The error; empty without one.
    """

    scenario: str
    server: str
    repeats: tuple[Figures, ...]
    failure: str = ""

    def median(self, figure: str) -> float:
        """Return the median of all repeats."""
        return statistics.median(repeat[figure] for repeat in self.repeats)

    def best(self, figure: str) -> float:
        """Return the lowest figure of all repeats."""
        return min(repeat[figure] for repeat in self.repeats)

    def spread(self, figure: str) -> tuple[float, float]:
        """Return the lowest and the highest figure of all repeats."""
        found = [repeat[figure] for repeat in self.repeats]
        return min(found), max(found)

    @property
    def lost(self) -> int:
        """Number of incomplete streams in all repeats."""
        return int(sum(repeat["lost"] for repeat in self.repeats))


@dataclass(slots=True)
class Findings:
    """The results of one run.

    Attributes:
        all: The findings, in the order measured.
        settings: The settings of each server of tailrace.
        versions: The version of each measured distribution.
        pinned: True if the server had its own processor.
        machine: A description of the machine.
        load: The load average of the minute before the run.
    """

    all: list[Finding] = field(default_factory=list[Finding])
    settings: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    versions: dict[str, str] = field(default_factory=dict[str, str])
    pinned: bool = False
    machine: dict[str, Any] = field(default_factory=machine)
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    def of(self, scenario: str, server: str = OURS.name) -> Finding | None:
        """Return a finding, if it was measured and has figures."""
        found = (item for item in self.all if (item.scenario, item.server) == (scenario, server))
        finding = next(found, None)
        return finding if finding is not None and finding.repeats else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "machine": self.machine,
            "load": round(self.load, 2),
            "pinned": self.pinned,
            "versions": self.versions,
            "settings": self.settings,
            "findings": [
                {
                    "scenario": item.scenario,
                    "server": item.server,
                    **({"failure": item.failure} if item.failure else {}),
                    "repeats": [
                        {name: round(number, 4) for name, number in repeat.items()} for repeat in item.repeats
                    ],
                }
                for item in self.all
            ],
        }

    @classmethod
    def from_dict(cls, run: Mapping[str, Any]) -> Self:
        """Parse the result of `to_dict`."""
        found = [
            Finding(item["scenario"], item["server"], tuple(item["repeats"]), item.get("failure", ""))
            for item in run["findings"]
        ]
        return cls(found, run["settings"], run["versions"], run["pinned"], run["machine"], run["load"])


@dataclass(frozen=True, slots=True)
class Cores:
    """The processors of each process; None for all."""

    server: set[int] | None = None
    others: set[int] | None = None


def pinned_cores() -> Cores:
    """Assign one processor to the server, and the others to upstream and readers.

    Raises:
        ValueError: The machine has only one processor.
    """
    available = sorted(os.sched_getaffinity(0))
    if len(available) < 2:
        raise ValueError("--pin requires at least two processors")
    return Cores({available[0]}, set(available[1:]))


def run(
    scenarios: Iterable[Scenario],
    servers: Sequence[Server] | None = None,
    *,
    other: Server | None = None,
    short: bool = False,
    repeats: int | None = None,
    cores: Cores | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Findings:
    """Run the scenarios, and return the findings.

    Args:
        scenarios: The scenarios.
        servers: The servers; None for all that take part.
        other: A server that is measured alternately with `OURS`; None for none.
        short: True for a short run.
        repeats: The number of repeats; None for that of each scenario.
        cores: The processors of each process.
        report: Called with progress messages.

    Raises:
        subprocess.CalledProcessError: A peer could not be installed.
        RuntimeError: The upstream did not start.
    """
    cores = cores or Cores()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    plan = [(scenario, _taking_part(scenario, servers, other, short=short)) for scenario in scenarios]
    found = Findings(pinned=cores.server is not None)
    report("installing the other packages")
    install({server.group for _, wanted in plan for server in wanted if server.group})
    with tempfile.TemporaryDirectory(prefix="tailrace-benchmark-") as folder, ExitStack() as stack:
        upstream = stack.enter_context(running_upstream(Path(folder), cores.others))
        for number, (scenario, wanted) in enumerate(plan):
            place = Path(folder) / str(number)
            place.mkdir()
            _run_scenario(scenario, wanted, upstream, place, found, short, repeats, cores, report)
    return found


def _taking_part(
    scenario: Scenario, servers: Sequence[Server] | None, other: Server | None, *, short: bool
) -> list[Server]:
    names = scenario.short if short else scenario.servers
    found = [named(name) for name in names if servers is None or named(name) in servers]
    if other is not None and OURS in found:
        found.insert(found.index(OURS) + 1, other)
    return found


def _run_scenario(
    scenario: Scenario,
    wanted: Sequence[Server],
    upstream: Running,
    folder: Path,
    found: Findings,
    short: bool,
    repeats: int | None,
    cores: Cores,
    report: Callable[[str], None],
) -> None:
    """Measure contestants in turn, so that changes of the machine affect all of them."""
    figures: dict[str, list[Figures]] = {server.name: [] for server in wanted}
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        up: dict[str, Running] = {}
        times = {server.name: repeats or scenario.times(server, short=short) for server in wanted}
        for turn in range(max(times.values(), default=0)):
            for server in wanted:
                if turn >= times[server.name] or server.name in failures:
                    continue
                report(f"{scenario.name}: {server.name} {turn + 1}/{times[server.name]}")
                try:
                    if scenario.fresh:
                        place = folder / str(turn)
                        place.mkdir(exist_ok=True)
                        with running(server, upstream, place, cores.server) as fresh:
                            _note(found, fresh)
                            figures[server.name].append(read(scenario.order(fresh, upstream, turn), cores))
                        continue
                    if server.name not in up:
                        up[server.name] = stack.enter_context(running(server, upstream, folder, cores.server))
                        _note(found, up[server.name])
                    order = scenario.order(up[server.name], upstream, turn)
                    figures[server.name].append(read(order, cores))
                except RuntimeError as error:
                    failures[server.name] = str(error)
                    report(f"{scenario.name}: {server.name} failed: {error}")
    for server in wanted:
        found.all.append(
            Finding(scenario.name, server.name, tuple(figures[server.name]), failures.get(server.name, ""))
        )


def _note(found: Findings, server: Running) -> None:
    if server.server.package and server.server.package not in found.versions:
        found.versions[server.server.package] = version_of(server.server.package, server.server.group)
    if server.server.package == OURS.package:
        found.settings[server.server.name] = server.settings


def read(order: Order, cores: Cores | None = None) -> Figures:
    """Run one measurement in a reader process.

    Raises:
        RuntimeError: The reader failed, or timed out.
    """
    command = [sys.executable, "-m", "benchmarks.gateway.reader"]
    if cores is not None and cores.others is not None:
        command = ["taskset", "--cpu-list", ",".join(map(str, sorted(cores.others))), *command]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(order.to_dict()),
            capture_output=True,
            text=True,
            timeout=_READER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"it took longer than {_READER_SECONDS} s") from None
    if done.returncode:
        raise RuntimeError(
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the reader failed"
        )
    figures: Figures = json.loads(done.stdout)
    return figures

"""``python -m benchmarks.startup``: wall-clock time of ``tailrace --version`` and ``tailrace --help``.

Each command runs in a new process. The best of all runs is compared with the bound.
"""

import subprocess
import sys
import time
from dataclasses import dataclass

import typer

MAX_SECONDS = 0.25
"""Bound on the wall-clock time of each command."""

OPTIONS = ("--version", "--help")
_RUNS = 15
_PROGRAM = "from tailrace.server.cli import main; main()"


@dataclass(frozen=True, slots=True)
class Startup:
    """Figures of one command.

    Attributes:
        option: The option of ``tailrace``.
        seconds: The wall-clock time of the fastest run.
    """

    option: str
    seconds: float


def startups() -> list[Startup]:
    """Run each command and return its figures.

    Raises:
        CalledProcessError: A command failed.
    """
    return [_startup(option) for option in OPTIONS]


def _startup(option: str) -> Startup:
    seconds: list[float] = []
    for _ in range(_RUNS):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", _PROGRAM, option], stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - begin)
    return Startup(option, min(seconds))


def main() -> None:
    """Print the figures of each command."""
    for startup in startups():
        print(f"tailrace {startup.option}: {startup.seconds:.3f} s")


if __name__ == "__main__":
    typer.run(main)

"""``python -m benchmarks.micro.instructions``: processor instructions of each part, counted by callgrind.

In contrast to times, the counts do not depend on the load. Each count is relative to that of the standard library for the same
chunks. ``instructions.json`` contains the baseline.
"""

import gc
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from benchmarks.micro.workloads import CHUNKS, WORKS, Work, standard

BASELINE = Path(__file__).with_name("instructions.json")
TOLERANCE = 0.03
"""Share by which a part may exceed the baseline."""

_STANDARD = "standard library"
_ALL: dict[str, Work] = {_STANDARD: standard, **WORKS}
_TIMES = 5
_MARK = os.getppid
"""Callgrind writes its counts before each call of this function, which no other code calls."""


class Baseline(msgspec.Struct):
    """The counts of an earlier run.

    Attributes:
        of: The conditions, as returned by `circumstances`.
        counts: The count of each part, relative to the standard library's.
    """

    of: dict[str, str] = {}
    counts: dict[str, float] = {}


def count() -> dict[str, float]:
    """Count the instructions per chunk of every part.

    Raises:
        FileNotFoundError: valgrind is not installed.
        RuntimeError: valgrind failed; the message contains its output.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise FileNotFoundError("valgrind")
    with tempfile.TemporaryDirectory(prefix="tailrace-instructions-") as folder:
        command = [valgrind, "--tool=callgrind", f"--callgrind-out-file={folder}/counted"]
        command += [
            f"--dump-before={_MARK.__name__}",
            sys.executable,
            "-m",
            "benchmarks.micro.instructions",
            "--work",
        ]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise RuntimeError(f"callgrind did not count: {done.stderr[-1000:]}")
        # One file per mark: preparation and measured work alternate.
        totals = [_total(Path(folder) / f"counted.{2 * at + 2}") for at in range(len(_ALL))]
    per_chunk = {name: total / (_TIMES * CHUNKS) for name, total in zip(_ALL, totals, strict=True)}
    return {name: per_chunk[name] / per_chunk[_STANDARD] for name in WORKS}


def _total(file: Path) -> int:
    found = re.search(r"^totals: (\d+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{file.name} has no count")
    return int(found[1])


def compare(found: dict[str, float], baseline: dict[str, float]) -> list[str]:
    """Return a line for each part that exceeds its baseline."""
    worse = [f"{name}: is only in one of the two results" for name in sorted(found.keys() ^ baseline.keys())]
    for name, number in found.items():
        if name in baseline and number > baseline[name] * (1 + TOLERANCE):
            worse.append(f"{name}: {number / baseline[name] - 1:+.1%}")
    return worse


def circumstances() -> dict[str, str]:
    """Return the conditions for which a baseline is valid."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "msgspec": msgspec.__version__,
    }


def _work() -> None:
    """Run every part: a few times to warm up, then between two marks."""
    for work in _ALL.values():
        for _ in range(_TIMES):
            work()
        gc.collect()
        _MARK()
        for _ in range(_TIMES):
            work()
        _MARK()


def main(
    write: Annotated[bool, typer.Option("--write", help="Store the counts as the new baseline.")] = False,
    work: Annotated[bool, typer.Option("--work", hidden=True)] = False,
) -> None:
    """Count the processor instructions per chunk, and compare them with the baseline.

    The counts are relative to the standard library's JSON parser. Exit status: 1 if a
    part exceeds the baseline by more than 3 %, 2 without valgrind or a comparable baseline.
    """
    if work:
        _work()
        return
    try:
        found = count()
    except FileNotFoundError:
        print(
            "valgrind is not installed, so instructions cannot be counted. On Debian: apt-get install valgrind"
        )
        raise typer.Exit(2) from None
    baseline = msgspec.json.decode(BASELINE.read_bytes(), type=Baseline) if BASELINE.exists() else Baseline()
    print("instructions per chunk, relative to the standard library's JSON parser")
    for name, number in found.items():
        before = baseline.counts.get(name)
        print(f"{name:18} {number:7.3f}" + ("" if before is None else f"   {number / before - 1:+.1%}"))
    if write:
        counts = {name: round(number, 4) for name, number in found.items()}
        written = msgspec.json.encode(Baseline(circumstances(), counts))
        BASELINE.write_bytes(msgspec.json.format(written, indent=2) + b"\n")
        return
    if baseline.of != circumstances():
        print(f"The baseline cannot be compared: it is from {baseline.of}, not from {circumstances()}.")
        raise typer.Exit(2)
    if worse := compare(found, baseline.counts):
        print("above the baseline: " + ", ".join(worse))
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

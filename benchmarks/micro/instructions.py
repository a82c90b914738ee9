"""``python -m benchmarks.micro.instructions``: what each part takes in instructions of the processor, as callgrind counts them.

Time is noisy; instructions are not: the same program takes the same ones, whatever else the machine does. A count is given
in relation to what the standard library takes to parse the same chunks, so that it means the same on another
processor and with another build of Python; ``instructions.json`` holds what it was when somebody last wrote it.
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

from benchmarks.micro.works import CHUNKS, WORKS, Work, standard

BASELINE = Path(__file__).with_name("instructions.json")
TOLERANCE = 0.03
"""By which share a part may take more than in the baseline before it counts as worse."""

_STANDARD = "standard library"
_ALL: dict[str, Work] = {_STANDARD: standard, **WORKS}
_TIMES = 5
_MARK = os.getppid
"""A function of the C library that nothing else calls: callgrind writes down what it counted before each call of it."""


class Baseline(msgspec.Struct):
    """What was counted before.

    Attributes:
        of: What it depends on, as `circumstances` says it.
        counts: Of each part, over the standard library's.
    """

    of: dict[str, str] = {}
    counts: dict[str, float] = {}


def count() -> dict[str, float]:
    """Instructions a chunk of every part, over those of the standard library's parser.

    Raises:
        FileNotFoundError: There is no valgrind.
        RuntimeError: It failed; the message has what it said.
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
        # One file for what was done before each mark: what comes before a work, and the work, in turns.
        totals = [_total(Path(folder) / f"counted.{2 * at + 2}") for at in range(len(_ALL))]
    per_chunk = {name: total / (_TIMES * CHUNKS) for name, total in zip(_ALL, totals, strict=True)}
    return {name: per_chunk[name] / per_chunk[_STANDARD] for name in WORKS}


def _total(file: Path) -> int:
    found = re.search(r"^totals: (\d+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{file.name} has no count")
    return int(found[1])


def compare(found: dict[str, float], baseline: dict[str, float]) -> list[str]:
    """The parts that take more than they did, each in a line; also what one of both does not have."""
    worse = [f"{name}: is in one of both only" for name in sorted(found.keys() ^ baseline.keys())]
    for name, number in found.items():
        if name in baseline and number > baseline[name] * (1 + TOLERANCE):
            worse.append(f"{name}: {number / baseline[name] - 1:+.1%}")
    return worse


def circumstances() -> dict[str, str]:
    """What the counts depend on; a baseline is for the same interpreter and the same msgspec."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "msgspec": msgspec.__version__,
    }


def _work() -> None:
    """Every part: a few times first, so that nothing is done for the first time, then between two marks."""
    for work in _ALL.values():
        for _ in range(_TIMES):
            work()
        gc.collect()
        _MARK()
        for _ in range(_TIMES):
            work()
        _MARK()


def main(
    write: Annotated[bool, typer.Option("--write", help="Make this the baseline.")] = False,
    work: Annotated[bool, typer.Option("--work", hidden=True)] = False,
) -> None:
    """Count, and compare with the baseline; exit 1 if a part takes more."""
    if work:
        _work()
        return
    try:
        found = count()
    except FileNotFoundError:
        print("There is no valgrind: instructions cannot be counted. On Debian: apt-get install valgrind")
        raise typer.Exit(2) from None
    baseline = msgspec.json.decode(BASELINE.read_bytes(), type=Baseline) if BASELINE.exists() else Baseline()
    print("instructions a chunk, the standard library's JSON parser being 1")
    for name, number in found.items():
        before = baseline.counts.get(name)
        print(f"{name:18} {number:7.3f}" + ("" if before is None else f"   {number / before - 1:+.1%}"))
    if write:
        counts = {name: round(number, 4) for name, number in found.items()}
        written = msgspec.json.encode(Baseline(circumstances(), counts))
        BASELINE.write_bytes(msgspec.json.format(written, indent=2) + b"\n")
        return
    if baseline.of != circumstances():
        print(f"The baseline is of {baseline.of}, this is {circumstances()}: they cannot be compared.")
        raise typer.Exit(2)
    if worse := compare(found, baseline.counts):
        print("more than in the baseline: " + ", ".join(worse))
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

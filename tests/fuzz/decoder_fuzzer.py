"""Run mutated bodies through every decoder for a given time and write down each fault.

Each processor runs cases of its own. A fault is reported once, with the smallest body that shows it; the body, its
traceback and the case are written to a folder. ``--repeat`` takes a file from there.
"""

import argparse
import importlib
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from random import Random
from typing import Any, NamedTuple

from fuzz.cases import Case, cut
from fuzz.corpus import vocabulary
from fuzz.costs import IDS, INDEXES, growth, repeated
from fuzz.minimiser import minimised
from fuzz.oracles import check, send_back
from tailrace.wrappers.decoding.decoder import ResponseDecoder
from tailrace.wrappers.format_detection import DetectingDecoder
from tailrace.wrappers.providers import FORMATS

_ROUND = 50  # cases of one format, then those of the next
# A case of 24 kB takes a few milliseconds; a deep or long one some tens. These limits leave room for a slow machine.
_SLOW_SECONDS = 1.0
_SLOW_SECONDS_A_BYTE = 40e-6
_THREAD = ThreadPoolExecutor(max_workers=1)
_COSTS = 0.25  # share of the rounds that also measure repeated events
# The bound on the ratio of the time per event with eight times as many events; noise stays below it.
_MOST_GROWTH = 2.0


class Fault(NamedTuple):
    """One fault.

    Attributes:
        case: The first case that showed it.
        body: The smallest body that shows it.
        kind: The key that distinguishes faults.
        trace: The traceback for the smallest body.
    """

    case: Case
    body: bytes
    kind: str
    trace: str


class SlowError(Exception):
    """A case took much longer than its length explains, or the time per event grows with the number of events."""


def decoder_of(format: str, bound: int = 0) -> Callable[[], ResponseDecoder[Any]]:
    """Return a factory of a format's decoders, with a bound on one event if one is given."""
    known = FORMATS[format]
    decoder = getattr(importlib.import_module(known.module), known.decoder)
    arguments = {"max_event_bytes": bound} if bound else {}
    return lambda: decoder(**arguments)


def check_case(case: Case, body: bytes) -> None:
    """Check all invariants for a body with the options of a case.

    Raises:
        Exception: An invariant is violated.
    """
    make = DetectingDecoder if case.detecting else decoder_of(case.format, case.bound)
    check(make, body, cut(body, case.reads), think_tags=case.think_tags)
    if not case.bound:
        decoder = make()
        send_back(FORMATS[case.format].create_converter(), decoder.feed(body) + decoder.close())


def fault_of(case: Case, body: bytes) -> tuple[str, str] | None:
    """Return the kind and the traceback of a body's fault; None without one."""
    begin = time.process_time()
    try:
        # In a thread with an empty stack: the maximum depth of a body must not depend on the caller.
        _THREAD.submit(check_case, case, body).result()
        taken = time.process_time() - begin
        if taken > _SLOW_SECONDS + _SLOW_SECONDS_A_BYTE * len(body):
            raise SlowError(f"{taken:.1f} s of CPU time for {len(body)} bytes")
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "tailrace" in frame.filename] or frames
        what = str(error).partition(":")[0] if isinstance(error, AssertionError) else ""
        # The position of a recursion error is random.
        place = Path(ours[-1].filename).name + (
            "" if isinstance(error, RecursionError) else f":{ours[-1].lineno}"
        )
        lines = "".join(traceback.format_exception(error, limit=-12))
        return f"{case.format} {type(error).__name__} {place} {what}".strip(), lines
    return None


def _work(seed: str, formats: list[str], until: float, found: "Queue[Fault | int]") -> None:
    rng = Random(seed)
    known: set[str] = set()
    while time.monotonic() < until:
        for format in formats:
            for _ in range(_ROUND):
                if time.monotonic() > until:
                    return
                case = Case.random(rng, format)
                body = case.build()
                fault = fault_of(case, body)
                if fault is not None and fault[0] not in known:
                    known.add(fault[0])
                    found.put(_smallest(case, body, fault[0]))
            costly = _costly(rng, format) if rng.random() < _COSTS else None
            if costly is not None and costly.kind not in known:
                known.add(costly.kind)
                found.put(costly)
            found.put(_ROUND)


def _costly(rng: Random, format: str) -> Fault | None:
    """Measure repeated events; return the fault if time is not linear."""
    payloads = rng.choices(vocabulary(format).events, k=rng.choice((1, 1, 2, 3)))
    counting = rng.sample(INDEXES + IDS, rng.randrange(len(INDEXES + IDS) + 1))
    grown = growth(decoder_of(format), payloads, counting)
    if grown < _MOST_GROWTH:
        return None
    grown = growth(decoder_of(format), payloads, counting, times=1200)  # exclude noise
    if grown < _MOST_GROWTH:
        return None
    what = f"an event takes {grown:.1f} times as long with 8 times as many before it; counting up: {counting}"
    body = b"".join(repeated(payloads, 3, counting))
    return Fault(Case(format, 0, 0, (), 0), body, f"{format} SlowError growth", f"{what}\n")


def _smallest(case: Case, body: bytes, kind: str) -> Fault:
    def fails(candidate: bytes) -> bool:
        fault = fault_of(case, candidate)
        return fault is not None and fault[0] == kind

    smallest = body if "SlowError" in kind else minimised(body, fails)
    fault = fault_of(case, smallest)
    return Fault(case, smallest, kind, fault[1] if fault else "the fault is not reproducible")


def main(given: list[str]) -> int:
    """Run the command line; the exit code is 1 if a fault was found."""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz --decoders", description=(__doc__ or "").partition("\n\n")[2]
    )
    parser.add_argument("--minutes", type=float, default=60, help="duration (default: 60)")
    parser.add_argument(
        "--format", action="append", choices=list(FORMATS), help="only this one; may be repeated"
    )
    parser.add_argument(
        "--seed", default="", help="a run with the same seed repeats its cases (default: random)"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz"), metavar="FOLDER")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="run one recorded case")
    arguments = parser.parse_args(given)
    if arguments.repeat:
        return _repeat(arguments.repeat)
    seed: str = arguments.seed or f"{Random().getrandbits(64):x}"
    formats: list[str] = arguments.format or list(FORMATS)
    print(
        f"seed {seed}, {arguments.processes} processes, {arguments.minutes:g} minutes: {', '.join(formats)}"
    )
    until = time.monotonic() + arguments.minutes * 60
    context = multiprocessing.get_context("spawn")
    found: Queue[Fault | int] = context.Queue()
    workers = [
        context.Process(target=_work, args=(f"{seed}/{number}", formats, until, found))
        for number in range(arguments.processes)
    ]
    for worker in workers:
        worker.start()
    cases, faults = _collect(workers, found, arguments.findings)
    broken = [worker.exitcode for worker in workers if worker.exitcode]
    print(
        f"{cases} cases, {faults} faults, seed {seed}"
        + (f", processes ended with {broken}" if broken else "")
    )
    return 1 if faults or broken else 0


def _collect(workers: list[Any], found: "Queue[Fault | int]", folder: Path) -> tuple[int, int]:
    """Print and write down the workers' findings until all workers have ended."""
    cases = 0
    known: set[str] = set()
    while any(worker.is_alive() for worker in workers) or not found.empty():
        try:
            item = found.get(timeout=1)
        except Empty:
            continue
        if isinstance(item, int):
            cases += item
        elif item.kind not in known:
            known.add(item.kind)
            _write_down(item, folder)
    return cases, len(known)


def _write_down(fault: Fault, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in fault.kind)[:100]
    (folder / f"{name}.body").write_bytes(fault.body)
    (folder / f"{name}.json").write_text(fault.case.to_json() + "\n", encoding="utf-8")
    (folder / f"{name}.txt").write_text(fault.trace, encoding="utf-8", errors="backslashreplace")
    print(f"\n{fault.kind}\n{fault.trace}{len(fault.body)} bytes: {fault.body[:400]!r}")
    print(
        f"repeat it with: PYTHONPATH=tests python -m fuzz --decoders --repeat {folder / name}.json",
        flush=True,
    )


def _repeat(file: Path) -> int:
    case = Case.from_json(file.read_text(encoding="utf-8"))
    smallest = file.with_suffix(".body")
    fault = fault_of(case, smallest.read_bytes() if smallest.exists() else case.build())
    print(fault[1] if fault else "no fault")
    return 1 if fault else 0

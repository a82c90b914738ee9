"""Mutated bodies through every decoder for as long as is asked, and every fault written down.

Each processor takes cases of its own. A fault is shown once, with the smallest body found that shows it; the body, its
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
from fuzz.minimising import minimised
from fuzz.oracles import check, send_back
from tailrace.wrappers.decoding import ResponseDecoder
from tailrace.wrappers.detection import DetectingDecoder
from tailrace.wrappers.providers import FORMATS

_ROUND = 50  # cases of one format, then those of the next
# A case of 24 kB takes some milliseconds; a deep or long one some tens. These leave room for a slow machine.
_SLOW_SECONDS = 1.0
_SLOW_SECONDS_A_BYTE = 40e-6
_THREAD = ThreadPoolExecutor(max_workers=1)
_COSTS = 0.25  # of the rounds take the time of repeated events, too
# How many times as long an event may take where there were eight times as many before it; noise is less than this.
_MOST_GROWTH = 2.0


class Fault(NamedTuple):
    """One fault.

    Attributes:
        case: What showed it first.
        body: The smallest body found that shows it.
        kind: By which faults are told apart.
        trace: The traceback, of the smallest body.
    """

    case: Case
    body: bytes
    kind: str
    trace: str


class SlowError(Exception):
    """A case took much longer than its length explains, or an event the longer, the more there were before it."""


def decoder_of(format: str, bound: int = 0) -> Callable[[], ResponseDecoder[Any]]:
    """What makes a decoder of a format, with a bound on one event where one is given."""
    known = FORMATS[format]
    decoder = getattr(importlib.import_module(known.module), known.decoder)
    arguments = {"max_event_bytes": bound} if bound else {}
    return lambda: decoder(**arguments)


def check_case(case: Case, body: bytes) -> None:
    """Hold a body against all rules, under the circumstances of a case.

    Raises:
        Exception: What is wrong.
    """
    make = DetectingDecoder if case.detecting else decoder_of(case.format, case.bound)
    check(make, body, cut(body, case.reads), think_tags=case.think_tags)
    if not case.bound:
        decoder = make()
        send_back(FORMATS[case.format].create_converter(), decoder.feed(body) + decoder.close())


def fault_of(case: Case, body: bytes) -> tuple[str, str] | None:
    """The kind and the traceback of what is wrong with a body; None where nothing is."""
    begin = time.process_time()
    try:
        # In a thread, whose stack is empty: how deep a body may be nested must not depend on who asks.
        _THREAD.submit(check_case, case, body).result()
        taken = time.process_time() - begin
        if taken > _SLOW_SECONDS + _SLOW_SECONDS_A_BYTE * len(body):
            raise SlowError(f"{taken:.1f} s of CPU time for {len(body)} bytes")
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "tailrace" in frame.filename] or frames
        what = str(error).partition(":")[0] if isinstance(error, AssertionError) else ""
        # Where too deep a recursion ends is chance.
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
    """Take the time of a few events again and again; the fault, where it is not linear."""
    payloads = rng.choices(vocabulary(format).events, k=rng.choice((1, 1, 2, 3)))
    counting = rng.sample(INDEXES + IDS, rng.randrange(len(INDEXES + IDS) + 1))
    grown = growth(decoder_of(format), payloads, counting)
    if grown < _MOST_GROWTH:
        return None
    grown = growth(decoder_of(format), payloads, counting, times=1200)  # not the noise of a moment?
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
    return Fault(case, smallest, kind, fault[1] if fault else "it does not happen again")


def main() -> int:
    """The command line; the exit code is 1 where a fault was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--minutes", type=float, default=60, help="by the clock (default: 60)")
    parser.add_argument("--format", action="append", choices=list(FORMATS), help="only this; may be repeated")
    parser.add_argument("--seed", default="", help="the same seed, the same cases (default: a new one)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz"), metavar="FOLDER")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="run one case that was written down")
    arguments = parser.parse_args()
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
    """Show and write down what the workers find, until all have ended."""
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
    print(f"repeat it with: python -m fuzz --repeat {folder / name}.json", flush=True)


def _repeat(file: Path) -> int:
    case = Case.from_json(file.read_text(encoding="utf-8"))
    smallest = file.with_suffix(".body")
    fault = fault_of(case, smallest.read_bytes() if smallest.exists() else case.build())
    print(fault[1] if fault else "nothing is wrong with it")
    return 1 if fault else 0

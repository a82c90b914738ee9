"""Measuring one contestant, in the process it is run in.

CPU time of the process, not time by the clock: what other programs do to the machine then counts for less. The
garbage collector stays on, as in a server. Every contestant's result is checked before anything is measured: who
loses a token has no figure.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Mapping
from typing import Protocol

from benchmarks.behaviours import BEHAVIOURS, Behaviour, Stage, named
from benchmarks.inputs import Part, Stream


class Run(Protocol):
    """One stream on its way through one contestant."""

    def take(self, part: Part) -> None:
        """Take the next part of the stream, read by read."""
        ...

    def result(self) -> str:
        """What the stream said (`Stream.text`), as the contestant understood it, after the last part."""
        ...


class Contestant(Protocol):
    """Makes a run of a stream; whatever the stage needs beforehand is made here."""

    def __call__(self, stream: Stream) -> Run:
        """A fresh run."""
        ...


def main(name: str, contestants: Mapping[Stage, Contestant], *, least_chunks: int = 16_000) -> None:
    """The command line of a contestant's module.

    Args:
        name: The contestant.
        contestants: What it can do.
        least_chunks: How many chunks one repeat measures at least; fewer for who takes long.

    Raises:
        ValueError: A result is wrong.
    """
    parser = argparse.ArgumentParser(description=f"Measure {name}: µs of CPU time a chunk.")
    parser.add_argument("--behaviour", action="append", metavar="NAME", help="may be repeated; default: all")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    arguments = parser.parse_args()
    behaviours = named(arguments.behaviour or [behaviour.name for behaviour in BEHAVIOURS])
    behaviours = [behaviour for behaviour in behaviours if behaviour.stage in contestants]
    figures = _measure_in_turns(behaviours, contestants, arguments.repeats, least_chunks)
    if arguments.json:
        json.dump(figures, sys.stdout)
        return
    for behaviour, repeats in figures.items():
        print(f"{behaviour:12} " + " ".join(f"{figure:.3f}" for figure in sorted(repeats)))


def _measure_in_turns(
    behaviours: list[Behaviour], contestants: Mapping[Stage, Contestant], repeats: int, least_chunks: int
) -> dict[str, list[float]]:
    """µs a chunk of each repeat, by behaviour. One repeat of each in turn: what drifts, drifts for all."""
    inputs = {behaviour.name: behaviour.streams(least_chunks) for behaviour in behaviours}
    figures: dict[str, list[float]] = {behaviour.name: [] for behaviour in behaviours}
    for behaviour in behaviours:  # also the warm-up
        for stream in inputs[behaviour.name]:
            _check(behaviour, stream, contestants[behaviour.stage])
    for _ in range(repeats):
        for behaviour in behaviours:
            streams = inputs[behaviour.name]
            figures[behaviour.name].append(_measure(behaviour, streams, contestants[behaviour.stage]))
    return figures


def _measure(behaviour: Behaviour, streams: list[Stream], contestant: Contestant) -> float:
    """µs a chunk of one repeat: of the bodies alone, or of everything from the making of the run to its end."""
    runs: list[Run] = []
    if not behaviour.whole:
        for stream in streams:
            run = contestant(stream)
            run.take(stream.opening)
            runs.append(run)
    gc.collect()
    begin = time.process_time_ns()
    if behaviour.whole:
        for stream in streams:
            _take_all(contestant(stream), stream)
    else:
        for run, stream in zip(runs, streams, strict=True):
            run.take(stream.body)
    end = time.process_time_ns()
    return (end - begin) / 1000 / (behaviour.chunks * len(streams))


def _take_all(run: Run, stream: Stream) -> None:
    for part in stream.parts:
        run.take(part)


def _check(behaviour: Behaviour, stream: Stream, contestant: Contestant) -> None:
    run = contestant(stream)
    _take_all(run, stream)
    if run.result() != stream.text:
        raise ValueError(f"{behaviour.name}: {run.result()[:200]!r} is not {stream.text[:200]!r}")

"""Measurement of one contestant, in its own process.

The figures are CPU times of the process, which other programs affect less than wall-clock times. A contestant that raises an
error, or loses a token, has no figure.
"""

import argparse
import gc
import importlib.metadata
import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

from benchmarks.behaviours import BEHAVIOURS, Behaviour, Stage, named
from benchmarks.inputs import Part, Stream


class WrongAnswer(Exception):
    """A contestant's result differs from the contents of the stream."""


class Run(Protocol):
    """The processing of one stream by one contestant."""

    def take(self, part: Part) -> None:
        """Process the next part of the stream, read by read."""
        ...

    def result(self) -> str:
        """Return the result, in the form of `Stream.text`."""
        ...


class PulledRun(ABC):
    """A run of a contestant that cannot be stopped between two parts.

    It is created before the body is read.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def take(self, part: Part) -> None:
        """Read the complete response with the last part."""
        if part is self.stream.closing:
            self.pull()

    @abstractmethod
    def pull(self) -> None:
        """Read the complete response into one message."""

    @abstractmethod
    def result(self) -> str:
        """Return the contents of the stream."""


class Contestant(Protocol):
    """Creates runs of a stream, with the input that the stage needs."""

    def __call__(self, stream: Stream) -> Run:
        """Return a new run."""
        ...


def main(package: str, contestants: Mapping[Stage, Contestant], *, least_chunks: int = 16_000) -> None:
    """Run the command line of a contestant's module.

    Args:
        package: The measured distribution.
        contestants: The contestant's runs, by stage.
        least_chunks: The minimum number of chunks per repeat; fewer for slow contestants.
    """
    parser = argparse.ArgumentParser(description=f"Measure {package}: µs of CPU time per chunk.")
    parser.add_argument(
        "--behaviour",
        action="append",
        metavar="NAME",
        help="measure only this behaviour; can be repeated (default: all)",
    )
    parser.add_argument("--repeats", type=int, default=7, help="repeats of each measurement (default: 7)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    arguments = parser.parse_args()
    behaviours = named(arguments.behaviour or [behaviour.name for behaviour in BEHAVIOURS])
    behaviours = [behaviour for behaviour in behaviours if behaviour.stage in contestants]
    inputs = {behaviour.name: behaviour.streams(least_chunks) for behaviour in behaviours}
    failures = {
        behaviour.name: failure
        for behaviour in behaviours
        if (failure := _failure(inputs[behaviour.name], contestants[behaviour.stage]))
    }
    behaviours = [behaviour for behaviour in behaviours if behaviour.name not in failures]
    figures: dict[str, list[float]] = {behaviour.name: [] for behaviour in behaviours}
    for _ in range(arguments.repeats):  # in turn, so that drift affects all
        for behaviour in behaviours:
            figure = _measure(behaviour, inputs[behaviour.name], contestants[behaviour.stage])
            figures[behaviour.name].append(figure)
    if arguments.json:
        version = importlib.metadata.version(package)
        json.dump({"version": version, "figures": figures, "failures": failures}, sys.stdout)
        return
    for name, repeats in figures.items():
        print(f"{name:18} " + " ".join(f"{figure:.3f}" for figure in sorted(repeats)))
    for name, failure in failures.items():
        print(f"{name:18} fails: {failure}")


def _failure(streams: list[Stream], contestant: Contestant) -> str:
    """Warm up. Return the error of the contestant; empty if there is none."""
    for stream in streams:
        try:
            run = contestant(stream)
            _take_all(run, stream)
            if run.result() != stream.text:
                raise WrongAnswer(f"{run.result()[:80]!r} is not {stream.text[:80]!r}")
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


def _measure(behaviour: Behaviour, streams: list[Stream], contestant: Contestant) -> float:
    """Return µs per chunk of one repeat.

    The figure covers, depending on the behaviour, a run with its creation, a complete body, or its deltas.
    """
    if behaviour.whole:
        gc.collect()
        begin = time.process_time_ns()
        for stream in streams:
            _take_all(contestant(stream), stream)
        return (time.process_time_ns() - begin) / 1000 / (behaviour.chunks * len(streams))
    runs = [contestant(stream) for stream in streams]
    if behaviour.stage is Stage.ANSWER:
        gc.collect()
        begin = time.process_time_ns()
        for run, stream in zip(runs, streams, strict=True):
            _take_all(run, stream)
        return (time.process_time_ns() - begin) / 1000 / sum(stream.chunks for stream in streams)
    for run, stream in zip(runs, streams, strict=True):
        run.take(stream.opening)
    gc.collect()
    begin = time.process_time_ns()
    for run, stream in zip(runs, streams, strict=True):
        run.take(stream.body)
    return (time.process_time_ns() - begin) / 1000 / (behaviour.chunks * len(streams))


def _take_all(run: Run, stream: Stream) -> None:
    for part in stream.parts:
        run.take(part)

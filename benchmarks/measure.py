"""Measuring one contestant, in the process it is run in.

CPU time of the process, not time by the clock: what other programs do to the machine then counts for less. The
garbage collector stays on, as in a server. Every contestant's result is checked before anything is measured: who
raises, or loses a token, has no figure.
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
    """A contestant did not raise, but what it made of a stream is not what the stream says."""


class Run(Protocol):
    """One stream on its way through one contestant."""

    def take(self, part: Part) -> None:
        """Take the next part of the stream, read by read."""
        ...

    def result(self) -> str:
        """What the stream said (`Stream.text`), as the contestant understood it, after the last part."""
        ...


class PulledRun(ABC):
    """A run of a contestant that asks for the bytes by itself, and cannot be stopped between two parts.

    Made with the response open and nothing of its body read.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def take(self, part: Part) -> None:
        """Read everything, when the last part is due."""
        if part is self.stream.closing:
            self.pull()

    @abstractmethod
    def pull(self) -> None:
        """Read the whole response, and make one message of it."""

    @abstractmethod
    def result(self) -> str:
        """What the stream said."""


class Contestant(Protocol):
    """Makes a run of a stream; whatever the stage needs beforehand is made here."""

    def __call__(self, stream: Stream) -> Run:
        """A fresh run."""
        ...


def main(package: str, contestants: Mapping[Stage, Contestant], *, least_chunks: int = 16_000) -> None:
    """The command line of a contestant's module.

    Args:
        package: The distribution that is measured.
        contestants: What it can do.
        least_chunks: How many chunks one repeat measures at least; fewer for who takes long.
    """
    parser = argparse.ArgumentParser(description=f"Measure {package}: µs of CPU time a chunk.")
    parser.add_argument("--behaviour", action="append", metavar="NAME", help="may be repeated; default: all")
    parser.add_argument("--repeats", type=int, default=7)
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
    for _ in range(arguments.repeats):  # one repeat of each in turn: what drifts, drifts for all
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
    """What goes wrong with a behaviour's streams, beginning with the exception's name; also the warm-up."""
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
    """µs a chunk of one repeat.

    Of everything from the making of the run to its end, of a body from its first byte to the message that it makes,
    or of the part of each body that lies between beginning and end.
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

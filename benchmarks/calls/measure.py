"""Measurement of the function calls of a server while it streams responses."""

import json
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import uvloop

from benchmarks.gateway import reader_requests
from benchmarks.gateway.connection import Connection, Recording, connect
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.responses import Answer, read_answer
from benchmarks.gateway.servers import OURS, Command, Place, free_port, running_upstream, started

GROUP = 10
"""Tokens that the server receives together in a grouped window."""

_ROOT = Path(__file__).parents[2]
_WAIT_SECONDS = 60  # for a busy machine
_MARGIN_SECONDS = 4.0  # tokens continue for this time after a timed window
_STARTS = 50  # streams that begin per second


@dataclass(frozen=True, slots=True)
class Call:
    """A function on a token's path.

    Attributes:
        depth: The number of Python functions between this function and the event loop.
        file: The file of the function, relative to the package; empty for a C function.
        name: The qualified name of the function.
    """

    depth: int
    file: str
    name: str

    @property
    def is_python(self) -> bool:
        """True for a Python function."""
        return bool(self.file)


@dataclass(frozen=True, slots=True)
class Function:
    """A function, and its calls per token.

    Attributes:
        file: As in `Call`.
        name: As in `Call`.
        calls: The number of calls per token.
    """

    file: str
    name: str
    calls: float


@dataclass(frozen=True, slots=True)
class Window:
    """The calls of a window.

    Attributes:
        streams: Streams that were running.
        group: Tokens that the server received together; 0 for timed streams.
        tokens: Tokens in the window.
        callbacks: Callbacks of the event loop per token.
        functions: All called functions, the most frequent first.
        path: The most frequent path of a token: the calls of each callback of the event loop, in order.
    """

    streams: int
    group: int
    tokens: int
    callbacks: float
    functions: tuple[Function, ...]
    path: tuple[tuple[Call, ...], ...]

    @property
    def python_calls(self) -> float:
        """Calls of Python functions per token."""
        return sum(function.calls for function in self.functions if function.file)

    @property
    def c_calls(self) -> float:
        """Calls of C functions from Python per token."""
        return sum(function.calls for function in self.functions if not function.file)

    @property
    def path_calls(self) -> tuple[int, int]:
        """Return the numbers of Python and C calls on the path."""
        calls = [call for callback in self.path for call in callback]
        python = sum(call.is_python for call in calls)
        return python, len(calls) - python

    @property
    def files(self) -> list[str]:
        """Return the files of the functions on the path, in the order of the first call."""
        return list(dict.fromkeys(call.file for callback in self.path for call in callback if call.is_python))


@dataclass(frozen=True, slots=True)
class TurnCalls:
    """The calls of one turn from the request to the first text, on a server that is otherwise idle.

    Attributes:
        python_calls: Calls of Python functions.
        c_calls: Calls of C functions from Python.
    """

    python_calls: float
    c_calls: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """The windows of a run, with the same number of streams in three modes.

    Attributes:
        paced: Each stream receives its tokens at fixed times. A busy machine merges more tokens, which lowers the figures.
        grouped: The server receives ``GROUP`` tokens of as many streams together.
        alone: The server receives one token at a time.
        turn: A turn until its first text.
    """

    paced: Window
    grouped: Window
    alone: Window
    turn: TurnCalls


def measure(
    streams: int = 50, rate: int = 50, tokens: int = 2500, python: str = sys.executable, seed: int = 0
) -> Measurement:
    """Count the calls of a server with an SQLite store, and with one JSON-RPC subscriber per stream.

    Args:
        streams: Concurrent streams.
        rate: Tokens per second of each paced stream.
        tokens: Tokens in each window.
        python: The interpreter of the environment whose tailrace is measured.
        seed: Seed of the moments at which paced streams begin.

    Raises:
        RuntimeError: The server did not start, a stream was incomplete, or nothing was counted.
    """
    with tempfile.TemporaryDirectory(prefix="tailrace-calls-") as folder, ExitStack() as stack:
        place = Path(folder)
        upstream = stack.enter_context(running_upstream(place))
        port = free_port()
        command = _command(Place(port, upstream.port, place, stack), python)
        process = stack.enter_context(started(command, port, place / "log", None))
        run = _Run(_Server(process, port, place), upstream.port, streams, tokens)
        return uvloop.run(run.measure(rate, random.Random(seed)))


def _command(place: Place, python: str) -> Command:
    assert OURS.command is not None
    ours = OURS.command(place)
    arguments = ours.line[ours.line.index("serve") :]
    line = [python, "-m", "benchmarks.calls.counter", str(place.folder), *arguments]
    return Command(line, {**ours.environment, "PYTHONPATH": str(_ROOT)})


class _Server:
    """The process of the server."""

    def __init__(self, process: int, port: int, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._windows = 0
        self.port = port

    def start_counting(self) -> None:
        """Begin a window."""
        self._windows += 1
        os.kill(self._process, signal.SIGUSR1)

    async def stop_counting(self) -> dict[str, Any]:
        """End the window, and return its counts."""
        file = self._folder / f"window-{self._windows}.json"
        os.kill(self._process, signal.SIGUSR2)
        await _until(file.exists, f"the server did not write {file.name}")
        return json.loads(file.read_bytes())

    async def halt(self) -> None:
        """Stop the process when it is idle. `go` continues the process."""
        await _until(lambda: self._state() == "S", "the server is never idle")
        os.kill(self._process, signal.SIGSTOP)
        await _until(lambda: self._state() == "T", "the server does not stop")

    def go(self) -> None:
        """Continue the process."""
        os.kill(self._process, signal.SIGCONT)

    def _state(self) -> str:
        """Return the state of the main thread."""
        stat = Path(f"/proc/{self._process}/task/{self._process}/stat").read_text(encoding="ascii")
        return stat.rpartition(")")[2].split()[0]


async def _until(condition: Callable[[], bool], failure: str) -> None:
    until = time.monotonic() + _WAIT_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(failure)
        await anyio.sleep(0.0005)


class _Run:
    """The windows of one server."""

    def __init__(self, server: _Server, upstream: int, streams: int, tokens: int) -> None:
        self._server = server
        self._upstream = upstream
        self._streams = streams
        self._tokens = tokens

    async def measure(self, rate: int, chance: random.Random) -> Measurement:
        """Count in each of the three modes."""
        async with self._connections() as connections:
            for connection in connections[:4]:
                await connection.ask(reader_requests.start(reader_requests.A2A, Plan(20)))
        paced = await self._paced(rate, chance)
        grouped, alone = await self._stepped(min(GROUP, self._streams)), await self._stepped(1)
        return Measurement(paced, grouped, alone, await self._turn())

    @asynccontextmanager
    async def _connections(self) -> AsyncGenerator[list[Connection]]:
        found = [await connect(self._server.port) for _ in range(self._streams)]
        try:
            yield found
        finally:
            for connection in found:
                connection.close()

    async def _paced(self, rate: int, chance: random.Random) -> Window:
        """Count while all streams are running."""
        seconds = self._tokens / (self._streams * rate)
        plan = Plan(math.ceil(rate * (self._streams / _STARTS + seconds + _MARGIN_SECONDS)), rate=rate)
        async with self._connections() as connections:
            pending: list[Awaitable[Recording]] = []
            begun = time.monotonic()
            for number, connection in enumerate(connections):
                due = begun + (number + chance.random()) / _STARTS
                await anyio.sleep(max(0.0, due - time.monotonic()))
                pending.append(connection.ask(reader_requests.start(reader_requests.A2A, plan)))
            for connection in connections:
                await connection.seen(b"0@")
            self._server.start_counting()
            await anyio.sleep(seconds)
            found = await self._server.stop_counting()
            answers = await _complete(pending, plan)
        if min(answer.arrivals[-1][0] for answer in answers) < found["ended_ns"]:
            raise RuntimeError("a stream ended before the window did")
        tokens = sum(len(answer.latencies(found["begun_ns"], found["ended_ns"])) for answer in answers)
        return self._window(found, tokens, 0)

    async def _stepped(self, group: int) -> Window:
        """Count tokens that the provider sends while the server is stopped."""
        steps = self._tokens // group
        plan = Plan(2 + math.ceil(steps * group / self._streams) + group, hold=1)
        async with self._connections() as connections:
            upstream = await connect(self._upstream)
            pending = [
                connection.ask(reader_requests.start(reader_requests.A2A, plan)) for connection in connections
            ]
            for connection in connections:
                await connection.seen(b"artifactUpdate")
            self._server.start_counting()
            for _ in range(steps):
                await self._server.halt()
                before = _reads(connections)
                await upstream.ask(reader_requests.step(group))
                self._server.go()
                await _until(
                    lambda before=before: _reads(connections) >= before + group, "a token was not delivered"
                )
            found = await self._server.stop_counting()
            await upstream.ask(reader_requests.release())
            upstream.close()
            await _complete(pending, plan)
        return self._window(found, steps * group, group)

    async def _turn(self) -> TurnCalls:
        """Count while streams begin one after the other. Each waits for the first text of the one before."""
        plan = Plan(2, hold=1)
        async with self._connections() as connections:
            upstream = await connect(self._upstream)
            pending: list[Awaitable[Recording]] = []
            self._server.start_counting()
            for connection in connections:
                pending.append(connection.ask(reader_requests.start(reader_requests.A2A, plan)))
                await connection.seen(b"artifactUpdate")
            found = await self._server.stop_counting()
            await upstream.ask(reader_requests.release())
            upstream.close()
            await _complete(pending, plan)
        calls = dict.fromkeys((True, False), 0)
        for file, _, times in found["calls"]:
            calls[bool(file)] += times
        return TurnCalls(calls[True] / self._streams, calls[False] / self._streams)

    def _window(self, found: dict[str, Any], tokens: int, group: int) -> Window:
        if not tokens or not found["path"]:
            raise RuntimeError("no token was counted")
        return Window(
            self._streams,
            group,
            tokens,
            callbacks=found["callbacks"] / tokens,
            functions=tuple(Function(file, name, calls / tokens) for file, name, calls in found["calls"]),
            path=tuple(tuple(Call(*call) for call in callback) for callback in found["path"]),
        )


def _reads(connections: Sequence[Connection]) -> int:
    return sum(len(connection.recording.reads) for connection in connections)


async def _complete(pending: Sequence[Awaitable[Recording]], plan: Plan) -> list[Answer]:
    answers = [read_answer(await each, reader_requests.A2A) for each in pending]
    if any(not answer.is_whole(plan) for answer in answers):
        failures = {answer.failure or "text is missing" for answer in answers}
        raise RuntimeError(f"a stream was not complete: {', '.join(failures)}")
    return answers

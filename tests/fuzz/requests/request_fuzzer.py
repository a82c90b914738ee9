"""Send mutated calls to a running server for a given time and write down each fault.

Invariants: no status of 5xx; no traceback and no error in the log; strict JSON; a response within seconds; no
event-loop lag above 50 ms; no growth of memory by more than 50 MB, by one call that is refused or by all of a run; no
stream and no task left open.

Other processes on the machine delay the loop as well. Lag is therefore CPU time of the server's process, and a call that
exceeds the bound is repeated three times, alone: the smallest figure counts.
"""

import argparse
import json
import math
import re
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import anyio

from fuzz.requests.calls import Call
from fuzz.requests.cases import MOST_BYTES, Case
from fuzz.requests.seeds import seeds
from fuzz.requests.target import (
    LARGE,
    LAST_CONTEXT,
    MAX_RESPONSE,
    MOST_GROWTH,
    Answer,
    Target,
    running_model,
    running_target,
)
from tailrace.server.store.store import MAX_CONVERSATION_BYTES
from tailrace.wrappers import SSEDecoder

MOST_LAG = 0.05
"""Seconds."""

_PREPARE_EVERY = 300  # calls; some cancel the tasks or delete the configs that others use
_WARM_UP = 300  # calls, after which a server's buffers and caches have their final size; later growth counts
_GRPC_FAULTS = {2: "UNKNOWN", 13: "INTERNAL", 15: "DATA_LOSS"}
# The scripted model's response does not fit every schema that a caller may request.
_FAILED_BEHIND = re.compile(rb'"type":"(agent_error|upstream_error)"')
_LEFT_OVER = 15  # asyncio tasks above the number after the preparation


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: The kind: ``status``, ``log``, ``json``, ``size``, ``hang``, ``lag``, ``memory`` or ``leftover``.
        where: The name of the seed.
        detail: The observation.
        figure: Seconds or bytes, for faults that are measured.
    """

    kind: str
    where: str
    detail: str
    figure: float = 0.0


def fault_of(where: str, call: Call, answer: Answer) -> Fault | None:
    """Return the fault of a response, except for suspects that need confirmation; None without one."""
    if answer.log:
        return Fault("log", where, answer.log)
    if call.is_grpc and answer.status in _GRPC_FAULTS:
        return Fault("status", where, f"{_GRPC_FAULTS[answer.status]}: {answer.body[:1000]!r}")
    if not call.is_grpc and answer.status >= 500 and not _FAILED_BEHIND.search(answer.body):
        return Fault("status", where, f"{answer.status}: {answer.body[:1000]!r}")
    if len(answer.body) >= MAX_RESPONSE:
        return Fault("size", where, f"a response of more than {MAX_RESPONSE / 1e6:.0f} MB")
    if wrong := _unreadable(answer):
        return Fault("json", where, wrong)
    return None


def suspect_of(where: str, answer: Answer, most_lag: float = MOST_LAG) -> Fault | None:
    """Return a possible fault of a response that needs confirmation; None without one."""
    if answer.hung:
        return Fault("hang", where, "no response in time", answer.lag)
    if answer.lag > most_lag:
        return Fault("lag", where, _lag_detail(answer), answer.lag)
    refused = 400 <= answer.status < 500
    if refused and answer.rss - answer.rss_before > MOST_GROWTH:
        grown = answer.rss - answer.rss_before
        return Fault("memory", where, f"{grown / 1e6:.0f} MB more after a refused call", grown)
    return None


def _lag_detail(answer: Answer) -> str:
    spent = f"{answer.lag * 1000:.0f} ms ({answer.own * 1000:.0f} ms in the event loop's thread"
    hold = f"longest hold of the interpreter's lock {answer.hold * 1000:.0f} ms)"
    return "\n  ".join((f"{spent}, {hold}", *answer.stacks))


def _unreadable(answer: Answer) -> str:
    try:
        if answer.media_type == "application/json" and answer.body:
            _strict(answer.body.decode())
        elif answer.media_type == "text/event-stream":
            for event in SSEDecoder().feed(answer.body):
                if event.data != b"[DONE]":
                    _strict(event.data.decode())
    except ValueError as error:
        return f"{answer.media_type}: {error}: {answer.body[:300]!r}"
    except RecursionError:
        return ""  # deeper than this parser's limit
    return ""


def _strict(text: str) -> None:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    json.loads(text, parse_constant=refuse)


class Hunt:
    """Sends calls to one server after the other and finds faults.

    Args:
        folder: The folder of the servers' databases and logs.
        model_url: The address of the model.
        most_lag: The bound on lag in seconds.

    Attributes:
        calls: The number of calls.
        worst: The worst lag that was confirmed or needed no confirmation, in seconds.
        worst_where: The seed of that call.
        worst_own: The most CPU time of the event loop's own thread during one lag, in seconds.
        worst_own_where: The seed of that call.
        growth: The growth of memory of the last server, in bytes, after unused memory was given back.
    """

    def __init__(self, folder: Path, model_url: str, *, most_lag: float = MOST_LAG) -> None:
        self.calls = 0
        self.worst = 0.0
        self.worst_where = ""
        self.worst_own = 0.0
        self.worst_own_where = ""
        self.growth = 0
        self._folder = folder
        self._model_url = model_url
        self._most_lag = most_lag
        self._servers = 0
        self._known: set[tuple[str, str]] = set()
        self._stack = AsyncExitStack()
        self._target: Target | None = None
        self._base_rss = self._base_tasks = 0
        self._since = 0

    async def target(self) -> Target:
        """The server; started if none is running."""
        if self._target is None:
            self._servers += 1
            folder = self._folder / f"server-{self._servers}"
            self._target = await self._stack.enter_async_context(running_target(folder, self._model_url))
            for seed in seeds():  # the first call loads modules and fills caches, which is not growth
                await self._target.call(seed.call)
            self._base_tasks = (await self._target.state(trim=True))["tasks"]
            self._base_rss, self._since = self._target.rss, 0
        return self._target

    async def restart(self) -> None:
        """Stop the server; the next call starts another one."""
        self._target = None
        await self._stack.aclose()

    async def close(self) -> Fault | None:
        """Stop the server and check for leftovers."""
        fault: Fault | None = None
        if self._target is not None:
            with anyio.move_on_after(
                10
            ):  # streams end when the server detects that their client has disconnected
                while (  # noqa: ASYNC110 — the server is another process
                    await self._target.state(trim=True)
                )["tasks"] > self._base_tasks + _LEFT_OVER:
                    await anyio.sleep(0.5)
            self.growth = self._target.rss - self._base_rss
            if open := await self._target.open_streams():
                fault = Fault("leftover", "all calls", f"{open:g} streams, tasks or calls to the model")
            elif (state := await self._target.state())["tasks"] > self._base_tasks + _LEFT_OVER:
                fault = Fault(
                    "leftover", "all calls", f"{state['tasks']} asyncio tasks, {self._base_tasks} before"
                )
            elif self._since >= 2 * _WARM_UP and self.growth > MOST_GROWTH:
                detail = f"{self.growth / 1e6:.0f} MB more after {self._since} calls"
                fault = Fault("memory", "all calls", detail, self.growth)
        await self.restart()
        return fault

    async def attempt(self, where: str, call: Call) -> Fault | None:
        """Send a call; return its fault if it is confirmed and new."""
        target = await self.target()
        if self._since and self._since % _PREPARE_EVERY == 0:
            await target.prepare()
        if self._since == _WARM_UP:
            await target.state(trim=True)
            self._base_rss = target.rss
        self._since += 1
        self.calls += 1
        answer = await target.call(call)
        fault = fault_of(where, call, answer)
        suspect = suspect_of(where, answer, self._most_lag)
        if fault is None and suspect is not None and (suspect.kind, where) not in self._known:
            fault = await self._confirmed(suspect, call)
        elif suspect is None:
            self._record(where, answer.lag, answer.own)
        if answer.hung:
            await self.restart()
        elif (
            fault is None
            and answer.status in (0, 200)
            and len(call.body) > LARGE
            and LAST_CONTEXT in target.values
        ):
            where = f"{where}, then a short message in the same conversation"
            follow_up = target.follow_up()
            suspect = suspect_of(where, await target.call(follow_up), self._most_lag)
            if suspect is not None and (suspect.kind, where) not in self._known:
                fault = await self._confirmed(suspect, follow_up)
        if fault is None or (fault.kind, where) in self._known:
            return None
        self._known.add((fault.kind, where))
        return fault

    async def _confirmed(self, suspect: Fault, call: Call) -> Fault | None:
        """Return the suspect with the smallest figure of three more calls if each exceeds the bound."""
        figure, own = suspect.figure, math.inf
        for _ in range(3):
            if suspect.kind in ("hang", "memory"):
                await self.restart()  # retained memory is not allocated again
            answer = await (await self.target()).call(call)
            again = suspect_of(suspect.where, answer, self._most_lag)
            if again is None or again.kind not in (suspect.kind, "hang"):
                return None
            own = min(own, answer.own)
            if again.figure < figure or not suspect.detail:
                suspect, figure = again, again.figure
        if suspect.kind == "lag":
            self._record(suspect.where, figure, own)
        return suspect

    def _record(self, where: str, lag: float, own: float) -> None:
        """Keep the worst figures."""
        if lag > self.worst:
            self.worst, self.worst_where = lag, where
        if own > self.worst_own:
            self.worst_own, self.worst_own_where = own, where

    async def attempt_full_conversation(self) -> Fault | None:
        """Fill a conversation up to what a turn loads, and send a short message in it; return its fault."""
        target = await self.target()
        await target.fill_conversation(MAX_CONVERSATION_BYTES)
        follow_up = target.follow_up()
        self.calls += 1
        where = "a short message in a conversation of the maximum size"
        answer = await target.call(follow_up)
        suspect = suspect_of(where, answer, self._most_lag)
        if suspect is None:
            self._record(where, answer.lag, answer.own)
        return await self._confirmed(suspect, follow_up) if suspect is not None else None

    async def smallest(self, case: Case, fault: Fault) -> Case:
        """Return the case without the steps that the fault does not need."""
        best = case
        for step in case.steps:
            fewer = Case(best.seed, tuple(each for each in best.steps if each is not step), best.most_bytes)
            self._known.discard((fault.kind, fault.where))
            found = await self.attempt(fault.where, fewer.build())
            if found is not None and found.kind == fault.kind:
                best = fewer
        self._known.add((fault.kind, fault.where))
        return best


async def hunt(
    seed: str, *, seconds: float, calls: int, findings: Path, most_bytes: int = MOST_BYTES, only: str = ""
) -> int:
    """Find faults and write them down.

    Args:
        seed: The seed of the cases.
        seconds: The time limit by the clock.
        calls: The maximum number of calls.
        findings: The folder of the faults.
        most_bytes: The maximum size of a body.
        only: Part of the name of the seeds to use; all if empty.

    Returns:
        The number of faults.
    """
    rng = Random(seed)
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        async with running_model() as model:
            chase = Hunt(Path(folder), model.base_url)
            until = time.monotonic() + seconds
            if not only:
                fault = await chase.attempt_full_conversation()
                if fault is not None:
                    found += 1
                    print(f"{fault.kind} {fault.where}: {fault.detail}", flush=True)
                await chase.restart()  # the measurements of memory begin without it
            while time.monotonic() < until and chase.calls < calls:
                model.requests.clear()
                case = Case.random(rng, most_bytes=most_bytes)
                where = case.origin.name
                if only not in where:
                    continue
                fault = await chase.attempt(where, case.build())
                if fault is not None:
                    found += 1
                    smaller = await chase.smallest(case, fault) if fault.kind != "hang" else case
                    write_down(fault, smaller, findings)
            fault = await chase.close()
            if fault is not None:
                found += 1
                print(f"{fault.kind} {fault.where}: {fault.detail}")
    print(
        f"{chase.calls} calls, {found} faults, worst lag {chase.worst * 1000:.0f} ms ({chase.worst_where}), CPU time of "
        f"the event loop's thread up to {chase.worst_own * 1000:.0f} ms ({chase.worst_own_where}), memory "
        f"{chase.growth / 1e6:+.0f} MB, seed {seed}"
    )
    return found


def write_down(fault: Fault, case: Case, folder: Path) -> None:
    """Write a fault into a folder, and print it with the command that repeats it."""
    folder.mkdir(parents=True, exist_ok=True)
    call = case.build()
    name = "".join(
        letter if letter.isalnum() or letter in "-." else "-" for letter in f"{fault.kind} {fault.where}"
    )
    file = folder / f"request-{name.strip('-')[:90]}.json"
    file.write_text(call.to_json() + "\n", encoding="utf-8", errors="backslashreplace")
    file.with_suffix(".body").write_bytes(call.body)
    print(
        f"\n{fault.kind} {fault.where}: {fault.detail[:1500]}\nsteps: {', '.join(name for name, _ in case.steps)}"
    )
    print(f"{len(call.body)} bytes: {call.body[:300]!r}")
    print(f"repeat it with: PYTHONPATH=tests python -m fuzz --requests --repeat {file}", flush=True)


async def repeat(file: Path) -> int:
    """Send a recorded call and print the result; return 1 if it shows a fault."""
    text = await anyio.Path(file).read_text(encoding="utf-8")
    call = Call.from_json(text, await anyio.Path(file.with_suffix(".body")).read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        async with running_model() as model:
            chase = Hunt(Path(folder), model.base_url)
            answer = await (await chase.target()).call(call)
            print(f"{answer.status} {answer.media_type} {answer.body[:2000]!r}")
            grown = (answer.rss - answer.rss_before) / 1e6
            print(f"lag {_lag_detail(answer)}\nmemory {grown:+.1f} MB\n{answer.log}")
            fault = fault_of(file.stem, call, answer) or suspect_of(file.stem, answer)
            target = await chase.target()
            if fault is None and LAST_CONTEXT in target.values:
                after = await target.call(target.follow_up())
                print(f"a short message in the same conversation: lag {after.lag * 1000:.1f} ms")
                fault = suspect_of(file.stem, after)
            await chase.restart()
    print(f"{fault.kind}: {fault.detail}" if fault else "no fault")
    return 1 if fault else 0


def main(arguments: list[str]) -> int:
    """Run the command line; the exit code is 1 if a fault was found."""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz --requests", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=20, help="duration (default: 20)")
    parser.add_argument("--calls", type=int, default=10**9, help="maximum number (default: unlimited)")
    parser.add_argument(
        "--seed", default="", help="a run with the same seed repeats its cases (default: random)"
    )
    parser.add_argument("--only", default="", help="part of the names of the endpoints")
    parser.add_argument("--max-bytes", type=int, default=MOST_BYTES, help="maximum size of a body")
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz"), metavar="FOLDER")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="send one recorded call")
    given = parser.parse_args(arguments)
    if given.repeat:
        return anyio.run(repeat, given.repeat)
    seed: str = given.seed or f"{Random().getrandbits(64):x}"
    print(f"seed {seed}, {given.minutes:g} minutes, {len(seeds())} seeds", flush=True)

    async def run() -> int:
        return await hunt(
            seed,
            seconds=given.minutes * 60,
            calls=given.calls,
            findings=given.findings,
            most_bytes=given.max_bytes,
            only=given.only,
        )

    return 1 if anyio.run(run) else 0

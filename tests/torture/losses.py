"""Loss: nodes and Valkey are killed, cut off, stopped and restarted under streams; clients go on at any other node."""

import math
import random
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from torture.clusters import (
    PATIENCE,
    TTL,
    Cluster,
    Followed,
    begin,
    check,
    check_none_is_open,
    cluster,
    read_on,
)
from torture.outcome import Outcome
from torture.serving import until
from torture.upstream import Order

PACES = (0.002, 0.005, 0.01, 0.02)
LONGEST = 2.0  # seconds that an answer takes
LATEST = 1.5  # seconds after which something happens, at the latest
READERS = 2  # of a task, beside its caller
SLACK = 3.0
"""Seconds that a task may go on after its node's time to live: for looking, taking over, and a busy machine."""


async def kills(folder: Path, rng: random.Random, outcome: Outcome, *, rounds: int, streams: int) -> None:
    """``kill -9`` of a node or of Valkey, and a new start.

    Args:
        folder: For the logs.
        rng: Decides what is killed, and when.
        outcome: Takes what comes of it.
        rounds: How often.
        streams: Under way at a kill.
    """
    latest = 0.0
    of_valkey = restarted = cut = tasks = refusals = 0
    async with cluster(folder) as nodes:
        for number in range(rounds):
            victim = rng.choice((0, 1, 2, None)) if number else None
            restarts = rng.random() < 0.3
            async with _streams(nodes, rng, outcome, f"k{number}", streams) as everyone:
                await anyio.sleep(rng.random() * LATEST)  # at any moment: that is the point
                killed_at = time.monotonic()
                if victim is None:
                    of_valkey += 1
                    await anyio.to_thread.run_sync(nodes.valkey.kill)
                    await anyio.sleep(rng.random() * LATEST)
                    await anyio.to_thread.run_sync(nodes.valkey.start)
                else:
                    nodes.kill(victim)
                    await nodes.start(victim, on_orphan="restart" if restarts else "fail")
            if victim is not None:
                latest = max([latest, *(each.ended_at - killed_at for each in everyone if each.is_cut)])
            states = [each.caller.state for each in everyone]
            cut += states.count("TASK_STATE_FAILED")
            restarted += restarts
            tasks += len(everyone)
            refusals += sum(each.refusals for each in everyone)
            # A node finds out after a moment that Valkey is back; whoever reads until then is told to come again.
            await _until_well(nodes, outcome, f"after kill {number}")
            await check(nodes, everyone, outcome)
            await check_none_is_open(nodes, outcome)
            outcome.rounds += 1
    outcome.figures.append(
        f"{rounds} kills ({of_valkey} of Valkey) under {tasks} tasks, 3 readers each: {cut} tasks ended failed, "
        f"{refusals} times told to try again; a task of a killed node was over within {latest:.1f} s (ttl {TTL:g})"
    )
    outcome.check(cut > 0 or rounds < 5, "no kill met a task")


async def cuts(folder: Path, rng: random.Random, outcome: Outcome, *, rounds: int, streams: int) -> None:
    """A node is cut off from Valkey, or from PostgreSQL as well, silently or by resets; or it hangs, and goes on.

    Args:
        folder: For the logs.
        rng: Decides which, and for how long.
        outcome: Takes what comes of it.
        rounds: How often.
        streams: Under way at a cut.
    """
    kinds = ["silence", "reset", "hang", "silence everywhere", "reset everywhere"]
    done = dict.fromkeys(kinds, 0)
    failed = tasks = 0
    async with cluster(folder, proxies=True) as nodes:
        for number in range(rounds):
            kind, index = kinds[number % len(kinds)], rng.randrange(3)
            seconds = 2 * TTL if "everywhere" in kind or kind == "hang" else rng.uniform(0.5, 2 * TTL)
            async with _streams(nodes, rng, outcome, f"c{number}", streams) as everyone:
                await anyio.sleep(rng.random() * LATEST / 2)
                await _trouble(nodes, kind, index, seconds)
            await _until_well(nodes, outcome, f"after {kind}")
            await check(nodes, everyone, outcome)
            await check_none_is_open(nodes, outcome)
            failed += sum(each.caller.state == "TASK_STATE_FAILED" for each in everyone)
            tasks += len(everyone)
            done[kind] += 1
            outcome.rounds += 1
    told = ", ".join(f"{count} {kind}" for kind, count in done.items() if count)
    outcome.figures.append(
        f"cuts: {told}; {tasks} tasks, each with one end and the same events at all nodes ({failed} failed)"
    )


async def _trouble(nodes: Cluster, kind: str, index: int, seconds: float) -> None:
    if kind == "hang":
        nodes.pause(index)
        await anyio.sleep(seconds)
        nodes.go_on(index)
        return
    proxies = [nodes.to_valkey[index]]
    if "everywhere" in kind:
        proxies.append(nodes.to_postgres[index])
    for proxy in proxies:
        if kind.startswith("silence"):
            proxy.hold()
        else:
            proxy.refuse()
    await anyio.sleep(seconds)
    for proxy in proxies:
        proxy.heal()


async def _until_well(nodes: Cluster, outcome: Outcome, key: str) -> None:
    """Until every node does its work again, without being started again."""
    for url in nodes.urls:

        async def answers(url: str = url) -> bool:
            async with nodes.http.get(url + "/readyz") as response:
                if response.status != 200:
                    return False
            followed = Followed(Order(f"{key} {time.monotonic_ns()}", pieces=3), 0)
            with anyio.move_on_after(5):
                await begin(nodes, followed, url)
            return bool(followed.task_id)

        outcome.check(await until(answers, 30), f"{key}: a node does not work any more")


async def rolling(folder: Path, rng: random.Random, outcome: Outcome, *, streams: int) -> None:
    """SIGTERM to each node in turn, and a new start, while streams come and go.

    Args:
        folder: For the logs.
        rng: Decides who is asked.
        outcome: Takes what comes of it.
        streams: Begun for each node that is stopped.
    """
    everyone: list[_Watched] = []
    statuses: list[int] = []
    stops: list[float] = []
    async with cluster(folder, shutdown_grace=5) as nodes:
        for index in range(3):
            async with _streams(nodes, rng, outcome, f"r{index}", streams) as some:
                await anyio.sleep(rng.random() * LATEST / 2)
                begun = time.monotonic()
                async with _streams(nodes, rng, outcome, f"r{index}late", streams) as late:
                    statuses.append(await nodes.stop(index))
                stops.append(time.monotonic() - begun)
                await nodes.start(index)
            everyone += [*some, *late]
        await check(nodes, everyone, outcome)
        await check_none_is_open(nodes, outcome)
        outcome.rounds += 3
    failed = sum(each.caller.state == "TASK_STATE_FAILED" for each in everyone)
    outcome.check(not failed, f"{failed} tasks failed, though their nodes had time to end them")
    outcome.check(statuses == [0, 0, 0], f"exit statuses {statuses}")
    outcome.figures.append(
        f"rolling restart: {len(everyone)} tasks, {failed} failed; a node was gone after {max(stops):.1f} s at most"
    )


class _Watched(Followed):
    """A task of which it is known when it was over, and whether its node was killed."""

    ended_at = -math.inf

    @property
    def is_cut(self) -> bool:
        return self.caller.state == "TASK_STATE_FAILED"


@asynccontextmanager
async def _streams(
    nodes: Cluster, rng: random.Random, outcome: Outcome, key: str, count: int
) -> AsyncGenerator[list[_Watched]]:
    """Begin streams on all nodes; when the block is left, wait until all were read to their end.

    Those that nobody was shown anything of are not among them in the end.
    """
    everyone: list[_Watched] = []
    for number in range(count):
        pace = rng.choice(PACES)
        pieces = 1 + int(rng.uniform(0.2, 1) * LONGEST / pace)
        everyone.append(_Watched(Order(f"{key}s{number}", pieces=pieces, pace=pace), READERS))

    async def watch(followed: _Watched, url: str) -> None:
        await begin(nodes, followed, url)
        if not followed.task_id:
            return
        async with anyio.create_task_group() as group:
            for seen in followed.readers:
                group.start_soon(read_on, nodes, followed, seen, rng, outcome)
        followed.ended_at = time.monotonic()

    async with anyio.create_task_group() as group:
        for number, each in enumerate(everyone):
            group.start_soon(watch, each, nodes.urls[number % len(nodes.urls)])
        yield everyone
        group.cancel_scope.deadline = anyio.current_time() + 2 * PATIENCE
    everyone[:] = [each for each in everyone if each.task_id]

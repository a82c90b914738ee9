"""Loss: nodes and Valkey are killed, partitioned, stopped and restarted under streams; clients resume at any other node."""

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
from torture.server_process import until
from torture.upstream import Order

PACES = (0.002, 0.005, 0.01, 0.02)
LONGEST = 2.0  # seconds that a response takes
LATEST = 1.5  # seconds after which a fault happens at the latest
READERS = 2  # readers of a task besides its caller


async def kills(folder: Path, rng: random.Random, outcome: Outcome, *, rounds: int, streams: int) -> None:
    """``kill -9`` and restart of a node or of Valkey.

    Args:
        folder: The folder for logs.
        rng: Chooses the target and the moment.
        outcome: Receives the results.
        rounds: The number of rounds.
        streams: The number of concurrent streams at a kill.
    """
    latest = 0.0
    of_valkey = restarted = cut = tasks = refusals = 0
    async with cluster(folder) as nodes:
        for number in range(rounds):
            victim = rng.choice((0, 1, 2, None)) if number else None
            restarts = rng.random() < 0.3
            async with running_streams(nodes, rng, outcome, f"k{number}", streams) as everyone:
                await anyio.sleep(rng.random() * LATEST)  # at a random moment
                killed_at = time.monotonic()
                if victim is None:
                    of_valkey += 1
                    await anyio.to_thread.run_sync(nodes.valkey.kill)
                    await anyio.sleep(rng.random() * LATEST)
                    await anyio.to_thread.run_sync(nodes.valkey.start)
                else:
                    nodes.kill(victim)
                    await nodes.start(victim, on_crash="restart" if restarts else "fail")
            if victim is not None:
                latest = max([latest, *(each.ended_at - killed_at for each in everyone if each.is_cut)])
            states = [each.caller.state for each in everyone]
            cut += states.count("TASK_STATE_FAILED")
            restarted += restarts
            tasks += len(everyone)
            refusals += sum(each.refusals for each in everyone)
            # A node detects after a moment that Valkey is back; until then its readers receive the error to try again.
            await _until_well(nodes, outcome, f"after kill {number}")
            await check(nodes, everyone, outcome)
            await check_none_is_open(nodes, outcome)
            outcome.rounds += 1
    outcome.figures.append(
        f"{rounds} kills ({of_valkey} of Valkey) under {tasks} tasks, 3 readers each: {cut} tasks ended failed, "
        f"{refusals} errors to try again; a task of a killed node ended within {latest:.1f} s (ttl {TTL:g})"
    )
    outcome.check(cut > 0 or rounds < 5, "no kill hit a running task")


async def cuts(folder: Path, rng: random.Random, outcome: Outcome, *, rounds: int, streams: int) -> None:
    """Partition a node from Valkey, or from PostgreSQL as well, silently or by resets; or suspend and resume it.

    Args:
        folder: The folder for logs.
        rng: Chooses the fault and its duration.
        outcome: Receives the results.
        rounds: The number of rounds.
        streams: The number of concurrent streams at a partition.
    """
    kinds = ["silence", "reset", "hang", "silence everywhere", "reset everywhere"]
    done = dict.fromkeys(kinds, 0)
    failed = tasks = 0
    async with cluster(folder, proxies=True) as nodes:
        for number in range(rounds):
            kind, index = kinds[number % len(kinds)], rng.randrange(3)
            seconds = 2 * TTL if "everywhere" in kind or kind == "hang" else rng.uniform(0.5, 2 * TTL)
            async with running_streams(nodes, rng, outcome, f"c{number}", streams) as everyone:
                await anyio.sleep(rng.random() * LATEST / 2)
                await _trouble(nodes, kind, index, seconds)
            await _until_well(nodes, outcome, f"after {kind}")
            await check(nodes, everyone, outcome)
            await check_none_is_open(nodes, outcome)
            failed += sum(each.caller.state == "TASK_STATE_FAILED" for each in everyone)
            tasks += len(everyone)
            done[kind] += 1
            outcome.rounds += 1
    counts = ", ".join(f"{count} {kind}" for kind, count in done.items() if count)
    outcome.figures.append(
        f"cuts: {counts}; {tasks} tasks, each with one end and the same events at all nodes ({failed} failed)"
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
    """Wait until every node works again without a restart."""
    for url in nodes.urls:

        async def answers(url: str = url) -> bool:
            async with nodes.http.get(url + "/readyz") as response:
                if response.status != 200:
                    return False
            followed = Followed(Order(f"{key} {time.monotonic_ns()}", pieces=3), 0)
            with anyio.move_on_after(5):
                await begin(nodes, followed, url)
            return bool(followed.task_id)

        outcome.check(await until(answers, 30), f"{key}: a node no longer works")


async def rolling(folder: Path, rng: random.Random, outcome: Outcome, *, streams: int) -> None:
    """Restart each node in turn with SIGTERM while streams start and end.

    Args:
        folder: The folder for logs.
        rng: Chooses the nodes.
        outcome: Receives the results.
        streams: The number of streams started for each stopped node.
    """
    everyone: list[Watched] = []
    statuses: list[int] = []
    stops: list[float] = []
    async with cluster(folder, shutdown_grace=5) as nodes:
        for index in range(3):
            async with running_streams(nodes, rng, outcome, f"r{index}", streams) as some:
                await anyio.sleep(rng.random() * LATEST / 2)
                begun = time.monotonic()
                async with running_streams(nodes, rng, outcome, f"r{index}late", streams) as late:
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


class Watched(Followed):
    """A task with its node, the time of its end, and whether its node was killed.

    Attributes:
        url: The node that the message was sent to.
        ended_at: The time of the end on the monotonic clock.
    """

    url = ""
    ended_at = -math.inf

    @property
    def is_cut(self) -> bool:
        return self.caller.state == "TASK_STATE_FAILED"


@asynccontextmanager
async def running_streams(
    nodes: Cluster, rng: random.Random, outcome: Outcome, key: str, count: int
) -> AsyncGenerator[list[Watched]]:
    """Start streams on all nodes; when the block ends, wait until all were read to their end.

    Streams without a published event are removed at the end.
    """
    everyone: list[Watched] = []
    for number in range(count):
        pace = rng.choice(PACES)
        pieces = 1 + int(rng.uniform(0.2, 1) * LONGEST / pace)
        everyone.append(Watched(Order(f"{key}s{number}", pieces=pieces, pace=pace), READERS))

    async def watch(followed: Watched, url: str) -> None:
        followed.url = url
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

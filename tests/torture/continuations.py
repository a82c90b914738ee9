"""Continue: responses are interrupted by cuts of the provider's stream, and by ``kill -9`` of the server or of a node.

Each response is completed. The text is the provider's, whether it was attached to, continued by prefill, or openly replaced.
"""

import random
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic

import anyio

from support.continuing import FORMAT_OF
from support.cut_responses import cut_response
from torture import kills as server_kills
from torture.clusters import TTL, Cluster, check, check_none_is_open, cluster
from torture.node_losses import LATEST, Watched, running_streams
from torture.outcome import Outcome
from torture.server_process import server
from torture.stream_client import Seen, call
from torture.upstream import upstream

SLACK = 3.0
"""Seconds from the earliest possible takeover (a server's start, the end of a node's time to live) to the continuation."""

CONCURRENT_CUTS = 4

ROUTES = ("attach", "prefill", "replace")
"""The routes after a kill."""


async def run(
    folder: Path,
    rng: random.Random,
    *,
    cuts: int = 1_000,
    kills: int = 100,
    node_kills: int = 100,
    streams: int = 15,
    timed: bool = True,
) -> Outcome:
    """Interrupt responses.

    Args:
        folder: For databases and logs.
        rng: Chooses texts, bytes, failures and moments.
        cuts: Cuts of a provider's stream, in equal parts for each format.
        kills: Kills of the only server, in equal parts for each route.
        node_kills: Kills of one of three nodes.
        streams: Concurrent streams at a kill.
        timed: Whether durations are checked.
    """
    outcome = Outcome("continue")
    await cut_streams(rng, outcome, cuts)
    for route in ROUTES if kills else ():
        await kill_server(folder / route, rng, outcome, route, kills // 3, streams, timed=timed)
    for route in ROUTES if node_kills else ():
        await kill_nodes(
            folder / f"nodes-{route}", rng, outcome, route, node_kills // 3, streams, timed=timed
        )
    return outcome


async def cut_streams(rng: random.Random, outcome: Outcome, cuts: int) -> None:
    """Cut responses of the agent, in this process, whose provider is a scripted server."""
    formats = sorted(set(FORMAT_OF.values()))
    counts: Counter[str] = Counter()
    completed = spoiled = calls = 0
    limiter = anyio.Semaphore(CONCURRENT_CUTS)

    async def cut(number: int, seed: int) -> None:
        nonlocal completed, spoiled, calls
        chance = random.Random(seed)
        name = formats[number % len(formats)]
        kind = chance.choice([kind for kind, other in FORMAT_OF.items() if other == name])
        has_call = chance.random() < 0.4
        async with limiter:
            response = await cut_response(kind, chance, call=has_call)
        faults = response.faults()
        for fault in faults:
            outcome.check(False, fault)
        completed += not faults
        calls += has_call
        counts[response.route or "finished before the cut"] += 1
        lost, repeated = _difference(response.expected_text, response.text)
        outcome.lost += lost
        outcome.repeated += repeated
        spoiled += lost + repeated
        outcome.rounds += 1

    # The first response of each format imports its client, which blocks the event loop of all others.
    for number in range(min(cuts, len(formats))):
        await cut(number, rng.getrandbits(32))
    async with anyio.create_task_group() as group:
        for number in range(len(formats), cuts):
            group.start_soon(cut, number, rng.getrandbits(32))
    routes = ", ".join(f"{count} {route}" for route, count in sorted(counts.items()))
    outcome.figures.append(
        f"{cuts} cuts of {len(formats)} formats, {calls} of them with a tool call ({routes}): {completed} completed as "
        f"required, {spoiled} characters lost or repeated"
    )


def _difference(expected: str, text: str) -> tuple[int, int]:
    """The numbers of lost and of repeated characters."""
    if text == expected:
        return 0, 0
    changes = [
        each
        for each in SequenceMatcher(None, expected, text, autojunk=False).get_opcodes()
        if each[0] != "equal"
    ]
    return sum(to - at for _, at, to, _, _ in changes), sum(to - at for _, _, _, at, to in changes)


async def kill_server(
    folder: Path,
    rng: random.Random,
    outcome: Outcome,
    route: str,
    kills: int,
    streams: int,
    *,
    timed: bool,
) -> None:
    """Kill the only server under streams, and start another one on the same store.

    The provider that holds responses, to which a server attaches again, is another server of tailrace.
    """
    await anyio.Path(folder).mkdir(parents=True)
    with upstream() as provider:
        rounds = partial(
            server_kills.rounds, folder, rng, outcome, kills=kills, streams=streams, continues=lambda _: True
        )
        if route == "attach":
            holder = folder / "holder"
            await anyio.Path(holder).mkdir()
            async with server(holder, provider.base_url, {}) as process:
                everyone = await rounds(
                    f"{process.url}/v1", model="openai-responses:t", upstream_background=True
                )
        else:
            everyone = await rounds(provider.prefill_url if route == "prefill" else provider.base_url)
    delays = [each.seen.continued_at - each.resumed_at for each in everyone if each.seen.routes]
    incomplete = sum(each.seen.state != "TASK_STATE_COMPLETED" for each in everyone)
    outcome.check(not incomplete, f"{incomplete} responses of a killed server are incomplete")
    counts = _check_routes(outcome, route, [each.seen for each in everyone])
    _check_delays(outcome, f"{kills} kills of a server: {counts}, after its start", delays, timed=timed)


async def kill_nodes(
    folder: Path,
    rng: random.Random,
    outcome: Outcome,
    route: str,
    kills: int,
    streams: int,
    *,
    timed: bool,
) -> None:
    """Kill a random node of three under streams, each with three readers at random nodes, and start it again."""
    delays: list[float] = []
    seen: list[Seen] = []
    settings = {"prefills": route == "prefill", "holds": route == "attach"}
    async with cluster(folder, **settings, on_crash="continue") as nodes:
        for number in range(kills):
            victim = rng.randrange(nodes.size)
            async with running_streams(nodes, rng, outcome, f"n{route}{number}", streams) as everyone:
                await anyio.sleep(rng.random() * LATEST)
                url = nodes.url(victim)
                killed_at = monotonic()
                nodes.kill(victim)
                interrupted = [each for each in everyone if each.url == url and not each.caller.over]
                await nodes.start(victim)
            await check(nodes, everyone, outcome)
            await check_none_is_open(nodes, outcome)
            await _check_completed(nodes, outcome, everyone)
            seen += [each.caller for each in everyone]
            delays += [
                reader.continued_at - killed_at
                for each in interrupted
                for reader in each.readers
                if reader.routes
            ]
            outcome.rounds += 1
    counts = _check_routes(outcome, route, seen)
    _check_delays(
        outcome, f"{kills} kills of a node: {counts}, after the kill (ttl {TTL:g})", delays, TTL, timed=timed
    )


async def _check_completed(nodes: Cluster, outcome: Outcome, everyone: Sequence[Watched]) -> None:
    states = Counter(each.caller.state for each in everyone)
    outcome.check(set(states) <= {"TASK_STATE_COMPLETED"}, f"responses of a killed node: {dict(states)}")
    failed = await call(nodes.http, nodes.urls[0], "ListTasks", {"status": "TASK_STATE_FAILED"})
    outcome.check(not failed["totalSize"], f"{failed['totalSize']} tasks have failed")


def _check_routes(outcome: Outcome, route: str, everyone: Sequence[Seen]) -> str:
    """Check that all responses were continued by a route; return the counts of routes.

    A response without published text has nothing to be continued, and begins again.
    """
    counts = Counter(each for seen in everyone for each in seen.routes)
    outcome.check(counts[route], f"no response was continued by {route}")
    outcome.check(set(counts) <= {route, "replace"}, f"responses were continued by {dict(counts)}")
    return f"{len(everyone)} responses, " + ", ".join(
        f"{count} by {name}" for name, count in sorted(counts.items())
    )


def _check_delays(
    outcome: Outcome, name: str, delays: Sequence[float], ttl: float = 0.0, *, timed: bool
) -> None:
    if outcome.check(delays, f"{name}: nothing was continued"):
        outcome.figures.append(f"{name} within {median(delays):.2f} s (median), {max(delays):.2f} s (max)")
        outcome.check(
            not timed or max(delays) <= ttl + SLACK,
            f"{name}: {max(delays):.2f} s, more than {ttl + SLACK:g} s",
        )

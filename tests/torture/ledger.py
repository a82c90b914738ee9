"""The ledger: clients leave, providers cut their streams, and nodes are killed. It equals what the provider counted.

The provider ends each complete response with a usage that no other response has (`Order.counted`), and records it. Every record of the
ledger is compared with these records, and `GET /usage` with the ledger.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from tailrace.server.settings import Bounds
from torture.clusters import TTL, Cluster, check_none_is_open, cluster
from torture.outcome import Outcome
from torture.stream_client import FINAL, Refused, Seen, call, message, stream
from torture.upstream import Order

LATEST = 1.5  # seconds after which a node is killed at the latest
PACES = (0.0, 0.01, 0.03)
PIECES = 40
_CUTS = ("cut", "reset", "cut-mid-json")


async def run(
    folder: Path, rng: random.Random, *, cuts: int = 200, kills: int = 50, streams: int = 20
) -> Outcome:
    """Kill nodes under responses, some of which the provider cuts, and half of whose clients leave.

    Args:
        folder: For logs.
        rng: Chooses moments, nodes and cuts.
        cuts: Responses that the provider cuts once or twice.
        kills: Kills of a random node of three.
        streams: Concurrent responses.
    """
    outcome = Outcome("ledger")
    bounds = Bounds(node_ttl=TTL, continue_attempts=3, continue_delay=0.05)
    async with cluster(folder, prefills=True, bounds=bounds, on_crash="continue") as nodes:
        orders: list[Order] = []
        uncut = cuts
        for number in range(kills):
            some: list[Order] = []
            for index in range(streams):
                is_cut = rng.random() < uncut / (streams * (kills - number))
                uncut -= is_cut
                some.append(
                    Order(
                        f"u{number}-{index}",
                        pieces=PIECES,
                        pace=rng.choice(PACES),
                        counted=True,
                        fault=rng.choice(_CUTS) if is_cut else "",
                        after=rng.randrange(1, PIECES),
                        refusals=rng.choice((1, 2)),
                    )
                )
            orders += some
            async with anyio.create_task_group() as group:
                for position, order in enumerate(some):
                    group.start_soon(_run, nodes, order, nodes.urls[position % len(nodes.urls)], rng)
                await anyio.sleep(rng.random() * LATEST)
                victim = rng.randrange(nodes.size)
                nodes.kill(victim)
                await nodes.start(victim)
            await check_none_is_open(nodes, outcome)
            outcome.rounds += 1
        await _check(nodes, orders, outcome, cuts - uncut)
    return outcome


async def _run(nodes: Cluster, order: Order, url: str, rng: random.Random) -> None:
    """Send the message and read the response; every second client leaves after some events."""
    leaves_after = rng.randrange(1, PIECES) if rng.random() < 0.5 else None
    try:
        params = message(order, contextId=order.key)
        await stream(nodes.http, url, "SendStreamingMessage", params, Seen(), upto=leaves_after)
    except (Refused, aiohttp.ClientError):
        pass  # the task may exist all the same: `_check` finds it by its context


async def _check(nodes: Cluster, orders: list[Order], outcome: Outcome, cuts: int) -> None:
    """Compare the ledger with the records of the provider, for each task, and `GET /usage` with the ledger."""
    rows = await _rows(nodes)
    states: Counter[str] = Counter()
    counted = Counter[str]()
    for order in orders:
        page = await call(nodes.http, nodes.urls[0], "ListTasks", {"contextId": order.key})
        stats = await nodes.provider.stats(nodes.http, order.key)
        if not page["tasks"]:
            outcome.check(not stats.requests, f"{order.key}: no task, but {stats.requests} requests")
            continue
        [task] = page["tasks"]
        outcome.check(task["status"]["state"] in FINAL, f"{order.key}: {task['status']}")
        own = rows.pop(task["id"], [])
        final = [usage for state, usage in own if state == "final"]
        lost = sum(state == "lost" for state, _ in own)
        states.update(state for state, _ in own)
        outcome.check(len(set(final)) == len(final), f"{order.key}: a response is counted twice: {final}")
        outcome.check(
            set(final) <= set(stats.usages), f"{order.key}: {final}, but the provider sent {stats.usages}"
        )
        # A response that had ended when its node was killed, and that the node had not persisted, is lost.
        missing = len(stats.usages) - len(final)
        outcome.check(missing <= lost, f"{order.key}: {missing} responses are missing, {lost} are lost")
        others = [usage for state, usage in own if state != "final" and usage != (0, 0)]
        outcome.check(not others, f"{order.key}: tokens of responses without a usage: {others}")
        outcome.check(
            stats.requests <= len(own), f"{order.key}: {stats.requests} requests, {len(own)} records"
        )
        counted["provider"] += sum(map(sum, stats.usages))
        counted["ledger"] += sum(map(sum, final))
        counted["lost"] += sum(map(sum, set(stats.usages) - set(final)))
        counted["tasks"] += 1
    outcome.check(not rows, f"records of no task: {list(rows)[:3]}")
    outcome.check(
        counted["ledger"] + counted["lost"] == counted["provider"], f"the sums differ: {dict(counted)}"
    )
    for url in nodes.urls:
        async with nodes.http.get(f"{url}/usage") as response:
            total = (await response.json())["total"]
        tokens = total["input_tokens"] + total["output_tokens"]
        outcome.check(tokens == counted["ledger"], f"{url}/usage: {tokens}, not {counted['ledger']}")
        attempts = total["attempts"]
        outcome.check(attempts == states.total(), f"{url}/usage: {attempts} attempts, not {states.total()}")
    outcome.figures.append(
        f"{counted['tasks']} tasks, {cuts} cut, {outcome.rounds} kills of a node: {counted['provider']} tokens at the "
        f"provider, {counted['ledger']} in the ledger, {counted['lost']} in responses that were lost with their nodes; "
        f"records by state: {dict(sorted(states.items()))}"
    )


async def _rows(nodes: Cluster) -> dict[str, list[tuple[str, tuple[int, int]]]]:
    """Return the records of the ledger, by task: the state, and the tokens."""
    found: dict[str, list[tuple[str, tuple[int, int]]]] = {}
    async with nodes.postgres.connected("nodes") as connection:
        records: list[Any] = await connection.fetch(
            "SELECT task_id, state, input_tokens, output_tokens FROM ledger ORDER BY turn, attempt"
        )
    for record in records:
        tokens = record["input_tokens"], record["output_tokens"]
        found.setdefault(record["task_id"], []).append((record["state"], tokens))
    return found

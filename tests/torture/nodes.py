"""Nodes: three servers with one Valkey and one PostgreSQL under faults. Any of them serves any task."""

import random
from pathlib import Path

from torture import cross_node_calls, deliveries, node_losses
from torture.outcome import Outcome


async def run(
    folder: Path,
    rng: random.Random,
    *,
    streams: int = 100,
    rate: int = 5_000,
    seconds: float = 15.0,
    burst: int = 100_000,
    kills: int = 50,
    cuts: int = 20,
    operations: int = 200,
    under_way: int = 15,
    timed: bool = True,
) -> Outcome:
    """Run all scenarios of nodes.

    Args:
        folder: The folder for logs.
        rng: Chooses faults, nodes and moments.
        streams: The number of concurrent streams during measurements of delivery.
        rate: Events per second of all streams.
        seconds: The duration of measurements.
        burst: Events of a burst.
        kills: Kills of a node or of Valkey.
        cuts: Partitions and suspensions of a node.
        operations: Cancellations, follow-up messages, and webhooks.
        under_way: Concurrent streams at a kill, a partition, a restart.
        timed: Whether durations are checked.
    """
    outcome = Outcome("nodes")
    await deliveries.run(
        folder / "deliveries", outcome, streams=streams, rate=rate, seconds=seconds, burst=burst, timed=timed
    )
    await cross_node_calls.run(folder / "errands", rng, outcome, each=operations, timed=timed)
    await node_losses.kills(folder / "kills", rng, outcome, rounds=kills, streams=under_way)
    await node_losses.cuts(folder / "cuts", rng, outcome, rounds=cuts, streams=under_way)
    await node_losses.rolling(folder / "rolling", rng, outcome, streams=under_way)
    return outcome

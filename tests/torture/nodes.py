"""Nodes: three servers on one Valkey and one PostgreSQL, read, killed, cut off, asked and restarted. Any of them serves any task."""

import random
from pathlib import Path

from torture import deliveries, errands, losses
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
    asked: int = 200,
    under_way: int = 15,
    timed: bool = True,
) -> Outcome:
    """Do all of it, one after the other.

    Args:
        folder: For the logs.
        rng: Decides what happens to whom, and when.
        streams: At a time, where delivery is measured.
        rate: Events a second of all of them.
        seconds: For which.
        burst: Events of a burst.
        kills: Of a node or of Valkey.
        cuts: Of a node from the others, and pauses.
        asked: Cancellations, follow-up messages, and webhooks.
        under_way: Streams at a kill, a cut, a restart.
        timed: How long things take counts, too.
    """
    outcome = Outcome("nodes")
    await deliveries.run(
        folder / "deliveries", outcome, streams=streams, rate=rate, seconds=seconds, burst=burst, timed=timed
    )
    await errands.run(folder / "errands", rng, outcome, each=asked, timed=timed)
    await losses.kills(folder / "kills", rng, outcome, rounds=kills, streams=under_way)
    await losses.cuts(folder / "cuts", rng, outcome, rounds=cuts, streams=under_way)
    await losses.rolling(folder / "rolling", rng, outcome, streams=under_way)
    return outcome

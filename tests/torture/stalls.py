"""Stall: one reader that never reads, beside many that do, in a burst. It delays no other reader and can resume.

The same burst is served alternately with and without the stalled reader; the figure is the ratio of the readers' p99
latency (from the provider's write to the reader's read) of such a pair. The result is the median of the ratios, and
the number of ratios above the bound must be too low to be chance (a sign test), since single ratios vary with the
machine's load.
"""

import math
import random
import statistics
from functools import partial
from pathlib import Path

import aiohttp
import anyio

from support.processes import Served
from tailrace.server.settings import Bounds
from torture.outcome import Outcome
from torture.server_process import server
from torture.stream_client import FINAL, PATIENCE, Seen, Timed, client, message, resume, stored
from torture.upstream import Order, upstream

MAX_GROWTH = 1.10
CHANCE = (
    0.1  # probability of so few ratios above the bound if it were the true one; a higher one is inconclusive
)
LONGEST = 600.0  # duration of a burst in seconds


async def run(
    folder: Path,
    rng: random.Random,
    *,
    events: int = 60_000,
    readers: int = 50,
    repeats: int = 7,
    max_growth: float | None = MAX_GROWTH,
) -> Outcome:
    """Serve bursts with and without a stalled reader.

    Args:
        folder: For the database and the logs.
        rng: Chooses the order of a pair.
        events: The events of a burst.
        readers: The number of other readers.
        repeats: The number of pairs.
        max_growth: The bound on the ratio of the p99; None if it is not measured.
    """
    outcome = Outcome("stall")
    ratios: list[float] = []
    lines: list[float] = []
    lags = 0
    # Every reader must receive all events: one that receives a snapshot finishes much sooner, and the number of those
    # is random.
    settings = {"coalesce": "none", "bounds": Bounds(send_timeout=120, max_lag=2 * events)}
    with upstream() as provider:
        async with server(folder, provider.base_url, settings) as process:
            await _burst(process, Order("warm", pieces=events, stamped=True), readers, False, Outcome("warm"))
            for number in range(repeats):
                p99: dict[bool, float] = {}
                for stalled in rng.sample([False, True], 2):
                    order = Order(f"s{number}{'x' * stalled}", pieces=events, stamped=True)
                    p99[stalled], overviews = await _burst(process, order, readers, stalled, outcome)
                    lags += overviews
                    outcome.rounds += 1
                ratios.append(p99[True] / p99[False])
                lines.append(p99[False])
    ratio = statistics.median(ratios)
    outcome.figures.append(
        f"{readers} readers x {events} events; p99 {statistics.median(lines) * 1e3:.0f} ms, with the stalled one "
        f"x{ratio:.3f} (median of {', '.join(f'{each:.3f}' for each in sorted(ratios))}); {lags} overviews"
    )
    if max_growth is not None:
        outcome.check(
            ratio <= max_growth, f"the readers' p99 grows by {ratio - 1:.1%} beside a stalled reader"
        )
        above = sum(each > max_growth for each in ratios)
        chance = sum(math.comb(repeats, count) for count in range(above + 1)) / 2**repeats
        outcome.check(chance <= CHANCE, f"not measured, the machine is too busy: {above} ratios are above")
    return outcome


async def _burst(
    process: Served, order: Order, readers: int, stalled: bool, outcome: Outcome
) -> tuple[float, int]:
    """Run one burst; return the readers' p99 in seconds and the number of snapshots sent."""
    seen = [Timed() for _ in range(readers)]
    never: aiohttp.ClientResponse | None = None
    async with client() as http, aiohttp.ClientSession(timeout=PATIENCE, read_bufsize=2**10) as lazy:
        async with anyio.create_task_group() as group:
            started = anyio.Event()

            async def begin() -> None:
                body = {
                    "jsonrpc": "2.0",
                    "id": "s",
                    "method": "SendStreamingMessage",
                    "params": message(order),
                }
                async with http.post(process.url + "/", json=body) as response:
                    async for data in response.content.iter_any():
                        seen[0].feed(data)
                        started.set()

            group.start_soon(begin)
            await started.wait()
            for each in seen[1:]:
                each.task_id = seen[0].task_id
                group.start_soon(partial(resume, http, process.url, each, seconds=LONGEST))
            if stalled:
                never = await _subscribe(lazy, process.url, seen[0].task_id)
        state, text, _ = await stored(http, process.url, seen[0].task_id)
        if never is not None:
            await _catch_up(http, process.url, never, seen[0].task_id, text, outcome)
    outcome.unfinished += state not in FINAL
    whole = len(text.split()) == order.pieces and text.startswith(f"{order.key}.0@")
    outcome.check(whole, f"{order.key}: the stored text differs from the provider's")
    for each in seen:
        outcome.lost += each.lost
        outcome.repeated += each.repeated
        outcome.check(each.text == text, f"{order.key}: a reader's text differs from the stored one")
        outcome.check(each.state == state, f"{order.key}: a reader ended {each.state}")
    delays = sorted(delay for each in seen for delay in each.delays)
    return delays[int(len(delays) * 0.99)] / 1e9, sum(each.overviews for each in seen)


async def _subscribe(lazy: aiohttp.ClientSession, url: str, task_id: str) -> aiohttp.ClientResponse:
    """Open a stream and read only its head."""
    body = {"jsonrpc": "2.0", "id": "s", "method": "SubscribeToTask", "params": {"id": task_id}}
    return await lazy.post(url + "/", json=body, headers={"Last-Event-ID": "0"})


async def _catch_up(
    http: aiohttp.ClientSession,
    url: str,
    never: aiohttp.ClientResponse,
    task_id: str,
    text: str,
    outcome: Outcome,
) -> None:
    """Let the stalled reader read its buffered bytes, lose its connection, and resume."""
    seen = Seen()
    seen.task_id = task_id
    async for data in never.content.iter_any():
        seen.feed(data)
        break
    never.close()
    outcome.check(not seen.over, f"{task_id}: the stalled reader was not stalled")
    await resume(http, url, seen)
    outcome.lost += seen.lost
    outcome.repeated += seen.repeated
    outcome.check(seen.text == text, f"{task_id}: the stalled reader resumed to a different text")

"""Delivery: events of one node reach the readers at other nodes completely, identically, and in time."""

import asyncio
import json
import statistics
import time
from itertools import cycle
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import anyio
import httptools

from tailrace.server.settings import Bounds
from torture.clusters import Cluster, Followed, begin, check, cluster
from torture.cpu_time import Spending
from torture.outcome import Outcome
from torture.stream_client import LONGEST, Seen, Timed, resume
from torture.upstream import Order

MAX_P99 = 0.015
"""Seconds from the provider's write to the reader at another node."""

MIN_BURST = 20_000
"""Events per second at readers of other nodes."""

LEAD = 4.0
"""Seconds before the first piece in which the readers must connect."""


class Connection(asyncio.Protocol):
    """A stream reader with minimal cost: one process has to read thousands of events per second.

    Args:
        seen: Receives the events.
        request: The request to send.
    """

    def __init__(self, seen: Seen, request: bytes) -> None:
        self._seen = seen
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.BaseTransport | None = None
        self.over = anyio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = transport
        cast("asyncio.WriteTransport", transport).write(
            self._request
        )  # uvloop's transports do not subclass it

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Process a piece of the response."""
        self._seen.feed(body)

    def on_message_complete(self) -> None:
        """Record the end of the response."""
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the end of the connection."""
        self.over.set()


async def listen(url: str, seen: Seen, task_id: str) -> None:
    """Read a task's events from the first one until the stream ends."""
    request = {"jsonrpc": "2.0", "id": "s", "method": "SubscribeToTask", "params": {"id": task_id}}
    body = json.dumps(request).encode()
    address = urlsplit(url)
    fields = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nlast-event-id: 0\r\n"
    head = f"POST / HTTP/1.1\r\nhost: {address.netloc}\r\n{fields}\r\n"
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: Connection(seen, head.encode() + body), address.hostname or "", address.port or 80
    )
    await connection.over.wait()


async def run(
    folder: Path,
    outcome: Outcome,
    *,
    streams: int = 100,
    rate: int = 5_000,
    seconds: float = 15.0,
    bursts: int = 3,
    burst: int = 100_000,
    timed: bool = True,
) -> None:
    """Stream to the readers of all nodes, at a fixed rate and as fast as possible.

    Args:
        folder: The folder for logs.
        outcome: Receives the results.
        streams: The number of concurrent streams.
        rate: Events per second in all streams together.
        seconds: The duration.
        bursts: The number of bursts.
        burst: Events of a burst in all streams together.
        timed: Whether durations are checked.
    """
    # Nodes are busy, not dead: use the default time to live.
    async with cluster(folder, bounds=Bounds(node_ttl=10)) as nodes:
        for everywhere in (False, True):
            key = "all" if everywhere else "one"
            spending = Spending(nodes)
            remote, own = await _in_step(nodes, outcome, spending, streams, rate, seconds, everywhere, key)
            p50, p99 = _quantile(remote, 0.5), _quantile(remote, 0.99)
            summary = f"p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, of {len(remote)} events"
            if everywhere:
                summary += f" (the node's own readers {_quantile(own, 0.5) * 1e3:.1f}, {_quantile(own, 0.99) * 1e3:.1f})"
            outcome.figures.append(
                f"{streams} streams on 3 nodes, {rate} events/s, each read on "
                f"{'all 3' if everywhere else 'another node'}: provider to remote reader {summary}; "
                f"an event: {spending.describe(rate * seconds)}"
            )
            if not everywhere:
                outcome.check(p99 <= MAX_P99 or not timed, f"remote readers lag: p99 {p99 * 1e3:.1f} ms")
        if not bursts:
            return
        spending = Spending(nodes)
        spending.start()
        rates = [await _burst(nodes, outcome, streams, burst, f"b{number}") for number in range(bursts)]
        spending.stop()
        outcome.figures.append(
            f"bursts of {burst} events at remote readers: "
            f"{', '.join(f'{each:,.0f}' for each in sorted(rates))} events/s; an event, with reading all of it again at "
            f"all nodes: {spending.describe(bursts * burst)}"
        )
        best = statistics.median(rates)
        outcome.check(best >= MIN_BURST or not timed, f"a burst is too slow: {best:,.0f} events/s")


async def _in_step(
    nodes: Cluster,
    outcome: Outcome,
    spending: Spending,
    streams: int,
    rate: int,
    seconds: float,
    everywhere: bool,
    key: str,
) -> tuple[list[float], list[float]]:
    """Return the delays of readers at other nodes, and of those at the nodes that run the tasks.

    Each task has a reader at one node that does not run it, or at all such nodes.
    """
    everyone: list[Followed] = []
    at = time.monotonic() + LEAD
    for number in range(streams):
        # Start at different moments: real streams are not synchronised.
        begins_at = at + number / rate
        pieces, pace = round(rate * seconds / streams), streams / rate
        order = Order(f"{key}s{number}", pieces=pieces, pace=pace, begins_at=begins_at, stamped=True)
        everyone.append(Followed(order, 0))
    remote: list[Timed] = []
    own: list[Timed] = []
    async with anyio.create_task_group() as readers:
        readers.start_soon(spending.during, at, seconds)
        async with anyio.create_task_group() as callers:
            for number, followed in enumerate(everyone):
                callers.start_soon(begin, nodes, followed, nodes.url(number % 3))
        for number, followed in enumerate(everyone):
            # Distribute the other readers as well.
            steps = range(3) if everywhere else (1 + number // 3 % 2,)
            for step in steps:
                reader = Timed()
                (remote if step else own).append(reader)
                followed.readers.append(reader)
                readers.start_soon(listen, nodes.url((number + step) % 3), reader, followed.task_id)
    for followed in everyone:
        del followed.readers[0]  # the caller, which has disconnected
        followed.caller = followed.readers[0]
        await _check_alike(nodes, followed, outcome)
    outcome.rounds += streams
    return [delay / 1e9 for each in remote for delay in each.delays], [
        delay / 1e9 for each in own for delay in each.delays
    ]


async def _check_alike(nodes: Cluster, followed: Followed, outcome: Outcome) -> None:
    """Check that each reader received the complete task, and that every node returns the same afterwards."""
    key = followed.order.key
    for url in nodes.urls:
        again = Seen()
        await resume(nodes.http, url, again, task_id=followed.task_id)
        outcome.check(again.marks == followed.caller.marks, f"{key}: events that differ from those at {url}")
    for each in followed.readers:
        outcome.lost += each.lost
        outcome.repeated += each.repeated
        outcome.unfinished += not each.over
        outcome.check(each.state == "TASK_STATE_COMPLETED", f"{key}: ended {each.state}")
        outcome.check(each.text.count(" ") == followed.order.pieces, f"{key}: {each.last} events")
        outcome.check(each.marks == followed.caller.marks, f"{key}: events that differ from node to node")


async def _burst(nodes: Cluster, outcome: Outcome, streams: int, events: int, key: str) -> float:
    """Return the events per second at readers each of which is on another node than its task."""
    begins_at = time.monotonic() + LEAD
    pieces = events // streams
    everyone = [Followed(Order(f"{key}s{n}", pieces=pieces, begins_at=begins_at), 0) for n in range(streams)]
    async with anyio.create_task_group() as callers:
        for followed, home in zip(everyone, cycle(range(3)), strict=False):
            callers.start_soon(begin, nodes, followed, nodes.url(home))
    async with anyio.create_task_group() as readers:
        for followed, index in zip(everyone, cycle((1, 2, 0)), strict=False):
            followed.caller, task_id = Seen(), followed.task_id
            followed.readers[:] = [followed.caller]
            readers.start_soon(listen, nodes.url(index), followed.caller, task_id)
    took = time.monotonic() - begins_at
    outcome.check(took < LONGEST, f"{key}: the burst took {took:.0f} s")
    await check(nodes, everyone, outcome)
    return sum(each.caller.last for each in everyone) / took


def _quantile(delays: list[float], share: float) -> float:
    ordered = sorted(delays)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

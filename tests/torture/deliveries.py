"""Delivery: what the provider writes to one node, at the readers of the others: all of it, alike, and how soon."""

import asyncio
import json
import statistics
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import anyio
import httptools
import psutil

from torture.clusters import Cluster, Followed, begin, check, cluster
from torture.outcome import Outcome
from torture.reading import LONGEST, Seen, Timed
from torture.upstream import Order

MAX_P99 = 0.015
"""Seconds from the provider's write to the reader of another node."""

MIN_BURST = 20_000
"""Events a second at readers of other nodes."""

LEAD = 4.0
"""Seconds in which the readers have to be there, before the first piece."""


class Connection(asyncio.Protocol):
    """A reader of a stream that costs next to nothing: thousands of events a second are one process's.

    Args:
        seen: Takes the events.
        request: The bytes to send.
    """

    def __init__(self, seen: Seen, request: bytes) -> None:
        self._seen = seen
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.BaseTransport | None = None
        self.over = anyio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = transport
        cast("asyncio.WriteTransport", transport).write(self._request)  # uvloop's do not say that they are

    def data_received(self, data: bytes) -> None:
        """Read."""
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """A piece of the answer."""
        self._seen.feed(body)

    def on_message_complete(self) -> None:
        """The end of the answer."""
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of everything."""
        self.over.set()


async def listen(url: str, seen: Seen, task_id: str) -> None:
    """Read a task's events from its first on, until the stream ends."""
    asked = {"jsonrpc": "2.0", "id": "s", "method": "SubscribeToTask", "params": {"id": task_id}}
    body = json.dumps(asked).encode()
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
    """Serve streams to the readers of all nodes, in step and as fast as it goes.

    Args:
        folder: For the logs.
        outcome: Takes what comes of it.
        streams: At a time.
        rate: Events a second, in all streams together.
        seconds: For which.
        bursts: How often as fast as it goes.
        burst: Events of a burst, in all streams together.
        timed: How long things take counts, too.
    """
    # Nodes that are busy, not dead: the time to live is what it is by itself.
    async with cluster(folder, node_ttl=10) as nodes:
        with _spending(nodes) as spent:
            remote, own = await _in_step(nodes, outcome, streams, rate, seconds)
        events = len(remote) + len(own)
        p50, p99 = _quantile(remote, 0.5), _quantile(remote, 0.99)
        outcome.figures.append(
            f"{streams} streams on 3 nodes, {rate} events/s, each read on all 3: provider to remote reader "
            f"p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms (the node's own readers {_quantile(own, 0.5) * 1e3:.1f}, "
            f"{_quantile(own, 0.99) * 1e3:.1f}), of {len(remote)} events; "
            f"CPU of the nodes {1e6 * spent[0] / events:.0f} µs and of Valkey {1e6 * spent[1] / events:.0f} µs an event "
            f"and reader"
        )
        outcome.check(p99 <= MAX_P99 or not timed, f"remote readers are late: p99 {p99 * 1e3:.1f} ms")
        if not bursts:
            return
        with _spending(nodes) as spent:
            rates = [await _burst(nodes, outcome, streams, burst, f"b{number}") for number in range(bursts)]
        outcome.figures.append(
            f"bursts of {burst} events at remote readers: "
            f"{', '.join(f'{each:,.0f}' for each in sorted(rates))} events/s; CPU, with reading all of it again at all "
            f"nodes, {1e6 * spent[0] / bursts / burst:.0f} µs an event and of Valkey {1e6 * spent[1] / bursts / burst:.0f}"
        )
        best = statistics.median(rates)
        outcome.check(best >= MIN_BURST or not timed, f"a burst is too slow: {best:,.0f} events/s")


@contextmanager
def _spending(nodes: Cluster) -> Generator[list[float]]:
    """Seconds of CPU that the nodes, all together, and Valkey use in the block; there when it is left."""
    processes = [psutil.Process(nodes.node(index).process.pid) for index in range(3)]
    processes.append(psutil.Process(nodes.valkey.pid))

    def used() -> list[float]:
        return [sum(process.cpu_times()[:2]) for process in processes]

    before, spent = used(), [0.0, 0.0]
    yield spent
    *of_nodes, spent[1] = [after - was for after, was in zip(used(), before, strict=True)]
    spent[0] = sum(of_nodes)


async def _in_step(
    nodes: Cluster, outcome: Outcome, streams: int, rate: int, seconds: float
) -> tuple[list[float], list[float]]:
    """The delays of the readers of other nodes, and of those of the nodes that run the tasks."""
    everyone: list[Followed] = []
    at = time.monotonic() + LEAD
    for number in range(streams):
        # Not all at the same moment: streams are not in step with each other.
        begins_at = at + number / rate
        pieces, pace = round(rate * seconds / streams), streams / rate
        everyone.append(
            Followed(Order(f"s{number}", pieces=pieces, pace=pace, begins_at=begins_at, stamped=True), 0)
        )
    remote: list[Timed] = []
    own: list[Timed] = []
    async with anyio.create_task_group() as readers:
        async with anyio.create_task_group() as callers:
            for followed, home in zip(everyone, cycle(range(3)), strict=False):
                callers.start_soon(begin, nodes, followed, nodes.url(home))
        for followed, home in zip(everyone, cycle(range(3)), strict=False):
            for index in range(3):
                reader = Timed()
                (own if index == home else remote).append(reader)
                followed.readers.append(reader)
                readers.start_soon(listen, nodes.url(index), reader, followed.task_id)
    for followed in everyone:
        del followed.readers[0]  # the caller, who left
        followed.caller = followed.readers[0]
        await _check_alike(followed, outcome)
    outcome.rounds += streams
    return [delay / 1e9 for each in remote for delay in each.delays], [
        delay / 1e9 for each in own for delay in each.delays
    ]


async def _check_alike(followed: Followed, outcome: Outcome) -> None:
    key = followed.order.key
    for each in followed.readers:
        outcome.lost += each.lost
        outcome.repeated += each.repeated
        outcome.unfinished += not each.over
        outcome.check(each.state == "TASK_STATE_COMPLETED", f"{key}: ended {each.state}")
        outcome.check(each.text.count(" ") == followed.order.pieces, f"{key}: {each.last} events")
        outcome.check(each.marks == followed.caller.marks, f"{key}: events that differ from node to node")


async def _burst(nodes: Cluster, outcome: Outcome, streams: int, events: int, key: str) -> float:
    """Events a second at readers each of which is on another node than its task."""
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

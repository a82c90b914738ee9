"""Responses: the official OpenAI clients resume background responses after drops and kills with ``starting_after``.

A client that was interrupted forgets a random number of its last events, and resumes after the remaining ones. At the end,
its events equal those of a client that reads the response without interruption. Killed servers have the default
``on_crash``: each response is completed, by a continuation of its text (prefill), or by attachment to the provider's stored
response, and equals another response to the same input, which nothing interrupted, except for ids and times.
"""

import json
import random
import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from support.response_streams import RawClient, raw_client
from torture.clusters import Cluster, cluster
from torture.outcome import Outcome
from torture.response_clients import PROGRAM, PythonReader, Reader, Received, node_reader
from torture.server_process import server
from torture.upstream import Order, Upstream, upstream

PIECES = 60
PACE = 0.01  # seconds between two pieces
READERS = 4
PATIENCE = 60.0
SETTINGS = {"coalesce": "none"}
CONCURRENT_RESPONSES = 16  # that are compared
ROUTES = ("prefill", "attach")


async def run(
    folder: Path,
    rng: random.Random,
    *,
    drops: int = 500,
    kills: int = 100,
    node_kills: int = 50,
    node: bool = True,
) -> Outcome:
    """Drop connections, kill a server, and kill nodes.

    Args:
        folder: For databases and logs.
        rng: Chooses moments and numbers.
        drops: Disconnects of a client.
        kills: Kills of the only server.
        node_kills: Kills of one of three nodes.
        node: Whether half of the clients are those for Node, whose packages must be installed.
    """
    outcome = Outcome("responses")
    everything: list[Received] = []
    async with _readers(node=node) as readers:
        with upstream() as provider:
            await _drop(folder, rng, readers, provider.base_url, drops, everything, outcome)
            for number, route in enumerate(ROUTES):
                share = (kills + number) // len(ROUTES)
                if share:
                    await _kill(folder / route, rng, readers, provider, route, share, outcome)
        if node_kills:
            await _kill_nodes(folder / "nodes", rng, readers, node_kills, outcome)
    outcome.rounds = drops + kills + node_kills
    return outcome


@asynccontextmanager
async def _readers(*, node: bool) -> AsyncGenerator[Sequence[Reader]]:
    async with AsyncExitStack() as stack:
        readers: list[Reader] = [PythonReader() for _ in range(READERS)]
        if node:
            if not (PROGRAM.parent / "node_modules").is_dir():
                npm = shutil.which("npm") or "npm"
                await anyio.run_process(
                    [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=PROGRAM.parent
                )
            readers[::2] = [await stack.enter_async_context(node_reader()) for _ in readers[::2]]
        yield readers


async def _drop(
    folder: Path,
    rng: random.Random,
    readers: Sequence[Reader],
    provider: str,
    drops: int,
    everything: list[Received],
    outcome: Outcome,
) -> None:
    left = drops

    async def follow(reader: Reader, url: str) -> None:
        nonlocal left
        while left > 0:
            received = _received(f"d{len(everything)}", reader, everything)
            while not received.is_over:
                upto = rng.randrange(1, 30) if left > 0 else None
                left -= upto is not None
                status = await reader.read(url, received, upto)
                outcome.check(status is None, f"{received.input}: not resumed ({status})")
                _forget(received, rng)
            outcome.check(
                received.events[-1]["type"] == "response.completed", f"{received.input}: not completed"
            )

    async with server(folder, provider, SETTINGS) as process:
        async with anyio.create_task_group() as group:
            for reader in readers:
                group.start_soon(follow, reader, process.url)
    outcome.figures.append(f"{drops} drops of {len(everything)} responses")


async def _kill(
    folder: Path,
    rng: random.Random,
    readers: Sequence[Reader],
    provider: Upstream,
    route: str,
    kills: int,
    outcome: Outcome,
) -> None:
    """Kill a server until a number of kills have each interrupted a response, and start it again."""
    await anyio.Path(folder / "holder").mkdir(parents=True)
    everything: list[Received] = []
    interrupted: list[Received] = []
    cut = hits = 0
    async with AsyncExitStack() as stack:
        start = partial(server, folder, provider.prefill_url, SETTINGS)
        if route == "attach":
            holder = await stack.enter_async_context(server(folder / "holder", provider.base_url, {}))
            settings = {**SETTINGS, "upstream_background": True}
            start = partial(server, folder, f"{holder.url}/v1", settings, model="openai-responses:t")
        while True:
            async with start() as process:
                url = process.url
                async with anyio.create_task_group() as group:
                    for each in interrupted:
                        group.start_soon(_finish, [url], each, rng, outcome)
                if hits == kills:
                    await _check([url], everything, outcome)
                    break
                interrupted = [
                    _received(f"{route}{hits}r{index}", reader, everything)
                    for index, reader in enumerate(readers)
                ]
                async with anyio.create_task_group() as group:
                    for each in interrupted:
                        group.start_soon(each.reader.read, url, each)
                    for each in interrupted:
                        await each.started.wait()
                    await anyio.sleep(rng.random() * PIECES * PACE)
                    process.kill()
                running = sum(not each.is_over for each in interrupted)
                cut += running
                hits += bool(running)
    outcome.figures.append(f"{kills} kills of the server under {cut} running responses, continued by {route}")


async def _kill_nodes(
    folder: Path, rng: random.Random, readers: Sequence[Reader], kills: int, outcome: Outcome
) -> None:
    """Kill random nodes until a number of kills have each been during a response."""
    everything: list[Received] = []
    cut = hits = 0
    async with cluster(folder, prefills=True, coalesce="none") as nodes:
        while hits < kills:
            round_ = [
                _received(f"n{hits}r{index}", reader, everything) for index, reader in enumerate(readers)
            ]
            victim = rng.randrange(nodes.size)
            moment = rng.random() * PIECES * PACE
            async with anyio.create_task_group() as group:
                for each in round_:
                    group.start_soon(_finish, nodes, each, rng, outcome)
                for each in round_:
                    await each.started.wait()
                await anyio.sleep(moment)
                nodes.kill(victim)
                running = sum(not each.is_over for each in round_)
                cut += running
                hits += bool(running)
                await nodes.start(victim)
        await _check(nodes.urls, everything, outcome)
    outcome.figures.append(f"{kills} kills of a node under {cut} running responses")


def _received(key: str, reader: Reader, everything: list[Received]) -> Received:
    received = Received(str(Order(key, pieces=PIECES, pace=PACE)), reader)
    everything.append(received)
    return received


def _forget(received: Received, rng: random.Random) -> None:
    """Keep a random number of the events of an interrupted stream, so that the client resumes after any number."""
    if received.events and not received.is_over:
        received.keep(rng.randrange(1, len(received.events) + 1))


async def _finish(
    servers: Cluster | Sequence[str], received: Received, rng: random.Random, outcome: Outcome
) -> None:
    """Read a response to its end; resume at any running server when its stream breaks."""
    status: int | None = None
    with anyio.move_on_after(PATIENCE) as scope:
        while not received.is_over:
            _forget(received, rng)
            urls = servers.urls if isinstance(servers, Cluster) else servers
            status = await received.reader.read(rng.choice(urls), received)
            if status in (404, 410, 400):
                outcome.check(
                    False, f"{received.input}: refused with {status} after {len(received.events)} events"
                )
                return
            if not received.is_over:
                await anyio.sleep(0.05)
    if scope.cancelled_caught:
        outcome.unfinished += 1
        outcome.check(False, f"{received.input}: no end after {len(received.events)} events ({status})")


async def _check(urls: Sequence[str], everything: Sequence[Received], outcome: Outcome) -> None:
    """Compare each response with another response to the same input, and on each server with its uninterrupted stream and with
    the stored object.

    The client that was interrupted reads the uninterrupted stream too: the clients write numbers differently (``1`` and
    ``1.0``). A client without a library checks each event strictly with the types of the openai package.
    """
    for url in urls:
        async with raw_client(url) as client:
            for each in everything:
                if not each.is_over:
                    continue
                again = Received(each.input, each.reader, each.id)
                await each.reader.read(url, again)
                outcome.check(_bytes(each.events) == _bytes(again.events), f"{each.input}: differs at {url}")
                sent = await client.resumed(each.id)
                outcome.check(sent.events == each.events, f"{each.input}: other events were sent by {url}")
                stored = await client.json("GET", f"/responses/{each.id}")
                outcome.check(stored == each.response, f"{each.input}: the stored response differs at {url}")
    limiter = anyio.CapacityLimiter(CONCURRENT_RESPONSES)
    async with raw_client(urls[0]) as client, anyio.create_task_group() as group:
        for each in everything:
            group.start_soon(_compare, client, each, limiter, outcome)
    for each in everything:
        if each.is_over:
            outcome.check(each.response["status"] == "completed", f"{each.input}: not completed")
            outcome.check(each.text == each.response_text, f"{each.input}: the text differs from the deltas")
        outcome.lost += each.lost
        outcome.repeated += each.repeated


async def _compare(
    client: RawClient, received: Received, limiter: anyio.CapacityLimiter, outcome: Outcome
) -> None:
    """Compare a stored response with another response to the same input, without ids and times."""
    async with limiter:
        body = {"model": "tailrace", "input": received.input, "background": True}
        other = await client.stream("/responses", body)
        stored = await client.json("GET", f"/responses/{received.id}")
    is_same = _without_ids(stored) == _without_ids(other.response)
    outcome.check(is_same, f"{received.input}: differs from an uninterrupted response")


def _without_ids(response: Mapping[str, Any]) -> bytes:
    """Return a response as JSON without its time and the ids that each response has of its own."""
    task = response["id"].removeprefix("resp_")
    return _bytes({**response, "created_at": 0, "conversation": None}).replace(task.encode(), b"TASK")


def _bytes(value: object) -> bytes:
    return json.dumps(value).encode()

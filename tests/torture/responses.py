"""Responses: the official OpenAI clients resume background responses after drops and kills with ``starting_after``.

A client that was interrupted forgets a random number of its last events, and resumes after the remaining ones. At the end,
its events equal those of a client that reads the response without interruption.
"""

import json
import random
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio

from support.response_streams import raw_client
from torture.clusters import Cluster, cluster
from torture.outcome import Outcome
from torture.response_clients import PROGRAM, PythonReader, Reader, Received, node_reader
from torture.server_process import server
from torture.upstream import Order, upstream

PIECES = 60
PACE = 0.01  # seconds between two pieces
READERS = 4
PATIENCE = 60.0
SETTINGS = {"coalesce": "none", "on_crash": "fail"}


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
            await _kill(folder, rng, readers, provider.base_url, kills, everything, outcome)
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
    provider: str,
    kills: int,
    everything: list[Received],
    outcome: Outcome,
) -> None:
    interrupted: list[Received] = []
    cut = 0
    for number in range(kills + 1):
        async with server(folder, provider, SETTINGS) as process:
            url = process.url
            async with anyio.create_task_group() as group:
                for each in interrupted:
                    group.start_soon(_finish, [url], each, rng, outcome)
            if number == kills:
                await _check([url], everything, outcome)
                break
            interrupted = [
                _received(f"k{number}r{index}", reader, everything) for index, reader in enumerate(readers)
            ]
            async with anyio.create_task_group() as group:
                for each in interrupted:
                    group.start_soon(each.reader.read, url, each)
                for each in interrupted:
                    await each.started.wait()
                await anyio.sleep(rng.random() * PIECES * PACE)
                process.kill()
            cut += sum(not each.is_over for each in interrupted)
    outcome.check(cut > 0 or not kills, "no kill hit a running response")
    outcome.figures.append(f"{kills} kills of the server under {cut} running responses")


async def _kill_nodes(
    folder: Path, rng: random.Random, readers: Sequence[Reader], kills: int, outcome: Outcome
) -> None:
    everything: list[Received] = []
    cut = 0
    async with cluster(folder, coalesce="none", on_crash="fail") as nodes:
        for number in range(kills):
            round_ = [
                _received(f"n{number}r{index}", reader, everything) for index, reader in enumerate(readers)
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
                cut += sum(not each.is_over for each in round_)
                await nodes.start(victim)
        await _check(nodes.urls, everything, outcome)
    outcome.check(cut > 0, "no kill of a node hit a running response")
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
    """Compare each response with an uninterrupted stream of it, and with the stored object, on each server.

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
    for each in everything:
        if each.is_over:
            outcome.check(each.text == each.response_text, f"{each.input}: the text differs from the deltas")
        outcome.lost += each.lost
        outcome.repeated += each.repeated


def _bytes(value: object) -> bytes:
    return json.dumps(value).encode()

"""Kill: ``kill -9`` at random moments under many streams. Every published event survives, and streams can be resumed.

Each round: the clients start their streams, the server is killed at a random moment, and another is started on the same
store. Every client that received an event resumes after its last one. In every fourth round the new server continues
interrupted responses, as by default; in the others it fails them (``TAILRACE_ON_CRASH=fail``).
"""

import random
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import anyio

from support.processes import Served
from torture.outcome import Outcome
from torture.server_process import server, until
from torture.stream_client import FINAL, Refused, Seen, call, client, resume, send, stored
from torture.upstream import Order, upstream

LATEST = 0.8  # seconds after which the server is killed at the latest
LONGEST = 1.5  # seconds that a response takes
PACES = (0.0, 0.001, 0.002, 0.005)
BURST = 4_000  # pieces of a response at full speed


class Client:
    """One client and its task.

    Attributes:
        order: The ordered response.
        seen: The received events.
        shown: The number of the last event before the kill.
        resumed_at: The time when the client resumed at the next server, on the monotonic clock.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.seen = Seen()
        self.shown = 0
        self.resumed_at = 0.0

    @property
    def known(self) -> bool:
        return bool(self.seen.task_id)


async def run(folder: Path, rng: random.Random, *, kills: int = 200, streams: int = 20) -> Outcome:
    """Kill a server repeatedly.

    Args:
        folder: For the database and the logs.
        rng: Chooses moments and orders.
        kills: The number of kills.
        streams: The number of concurrent streams at a kill.
    """
    outcome = Outcome("kill")
    with upstream() as provider:
        everyone = await rounds(
            folder,
            rng,
            outcome,
            provider.base_url,
            kills=kills,
            streams=streams,
            continues=lambda number: number % 4 == 3,
        )
    cut = sum(each.seen.last > each.shown for each in everyone)
    continued = sum(bool(each.seen.routes) for each in everyone)
    outcome.figures.append(
        f"{len(everyone)} streams: {cut} cut, {len(everyone) - cut} over before the kill, "
        f"{continued} continued and completed"
    )
    outcome.check(cut > 0, "no kill hit a running stream")
    return outcome


async def rounds(
    folder: Path,
    rng: random.Random,
    outcome: Outcome,
    base_url: str,
    *,
    kills: int,
    streams: int,
    continues: Callable[[int], bool],
    model: str = "openai:t",
    **settings: object,
) -> list[Client]:
    """Kill a server repeatedly; return the clients that received an event before a kill.

    Args:
        folder: For the database and the logs.
        rng: Chooses moments and orders.
        outcome: Receives the results.
        base_url: The base URL of the provider.
        kills: The number of kills.
        streams: The number of concurrent streams at a kill.
        continues: Whether the server of a round continues the responses that the kill before has interrupted.
        model: The model, as ``provider:name``.
        settings: Further settings of the server.
    """
    everyone: list[Client] = []
    survivors: list[Client] = []
    for number in range(kills + 1):
        settings |= {
            "on_crash": "continue" if continues(number) else "fail",
            "coalesce": rng.choice(["read", "none"]),
        }
        async with server(folder, base_url, settings, model=model) as process, client() as http:
            await _resume(http, process, outcome, survivors, continues=continues(number))
            everyone += survivors
            await _check_no_task_is_open(http, process, outcome)
            if number == kills:
                await _check_again(http, process, outcome, everyone)
                return everyone
            survivors = await _kill_under(http, process, rng, number, streams)
            outcome.rounds += 1
    return everyone


def _order(key: str, pace: float, seconds: float) -> Order:
    return Order(key, pieces=1 + int(seconds / pace) if pace else 1 + int(BURST * seconds), pace=pace)


async def _kill_under(
    http: aiohttp.ClientSession, process: Served, rng: random.Random, number: int, streams: int
) -> list[Client]:
    """Start streams and kill the server under them; return the clients that received an event."""
    clients = [
        Client(_order(f"k{number}c{index}", rng.choice(PACES), rng.random() * LONGEST))
        for index in range(streams)
    ]
    # The kill comes at a random moment. In one of five rounds, streams are still being started.
    at_work = anyio.Event() if rng.random() < 0.8 else None
    moment = rng.random() * LATEST

    async def follow(each: Client) -> None:
        await send(http, process.url, each.order, each.seen)

    def on_piece(_piece: str) -> None:
        if at_work is not None and all(each.known for each in clients):
            at_work.set()

    async with anyio.create_task_group() as group:
        for each in clients:
            each.seen = Seen(on_piece)
            group.start_soon(follow, each)
        if at_work is not None:
            with anyio.fail_after(30):
                await at_work.wait()
        await anyio.sleep(moment)
        process.process.kill()
        await anyio.to_thread.run_sync(process.process.wait)
    for each in clients:
        each.shown = each.seen.last
    return [each for each in clients if each.known]


async def _resume(
    http: aiohttp.ClientSession, process: Served, outcome: Outcome, clients: list[Client], *, continues: bool
) -> None:
    async def go_on(each: Client) -> None:
        key = each.order.key
        each.resumed_at = time.monotonic()
        try:
            ended = await resume(http, process.url, each.seen)
        except Refused as refused:
            outcome.check(False, f"{key}: not resumed after {each.seen.last}: {refused}")
            return
        outcome.check(ended, f"{key}: the resumed stream was interrupted")
        state, text, _ = await stored(http, process.url, each.seen.task_id)
        outcome.lost += each.seen.lost
        outcome.repeated += each.seen.repeated
        outcome.unfinished += state not in FINAL
        outcome.check(
            each.seen.state == state, f"{key}: the stream ended {each.seen.state}, the task is {state}"
        )
        outcome.check(each.seen.text == text, f"{key}: the received text differs from the stored one")
        outcome.check(each.order.text().startswith(text), f"{key}: the text differs from the provider's")
        if state == "TASK_STATE_COMPLETED" or continues:
            outcome.check(text == each.order.text(), f"{key}: {state} with an incomplete text")

    async with anyio.create_task_group() as group:
        for each in clients:
            group.start_soon(go_on, each)


async def _check_no_task_is_open(http: aiohttp.ClientSession, process: Served, outcome: Outcome) -> None:
    """Check all tasks, including tasks that no client has received."""
    # Continued tasks run and are awaited; the others must have ended.
    left = 0

    async def none_is_open() -> bool:
        nonlocal left
        left = 0
        for state in ("SUBMITTED", "WORKING", "INPUT_REQUIRED"):
            page = await call(http, process.url, "ListTasks", {"status": f"TASK_STATE_{state}"})
            left += page["totalSize"]
        return not left

    if not await until(none_is_open, 30):
        outcome.unfinished += left


async def _check_again(
    http: aiohttp.ClientSession, process: Served, outcome: Outcome, everyone: list[Client]
) -> None:
    """After the last kill, check that every event of every task equals the one that its client received."""
    limiter = anyio.CapacityLimiter(20)

    async def check(each: Client) -> None:
        async with limiter:
            again = Seen()
            await resume(http, process.url, again, task_id=each.seen.task_id)
        outcome.check(
            again.marks == each.seen.marks, f"{each.order.key}: the events differ from those published before"
        )

    async with anyio.create_task_group() as group:
        for each in everyone:
            group.start_soon(check, each)

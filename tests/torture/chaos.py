"""Chaos: provider faults of every kind. Each task ends as specified, in time, with all text that had arrived."""

import random
import socket
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from support.processes import Served
from tailrace.server.settings import Bounds
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from torture.outcome import Outcome
from torture.server_process import server, until
from torture.stream_client import FINAL, Seen, call, client, send, stored
from torture.upstream import Order, Upstream, upstream

READ_TIMEOUT = 1.0
RETRIES = 2
PAUSES = 3.0  # seconds for the pauses between retries, up to 1.5, and a busy machine
CANCEL_BOUND = 0.1  # seconds until the provider detects that its client has disconnected
AT_ONCE = 40


@dataclass(frozen=True)
class Expected:
    """The expected end of a task.

    Attributes:
        state: Its state.
        error: The possible types of its error.
        seconds: The time limit for the end after the last piece.
        exact: Whether its text is complete; a reset may discard data in flight.
        refusals: The number of rejected requests before a response.
    """

    state: str
    error: tuple[str, ...] = ()
    seconds: float = PAUSES
    exact: bool = True
    refusals: int = 1_000


SILENCE = READ_TIMEOUT + PAUSES
DONE = "TASK_STATE_COMPLETED"
FAILED = "TASK_STATE_FAILED"
CASES: dict[str, Expected] = {
    "": Expected(DONE),
    "byte-by-byte": Expected(DONE),
    "429": Expected(FAILED, ("http_status",)),
    "429 twice": Expected(DONE, refusals=RETRIES),
    "500": Expected(FAILED, ("http_status",)),
    "500 twice": Expected(DONE, refusals=RETRIES),
    "hang-at-once": Expected(FAILED, ("timeout",), (RETRIES + 1) * READ_TIMEOUT + PAUSES),
    "hang-after-head": Expected(FAILED, ("timeout",), SILENCE),
    "hang-later": Expected(FAILED, ("timeout",), SILENCE),
    "cut-mid-json": Expected(FAILED, ("stream_truncated",)),
    "cut": Expected(FAILED, ("stream_truncated",)),
    "reset": Expected(FAILED, ("stream_truncated",), exact=False),
    "reset-at-once": Expected(FAILED, ("connection_failed",)),
    "not-http": Expected(FAILED, ("connection_failed", "invalid_stream")),
    "error-frame": Expected(FAILED, ("provider_error",)),
    "malformed": Expected(FAILED, ("invalid_stream",)),
    "no-finish": Expected(FAILED, ("stream_truncated",)),
}
AT_ONCE_FAULTS = {"429", "500", "hang-at-once", "hang-after-head", "reset-at-once", "not-http"}


class _Figures:
    def __init__(self, timed: bool) -> None:
        self.timed = timed
        self.latest: dict[str, float] = {}
        self.left: list[float] = []


async def run(folder: Path, rng: random.Random, *, each: int = 25, timed: bool = True) -> Outcome:
    """Send requests to a faulty provider.

    Args:
        folder: For the databases and the logs.
        rng: Chooses the moments of faults.
        each: The repetitions of each fault.
        timed: Whether durations are checked.
    """
    outcome = Outcome("chaos")
    figures = _Figures(timed)
    settings = {
        "bounds": Bounds(connect_timeout=1, read_timeout=READ_TIMEOUT, upstream_retries=RETRIES),
    }
    with upstream() as provider:
        async with server(folder, provider.base_url, settings) as process, client() as http:
            orders = [
                (case, _order(rng, case, number))
                for number in range(each)
                for case in (*CASES, "never-ending")
            ]
            rng.shuffle(orders)
            limiter = anyio.CapacityLimiter(AT_ONCE)

            async def ask(case: str, order: Order) -> None:
                async with limiter:
                    if case == "never-ending":
                        await _cancel(http, process, provider, order, outcome, figures)
                    else:
                        await _ask(http, process, case, order, outcome, figures)

            async with anyio.create_task_group() as group:
                for case, order in orders:
                    group.start_soon(ask, case, order)
            await _check_well(http, process, outcome)
    await _refuse(folder, outcome, each)
    outcome.rounds = len(orders) + each
    slowest = max(figures.latest, key=lambda case: figures.latest[case])
    outcome.figures.append(
        f"{len(CASES) + 2} kinds; latest end {figures.latest[slowest]:.1f} s ({slowest}); a cancellation reaches the "
        f"provider in {statistics.median(figures.left) * 1e3:.0f} ms (most {max(figures.left) * 1e3:.0f})"
    )
    soon = statistics.median(figures.left) <= CANCEL_BOUND
    outcome.check(soon or not timed, "a cancellation takes too long to reach the provider")
    return outcome


def _order(rng: random.Random, case: str, number: int) -> Order:
    fault = case.partition(" ")[0]
    return Order(
        f"{case.replace(' ', '-') or 'well'}:{number}",
        pieces=rng.randint(1, 8) if case == "byte-by-byte" else rng.randint(40, 80),
        pace=rng.choice([0.0, 0.001, 0.005]) if case != "never-ending" else 0.001,
        fault=fault,
        after=rng.randint(0, 40),
        refusals=CASES[case].refusals if case in CASES else 1_000,
    )


async def _ask(
    http: aiohttp.ClientSession, process: Served, case: str, order: Order, outcome: Outcome, figures: _Figures
) -> None:
    expected = CASES[case]
    last = time.monotonic()

    def shown(_piece: str) -> None:
        nonlocal last
        last = time.monotonic()

    seen = Seen(shown)
    ended = await send(http, process.url, order, seen)
    took = time.monotonic() - last
    figures.latest[case or "none"] = max(took, figures.latest.get(case or "none", 0.0))
    outcome.check(ended and seen.over, f"{order.key}: the stream did not end with the task")
    outcome.check(
        took <= expected.seconds or not figures.timed,
        f"{order.key}: the end came {took:.1f} s after the last piece",
    )
    task = await _check_kept(http, process, seen, outcome, order.key)
    error: dict[str, Any] = task.get("metadata", {}).get(EXTENSION_URI, {}).get("error", {})
    outcome.check(seen.state == expected.state, f"{order.key}: ended {seen.state}, {error}")
    if expected.error:
        outcome.check(error.get("type") in expected.error, f"{order.key}: the error is {error}")
        outcome.check(task["status"].get("message"), f"{order.key}: no message about the cause")
    else:
        outcome.check(not error, f"{order.key}: an error: {error}")
    pieces = 0 if case in AT_ONCE_FAULTS else order.after if expected.state == FAILED else order.pieces
    sent = order.text(pieces)
    outcome.check(
        seen.text == sent if expected.exact else sent.startswith(seen.text),
        f"{order.key}: {len(seen.text.split())} of {pieces} pieces were persisted",
    )


async def _check_kept(
    http: aiohttp.ClientSession, process: Served, seen: Seen, outcome: Outcome, key: str
) -> dict[str, Any]:
    state, text, task = await stored(http, process.url, seen.task_id)
    outcome.lost += seen.lost
    outcome.repeated += seen.repeated
    outcome.unfinished += state not in FINAL
    outcome.check(text == seen.text, f"{key}: the received text differs from the stored one")
    return task


async def _cancel(
    http: aiohttp.ClientSession,
    process: Served,
    provider: Upstream,
    order: Order,
    outcome: Outcome,
    figures: _Figures,
) -> None:
    """Cancel a response without an end."""
    enough = anyio.Event()

    def shown(_piece: str) -> None:
        if len(seen.texts.get("text", [])) > order.after:
            enough.set()

    seen = Seen(shown)
    canceled_at, state = 0.0, ""
    async with anyio.create_task_group() as group:
        group.start_soon(send, http, process.url, order, seen)
        await enough.wait()
        canceled_at = time.monotonic()
        state = (await call(http, process.url, "CancelTask", {"id": seen.task_id}))["status"]["state"]
    outcome.check(state == "TASK_STATE_CANCELED", f"{order.key}: canceled, and {state}")
    await _check_kept(http, process, seen, outcome, order.key)
    outcome.check(
        order.text(100_000).startswith(seen.text), f"{order.key}: the text differs from the sent one"
    )

    async def has_left() -> bool:
        return (await provider.stats(http, order.key)).left_at is not None

    if outcome.check(await until(has_left, 5), f"{order.key}: canceled, and the provider continues"):
        figures.left.append(((await provider.stats(http, order.key)).left_at or 0.0) - canceled_at)


async def _refuse(folder: Path, outcome: Outcome, count: int) -> None:
    """Use a provider's address at which no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"bounds": Bounds(connect_timeout=1, read_timeout=READ_TIMEOUT, upstream_retries=1)}
    async with server(folder, f"http://127.0.0.1:{port}/v1", settings) as process, client() as http:
        async with anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(_send_without_provider, http, process, f"nobody:{number}", outcome)


async def _send_without_provider(
    http: aiohttp.ClientSession, process: Served, key: str, outcome: Outcome
) -> None:
    seen = Seen()
    await send(http, process.url, Order(key), seen)
    task = await _check_kept(http, process, seen, outcome, key)
    error = task.get("metadata", {}).get(EXTENSION_URI, {}).get("error", {})
    outcome.check(
        seen.state == FAILED and error.get("type") == "connection_failed", f"{key}: {seen.state}, {error}"
    )


async def _check_well(http: aiohttp.ClientSession, process: Served, outcome: Outcome) -> None:
    """Check that the server still responds correctly."""
    order = Order("after-all", pieces=50)
    seen = Seen()
    await send(http, process.url, order, seen)
    outcome.check(seen.state == DONE and seen.text == order.text(), f"after all faults: {seen.state}")

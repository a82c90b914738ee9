"""Disk: a full disk and a locked database under streams, short and long.

Short: no data is lost and no client notices. Long: the streams end with an error that states the cause; every
published event is persisted; once there is space again, the same process serves requests, and every task has an end.
"""

import random
import resource
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread

from support.processes import Served
from torture.outcome import Outcome
from torture.server_process import database, server, until
from torture.stream_client import FINAL, Refused, Seen, call, client, resume, send, stored
from torture.upstream import Order, upstream

FULL_AT = (
    64 * 1024
)  # limit on the size of a file on the full disk, in bytes: less than the database, more than the log
MOMENT = 0.3  # seconds; the server retries for longer
GIVEN_UP = 30.0  # seconds within which a server that cannot write reports an error
RECOVERED = 10.0  # seconds within which it responds again
BUSY = 0.1  # seconds that SQLite waits for a lock

Trouble = Callable[[Served, Path], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def full_disk(process: Served, folder: Path) -> AsyncGenerator[None]:
    """Limit the server's files to their current size, as on a full disk."""
    pid = process.process.pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_AT, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


@asynccontextmanager
async def locked_database(process: Served, folder: Path) -> AsyncGenerator[None]:
    """Lock the database exclusively from another process."""
    lock = partial(
        sqlite3.connect, database(folder), isolation_level=None, timeout=30, check_same_thread=False
    )
    other = await anyio.to_thread.run_sync(lock)
    await anyio.to_thread.run_sync(other.execute, "BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


TROUBLES: dict[str, Trouble] = {"full disk": full_disk, "lock": locked_database}


async def run(folder: Path, rng: random.Random, *, rounds: int = 8, streams: int = 10) -> Outcome:
    """Interrupt a server's access to the disk.

    Args:
        folder: For the database and the logs.
        rng: Chooses the pacing.
        rounds: The rounds of each fault, each once short and once long.
        streams: The number of concurrent streams.
    """
    outcome = Outcome("disk")
    cut: list[int] = []
    with upstream() as provider:
        running = server(folder, provider.base_url, {"coalesce": "none"}, store_options=f"?timeout={BUSY}")
        async with running as process, client() as http:
            await _fill(http, process, outcome)
            for number in range(rounds):
                for name, trouble in TROUBLES.items():
                    key = f"{name.replace(' ', '-')}:{number}"
                    await _endure(http, process, folder, trouble, rng, f"{key}:short", streams, outcome)
                    cut.append(
                        await _fail(http, process, folder, trouble, rng, f"{key}:long", streams, outcome)
                    )
                    outcome.rounds += 2
            outcome.unfinished += await _count_open(http, process)
        log = process.log.read_text()
    outcome.check("Traceback" not in log, f"a traceback in the log: {log[log.find('Traceback') :][:2000]}")
    outcome.figures.append(
        f"{outcome.rounds * streams} streams, {sum(cut)} cut by a failing store; no restart"
    )
    return outcome


async def _fill(http: aiohttp.ClientSession, process: Served, outcome: Outcome) -> None:
    """Enlarge the database beyond the limit of the full disk."""
    order = Order("fill", pieces=2_000)
    seen = Seen()
    await send(http, process.url, order, seen)
    outcome.check(seen.text == order.text(), "the first response is incomplete")


def _orders(rng: random.Random, key: str, streams: int, pieces: int) -> list[Order]:
    return [
        Order(f"{key}:{index}", pieces=pieces, pace=rng.choice([0.001, 0.003])) for index in range(streams)
    ]


class _Under:
    """Running streams.

    Attributes:
        seen: The readers by the keys of their orders.
        orders: The orders by their keys.
        all_run: Set when every stream has received text.
    """

    def __init__(self, http: aiohttp.ClientSession, process: Served, orders: list[Order]) -> None:
        self._http, self._process = http, process
        self.all_run = anyio.Event()
        self.seen = {order.key: Seen(self._shown) for order in orders}
        self.orders = {order.key: order for order in orders}
        self._running = len(orders)

    def _shown(self, _piece: str) -> None:
        if not self.all_run.is_set() and all(each.texts for each in self.seen.values()):
            self.all_run.set()

    async def follow(self, key: str) -> None:
        await send(self._http, self._process.url, self.orders[key], self.seen[key])
        self._running -= 1

    async def all_ended(self) -> bool:
        return not self._running


async def _endure(
    http: aiohttp.ClientSession,
    process: Served,
    folder: Path,
    trouble: Trouble,
    rng: random.Random,
    key: str,
    streams: int,
    outcome: Outcome,
) -> None:
    """Short fault: every response is complete."""
    under = _Under(http, process, _orders(rng, key, streams, 400))
    async with anyio.create_task_group() as group:
        for each in under.seen:
            group.start_soon(under.follow, each)
        await under.all_run.wait()
        async with trouble(process, folder):
            await anyio.sleep(MOMENT)
    for name, seen in under.seen.items():
        state, text, _ = await stored(http, process.url, seen.task_id)
        outcome.lost += seen.lost
        outcome.repeated += seen.repeated
        outcome.unfinished += state not in FINAL
        outcome.check(seen.error is None, f"{name}: {seen.error}")
        outcome.check(
            seen.text == text == under.orders[name].text(), f"{name}: {state} with an incomplete text"
        )


async def _fail(
    http: aiohttp.ClientSession,
    process: Served,
    folder: Path,
    trouble: Trouble,
    rng: random.Random,
    key: str,
    streams: int,
    outcome: Outcome,
) -> int:
    """Long fault, until streams have ended because of it; return their number."""
    under = _Under(http, process, _orders(rng, key, streams, 100_000))
    late = Order(f"{key}:new", pieces=2)
    new: Seen | None = None
    async with anyio.create_task_group() as group:
        for each in under.seen:
            group.start_soon(under.follow, each)
        await under.all_run.wait()
        async with trouble(process, folder):
            ended = await until(under.all_ended, GIVEN_UP)
            outcome.check(ended, f"{key}: streams do not end while the store cannot write")
            new = await _try_to_begin(http, process, late, outcome)
        group.cancel_scope.cancel()
    await _check_answers_again(http, process, key, outcome)

    async def all_over() -> bool:
        return await _count_open(http, process) == 0

    # Before any request for a task: the server itself ends the tasks that it could not write.
    outcome.check(await until(all_over, RECOVERED), f"{key}: a failed task stays open")
    for name, seen in under.seen.items():
        await _check_kept(http, process, name, under.orders[name], seen, outcome)
    if new is not None:
        await _check_kept(http, process, late.key, late, new, outcome)
    return len(under.seen)


async def _try_to_begin(
    http: aiohttp.ClientSession, process: Served, order: Order, outcome: Outcome
) -> Seen | None:
    """Send a message while the disk is full: it is rejected, or accepted if there is space, and then persisted."""
    seen = Seen()
    try:
        await send(http, process.url, order, seen)
    except Refused as refused:
        outcome.check(_is_clear(refused.args[0]), f"{order.key}: no clear error: {refused}")
        return None
    if not seen.last:
        outcome.check(
            seen.error is not None and _is_clear(seen.error), f"{order.key}: no clear error: {seen.error}"
        )
        return None
    return seen


def _is_clear(error: dict[str, Any]) -> bool:
    return error.get("code") == -32603 and "store" in str(error.get("message"))


async def _check_answers_again(
    http: aiohttp.ClientSession, process: Served, key: str, outcome: Outcome
) -> None:
    order = Order(f"{key}:after", pieces=20)

    async def answers() -> bool:
        seen = Seen()
        with suppress(Refused):
            await send(http, process.url, order, seen)
        return seen.state == "TASK_STATE_COMPLETED" and seen.text == order.text()

    outcome.check(await until(answers, RECOVERED), f"{key}: the server does not recover")


async def _check_kept(
    http: aiohttp.ClientSession, process: Served, key: str, order: Order, seen: Seen, outcome: Outcome
) -> None:
    """Check that all published events are persisted byte for byte, and that the task has an end."""
    clear = seen.error is not None and _is_clear(seen.error)
    outcome.check(clear or seen.over, f"{key}: no clear error: {seen.error}")
    shown, marks, last = seen.text, dict(seen.marks), seen.last
    state, text, _ = await stored(http, process.url, seen.task_id)
    outcome.unfinished += state not in FINAL
    outcome.check(text.startswith(shown), f"{key}: published and not persisted")
    outcome.check(order.text(len(text.split())) == text, f"{key}: the text differs from the provider's")
    seen.error = None
    await resume(http, process.url, seen)
    again = Seen()
    await resume(http, process.url, again, task_id=seen.task_id)
    outcome.lost += seen.lost + again.lost
    outcome.repeated += seen.repeated + again.repeated
    kept = {number: mark for number, mark in again.marks.items() if number <= last}
    outcome.check(kept == marks, f"{key}: the persisted events differ from the published ones")
    outcome.check(seen.text == again.text == text, f"{key}: the resumed text differs from the stored one")


async def _count_open(http: aiohttp.ClientSession, process: Served) -> int:
    pages = [
        await call(http, process.url, "ListTasks", {"status": f"TASK_STATE_{state}"})
        for state in ("SUBMITTED", "WORKING")
    ]
    return sum(page["totalSize"] for page in pages)

"""Leak: thousands of turns in one process. Memory, tasks, threads and sockets do not grow.

The turns are of every kind: read to the end, abandoned, canceled, polled, several in a conversation, failed
by the provider, and resubscribed. The server runs in asyncio's debug mode with all warnings enabled; its log must
contain none.
"""

import json
import os
import random
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import aiohttp
import anyio
import psutil

from support.processes import Served
from tailrace.server.settings import Bounds
from torture.outcome import Outcome
from torture.server_process import server, until
from torture.stream_client import FINAL, Seen, call, client, message, resume, send
from torture.upstream import Order, upstream

MAX_GROWTH = 1.05
AT_ONCE = 16
PROBE = Path(__file__).with_name("probe")
KINDS = ("read", "read", "read", "leave", "cancel", "wait", "talk", "fail", "again")
BAD_WORDS = re.compile(
    r"Traceback|never retrieved|never awaited|was destroyed|unclosed|Warning|ERROR|coroutine"
)


class Held(NamedTuple):
    """The resources of an idle process.

    Attributes:
        memory: Private resident memory in bytes.
        tasks: The number of unfinished asyncio tasks.
        threads: The number of Python threads.
        sockets: The number of connected sockets.
        files: The number of file descriptors.
    """

    memory: int
    tasks: int
    threads: int
    sockets: int
    files: int


async def run(
    folder: Path,
    rng: random.Random,
    *,
    turns: int = 10_000,
    warm_up: int = 2_000,
    max_growth: float | None = MAX_GROWTH,
) -> Outcome:
    """Run many turns.

    Args:
        folder: For the database and the logs.
        rng: Chooses the kind of each turn.
        turns: The number of turns that count.
        warm_up: The number of turns before them, which fill caches and start threads.
        max_growth: The bound on the growth of memory; None if it is not measured.
    """
    outcome = Outcome("leak")
    probe = folder / "probe.json"
    settings: dict[str, object] = {
        "bounds": Bounds(read_timeout=5, upstream_retries=0),
        "PYTHONASYNCIODEBUG": 1,
        "PYTHONWARNINGS": "default",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(PROBE), os.environ.get("PYTHONPATH")))),
        "TORTURE_PROBE": probe,
    }
    kinds: Counter[str] = Counter()
    with upstream() as provider:
        async with server(folder, provider.base_url, settings) as process:
            await _turns(process, rng, warm_up, outcome, Counter())
            before = await _held(process, probe)
            await _turns(process, rng, turns, outcome, kinds)
            after = await _held(process, probe)
            await _check_no_task_is_open(process, outcome)
        log = process.log.read_text()
    outcome.rounds = turns
    growth = after.memory / before.memory
    outcome.figures.append(
        f"memory {before.memory / 2**20:.1f} -> {after.memory / 2**20:.1f} MB ({growth - 1:+.1%}); tasks "
        f"{before.tasks} -> {after.tasks}, threads {before.threads} -> {after.threads}, sockets {before.sockets} -> "
        f"{after.sockets}, files {before.files} -> {after.files}; {', '.join(f'{n} {k}' for k, n in kinds.items())}"
    )
    if max_growth is not None:
        outcome.check(growth < max_growth, f"memory grows by {growth - 1:.1%}")
    # The number of pooled connections and threads varies with the number of concurrent turns.
    for name, pool in (("tasks", 0), ("threads", AT_ONCE), ("sockets", AT_ONCE), ("files", AT_ONCE)):
        had, has = getattr(before, name), getattr(after, name)
        outcome.check(has <= had + pool, f"{has - had} more {name} than before")
    bad = [line for line in log.splitlines() if BAD_WORDS.search(line)]
    outcome.check(not bad, f"{len(bad)} bad lines in the log: {bad[:3]}")
    return outcome


async def _turns(
    process: Served, rng: random.Random, turns: int, outcome: Outcome, kinds: Counter[str]
) -> None:
    todo = [(number, rng.choice(KINDS), rng.randint(3, 60)) for number in range(turns)]
    label = uuid4().hex[:6]

    async def work(http: aiohttp.ClientSession) -> None:
        while todo:
            number, kind, pieces = todo.pop()
            kinds[kind] += 1
            order = Order(f"{label}:{number}", pieces=pieces, pace=0.0 if number % 2 else 0.0005)
            await _turn(http, process.url, kind, order, outcome)

    async with client() as http, anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(work, http)


async def _turn(http: aiohttp.ClientSession, url: str, kind: str, order: Order, outcome: Outcome) -> None:
    seen = Seen()
    text: object = order
    match kind:
        case "wait":
            task = (await call(http, url, "SendMessage", message(order)))["task"]
            seen.task_id, seen.state = task["id"], task["status"]["state"]
            await resume(http, url, seen)
        case "leave":
            await send(http, url, text, seen, upto=3)
            await resume(http, url, seen)
        case "cancel":
            text = Order(order.key, fault="hang-later", after=order.pieces)
            await _cancel(http, url, text, seen)
        case "talk":
            context: dict[str, Any] = {"contextId": str(uuid4())}
            await send(http, url, text, Seen(), **context)
            await send(http, url, text, seen, **context)
        case "fail":
            text = Order(order.key, fault="cut-mid-json", after=order.pieces)
            await send(http, url, text, seen)
        case _:
            await send(http, url, text, seen)
            if kind == "again":
                again = Seen()
                await resume(http, url, again, task_id=seen.task_id)
                outcome.check(again.marks == seen.marks, f"{order.key}: different events the second time")
    outcome.lost += seen.lost
    outcome.repeated += seen.repeated
    outcome.unfinished += seen.state not in FINAL
    state = {"cancel": "CANCELED", "fail": "FAILED"}.get(kind, "COMPLETED")
    outcome.check(seen.state == f"TASK_STATE_{state}", f"{order.key}: {kind} ended {seen.state}")
    whole = order.text()
    outcome.check(
        whole.startswith(seen.text) if kind == "cancel" else seen.text == whole,
        f"{order.key}: {kind}: different text",
    )


async def _cancel(http: aiohttp.ClientSession, url: str, order: Order, seen: Seen) -> None:
    shown = anyio.Event()

    def on_piece(_piece: str) -> None:
        shown.set()

    seen.each = on_piece
    async with anyio.create_task_group() as group:
        group.start_soon(send, http, url, order, seen)
        await shown.wait()
        await call(http, url, "CancelTask", {"id": seen.task_id})


async def _held(process: Served, probe: Path) -> Held:
    """Return the server's resources once all connections of the test are closed and no turn is running."""
    worker = psutil.Process(process.process.pid)
    port = int(process.url.rpartition(":")[2])

    async def is_left_alone() -> bool:
        return not any(each.raddr and each.laddr.port == port for each in worker.net_connections())

    async def has_answered() -> bool:
        return await anyio.Path(probe).exists()

    await until(is_left_alone, 10)
    counts: dict[str, int] = {}
    for _ in range(2):  # the first reading collects garbage
        await anyio.Path(probe).unlink(missing_ok=True)
        worker.send_signal(signal.SIGUSR1)
        if not await until(has_answered, 30):
            raise RuntimeError("the server does not report its resources")
        counts = json.loads(await anyio.Path(probe).read_text())
    sockets = sum(each.status == psutil.CONN_ESTABLISHED for each in worker.net_connections())
    memory = worker.memory_full_info().uss
    return Held(memory, counts["tasks"], counts["threads"], sockets, worker.num_fds())


async def _check_no_task_is_open(process: Served, outcome: Outcome) -> None:
    async with client() as http:
        for state in ("SUBMITTED", "WORKING"):
            page = await call(http, process.url, "ListTasks", {"status": f"TASK_STATE_{state}"})
            outcome.unfinished += page["totalSize"]

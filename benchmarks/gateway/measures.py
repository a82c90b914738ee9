"""The measurements of a reader process.

``lost`` is the number of incomplete or wrong streams.
"""

import asyncio
import math
import random
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from benchmarks.gateway import processes, reader_requests
from benchmarks.gateway.connection import Connection, Recording, connect
from benchmarks.gateway.order import Figures, Order
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.responses import Answer, events, read_answer

_WARM_TOKENS = 20
_WARM_STREAMS = 4
_MS = 1e6
_ENDLESS = 1_000_000  # deltas of a response that never ends
_HELD = 10  # deltas sent before a response is held


def percentile(numbers: Iterable[float], share: float) -> float:
    """Return the lowest number that is not lower than this share of all numbers; 0 if there are none."""
    ordered = sorted(numbers)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


@asynccontextmanager
async def _connections(order: Order, number: int) -> AsyncGenerator[list[Connection]]:
    found = [await connect(order.port) for _ in range(number)]
    try:
        yield found
    finally:
        for connection in found:
            connection.close()


async def _all(work: Sequence[Awaitable[Recording]]) -> list[Recording]:
    return [await each for each in work]


async def _warm(order: Order, connections: Sequence[Connection]) -> None:
    plan = Plan(_WARM_TOKENS)
    await _all([each.ask(reader_requests.start(order.dialect, plan)) for each in connections[:_WARM_STREAMS]])


async def _release(order: Order) -> None:
    upstream = await connect(order.upstream)
    await upstream.ask(reader_requests.release())
    upstream.close()


def _lost(answers: Iterable[Answer], plan: Plan) -> int:
    return sum(not answer.is_whole(plan) for answer in answers)


async def burst(order: Order) -> Figures:
    """Measure responses that are sent as fast as the server accepts them: ``streams`` at a time, ``rounds`` times."""
    plans = [Plan(order.tokens, seed=number) for number in range(order.rounds)]
    found: list[tuple[Plan, Recording]] = []
    async with _connections(order, order.streams) as connections:
        await _warm(order, connections)
        cpu, begin, own = processes.settle(order.process), time.monotonic_ns(), time.process_time_ns()
        for plan in plans:
            requests = [reader_requests.start(order.dialect, plan) for _ in connections]
            pending = [each.ask(request) for each, request in zip(connections, requests, strict=True)]
            found += [(plan, recording) for recording in await _all(pending)]
        end, own = time.monotonic_ns(), time.process_time_ns() - own
        spent = processes.settle(order.process) - cpu
    chunks = order.tokens * order.streams * order.rounds
    answers = [(plan, read_answer(recording, order.dialect)) for plan, recording in found]
    return {
        "cpu_us": spent / 1000 / chunks,
        "wall_us": (end - begin) / 1000 / chunks,
        "chunks_per_event": chunks / max(1, sum(answer.events for _, answer in answers)),
        "reader_load": own / (end - begin),
        "lost": sum(not answer.is_whole(plan) for plan, answer in answers),
    }


async def paced(order: Order) -> Figures:
    """Measure responses at the pace of a model: a window in which all are running, and the time to the first text.

    Each response begins at a random time, so that the tokens of the responses are not simultaneous.
    """
    ramp = order.streams / order.starts
    plan = Plan(math.ceil(order.rate * (ramp + order.seconds)) + order.rate // 2, rate=order.rate)
    chance = random.Random(order.seed)
    async with _connections(order, order.streams) as connections:
        await _warm(order, connections)
        pending: list[Awaitable[Recording]] = []
        begin, own = time.monotonic_ns(), time.process_time_ns()
        for number, connection in enumerate(connections):
            due = begin + int((number + chance.random()) / order.starts * 1e9)
            await anyio.sleep(max(0.0, (due - time.monotonic_ns()) / 1e9))
            pending.append(connection.ask(reader_requests.start(order.dialect, plan)))
        window_start, cpu = time.monotonic_ns(), processes.cpu_ns(order.process)
        await anyio.sleep(order.seconds)
        closed, spent = time.monotonic_ns(), processes.cpu_ns(order.process) - cpu
        recordings = await _all(pending)
        own, end = time.process_time_ns() - own, time.monotonic_ns()
    answers = [read_answer(recording, order.dialect) for recording in recordings]
    latencies = [each for answer in answers for each in answer.latencies(window_start, closed)]
    firsts = [
        answer.began - recording.requested_at
        for answer, recording in zip(answers, recordings, strict=True)
        if answer.began
    ]
    return {
        "cpu_us": spent / 1000 / len(latencies) if latencies else math.nan,
        "cores": spent / (closed - window_start),
        "latency_p50_ms": percentile(latencies, 0.5) / _MS,
        "latency_p99_ms": percentile(latencies, 0.99) / _MS,
        "first_p50_ms": percentile(firsts, 0.5) / _MS,
        "first_p99_ms": percentile(firsts, 0.99) / _MS,
        "reader_load": own / (end - begin),
        "lost": _lost(answers, plan),
    }


async def turns(order: Order) -> Figures:
    """Measure short responses, one after the other on each of ``streams`` connections, for ``seconds``."""
    plan = Plan(order.tokens)
    recordings: list[Recording] = []

    async def go_on(connection: Connection, until: int) -> None:
        over = False
        while not over:  # one turn at least, even if time is up
            recordings.append(await connection.ask(reader_requests.start(order.dialect, plan)))
            over = recordings[-1].broken or time.monotonic_ns() >= until

    async with _connections(order, order.streams) as connections:
        await _all([each.ask(reader_requests.start(order.dialect, plan)) for each in connections])
        cpu, begin, own = processes.settle(order.process), time.monotonic_ns(), time.process_time_ns()
        async with anyio.create_task_group() as group:
            for connection in connections:
                group.start_soon(go_on, connection, begin + int(order.seconds * 1e9))
        end, own = time.monotonic_ns(), time.process_time_ns() - own
        spent = processes.settle(order.process) - cpu
    answers = [read_answer(recording, order.dialect) for recording in recordings]
    lasted = [recording.ended - recording.requested_at for recording in recordings]
    return {
        "turns_s": len(recordings) / ((end - begin) / 1e9),
        "cpu_us": spent / 1000 / len(recordings),
        "turn_p50_ms": percentile(lasted, 0.5) / _MS,
        "turn_p99_ms": percentile(lasted, 0.99) / _MS,
        "reader_load": own / (end - begin),
        "lost": _lost(answers, plan),
    }


async def _begin_held(order: Order, connection: Connection, plan: Plan) -> tuple["Awaitable[Recording]", str]:
    """Begin a response that is held after its first deltas, and return it with the id of its task."""
    pending = connection.ask(reader_requests.start(order.dialect, plan))
    await connection.seen(b"artifactUpdate")
    task = read_answer(connection.recording, order.dialect).task
    if not task:
        raise RuntimeError(f"no task was begun: {connection.recording.reads!r}")
    return pending, task


async def fan_out(order: Order) -> Figures:
    """Measure one response with ``streams`` subscribers."""
    plan = Plan(order.tokens, rate=order.rate, hold=1)
    async with _connections(order, order.streams) as connections:
        await _warm(order, connections[:1])
        pending, task = await _begin_held(order, connections[0], plan)
        all_pending = [pending, *(each.ask(reader_requests.subscribe(task)) for each in connections[1:])]
        for connection in connections[1:]:
            await connection.seen(b"data:")
        cpu, begin, own = processes.settle(order.process), time.monotonic_ns(), time.process_time_ns()
        await _release(order)
        recordings = await _all(all_pending)
        end, own = time.monotonic_ns(), time.process_time_ns() - own
        spent = processes.settle(order.process) - cpu
    answers = [read_answer(recording, order.dialect) for recording in recordings]
    deliveries = order.tokens * order.streams
    sent = sum(answer.events for answer in answers)
    latencies = [each for answer in answers for each in answer.latencies(begin)] if order.rate else []
    return {
        "cpu_us": spent / 1000 / deliveries,
        "event_us": spent / 1000 / max(1, sent),
        "chunks_per_event": deliveries / max(1, sent),
        "latency_p50_ms": percentile(latencies, 0.5) / _MS,
        "latency_p99_ms": percentile(latencies, 0.99) / _MS,
        "reader_load": own / (end - begin),
        "lost": _lost(answers, plan),
    }


async def cancel(order: Order) -> Figures:
    """Cancel paced responses one after the other, for ``seconds``, while ``streams`` connections receive bursts.

    ``lost`` counts incomplete bursts, and tasks that were not cancelled.
    """
    burst, plan = Plan(order.tokens), Plan(_ENDLESS, rate=order.rate)
    bursts: list[Recording] = []
    replies: list[Recording] = []
    latencies: list[int] = []

    async def go_on(connection: Connection) -> None:
        while time.monotonic_ns() < end:
            bursts.append(await connection.ask(reader_requests.start(order.dialect, burst)))

    async with _connections(order, order.streams + 2) as (watched, other, *connections):
        await _warm(order, [watched])
        end = time.monotonic_ns() + int(order.seconds * 1e9)
        async with anyio.create_task_group() as group:
            for connection in connections:
                group.start_soon(go_on, connection)
            while time.monotonic_ns() < end:
                pending = watched.ask(reader_requests.start(order.dialect, plan))
                await watched.seen(f"{_HELD}@".encode())
                task = read_answer(watched.recording, order.dialect).task
                replies.append(await other.ask(reader_requests.cancel(task)))
                latencies += read_answer(await pending, order.dialect).latencies()
    lasted = [reply.ended - reply.requested_at for reply in replies]
    canceled = sum(b"TASK_STATE_CANCELED" in b"".join(reply.reads) for reply in replies)
    return {
        "cancel_p50_ms": percentile(lasted, 0.5) / _MS,
        "cancel_p99_ms": percentile(lasted, 0.99) / _MS,
        "latency_p50_ms": percentile(latencies, 0.5) / _MS,
        "latency_p99_ms": percentile(latencies, 0.99) / _MS,
        "cancels": len(replies),
        "lost": _lost([read_answer(each, order.dialect) for each in bursts], burst) + len(replies) - canceled,
    }


async def resume(order: Order) -> Figures:
    """Measure ``streams`` clients that resume complete responses, each after a random event of each of ``rounds`` tasks."""
    plan = Plan(order.tokens, rate=order.rate)
    chance = random.Random(order.seed)
    async with _connections(order, order.streams) as connections:
        begun = [each.ask(reader_requests.start(order.dialect, plan)) for each in connections[: order.rounds]]
        logs = [_Log(recording, order.dialect) for recording in await _all(begun)]
        whole = all(log.answer.is_whole(plan) for log in logs)
        chosen = [(log, chance.choice(log.numbers)) for log in (chance.choice(logs) for _ in connections)]
        cpu, begin, own = processes.settle(order.process), time.monotonic_ns(), time.process_time_ns()
        pending = [
            each.ask(reader_requests.subscribe(log.answer.task, number))
            for each, (log, number) in zip(connections, chosen, strict=True)
        ]
        recordings = await _all(pending)
        end, own = time.monotonic_ns(), time.process_time_ns() - own
        spent = processes.settle(order.process) - cpu
    return _resumed(chosen, recordings, spent, end - begin, own, whole)


async def resume_running(order: Order) -> Figures:
    """Measure ``streams`` concurrent clients that resume one running response, each after a random event."""
    plan = Plan(order.tokens, rate=order.rate)
    chance = random.Random(order.seed)
    async with _connections(order, order.streams + 1) as (first, *others):
        await _warm(order, [first])
        pending = first.ask(reader_requests.start(order.dialect, plan))
        await anyio.sleep(order.seconds)
        log = _Log(first.recording, order.dialect)
        numbers = [chance.choice(log.numbers) for _ in others]
        cpu, begin, own = processes.cpu_ns(order.process), time.monotonic_ns(), time.process_time_ns()
        resumed = [
            each.ask(reader_requests.subscribe(log.answer.task, number))
            for each, number in zip(others, numbers, strict=True)
        ]
        whole_log = _Log(await pending, order.dialect)
        recordings = await _all(resumed)
        end, own = time.monotonic_ns(), time.process_time_ns() - own
        spent = processes.settle(order.process) - cpu
    chosen = [(whole_log, number) for number in numbers]
    return _resumed(chosen, recordings, spent, end - begin, own, whole_log.answer.is_whole(plan))


class _Log:
    """The numbered events of a task, as its first subscriber received them."""

    def __init__(self, recording: Recording, dialect: str) -> None:
        self.answer = read_answer(recording, dialect)
        found = [event for event in events(recording) if event.number]
        self.numbers = [int(event.number) for event in found]
        self._payloads = {int(event.number): _result(event.data) for event in found}

    def after(self, number: int) -> list[bytes]:
        """Return the events after an event."""
        return [payload for at, payload in self._payloads.items() if at > number]


def _result(data: bytes) -> bytes:
    """Return an event without the id of its request."""
    return data[data.index(b'"result"') :] if b'"result"' in data else data


def _resumed(
    chosen: Sequence[tuple[_Log, int]],
    recordings: Sequence[Recording],
    spent: int,
    wall: int,
    own: int,
    whole: bool,
) -> Figures:
    lost = 0 if whole else len(recordings)
    sent = 0
    expected: dict[tuple[int, int], list[bytes]] = {}
    for (log, number), recording in zip(chosen, recordings, strict=True):
        key = id(log), number
        if key not in expected:
            expected[key] = log.after(number)
        got = [_result(event.data) for event in events(recording)]
        sent += len(got)
        lost += got != expected[key]
    lasted = [recording.ended - recording.requested_at for recording in recordings]
    return {
        "client_us": spent / 1000 / len(recordings),
        "event_us": spent / 1000 / max(1, sent),
        "events": sent,
        "wall_ms": wall / _MS,
        "client_p50_ms": percentile(lasted, 0.5) / _MS,
        "client_p99_ms": percentile(lasted, 0.99) / _MS,
        "reader_load": own / wall,
        "lost": lost,
    }


async def memory(order: Order) -> Figures:
    """Measure the memory of a new server, of each running response, and of each waiting subscriber."""
    start = processes.memory(order.process)
    plan = Plan(2 * _HELD, rate=order.rate, hold=_HELD)
    last = f"{_HELD - 1}@".encode()
    begin = partial(reader_requests.start, order.dialect, plan)
    async with _connections(order, 1) as (watched,):
        await _warm(order, [watched])
        pending = [watched.ask(begin())]
        await watched.seen(last)
        idle = _resident(order)
        async with _connections(order, order.streams) as connections:
            pending += [await _begun(each, begin()) for each in connections]
            for connection in connections:
                await connection.seen(last)
            live = _resident(order)
            task = read_answer(watched.recording, order.dialect).task
            readers = order.streams if task else 0  # servers without tasks have no subscribers
            async with _connections(order, readers) as others:
                pending += [await _begun(each, reader_requests.subscribe(task)) for each in others]
                followed = _resident(order)
                await _release(order)
                recordings = await _all(pending)
    answers = [read_answer(recording, order.dialect) for recording in recordings]
    return {
        "start_rss_mb": start["rss"] / 1e6,
        "start_pss_mb": start["pss"] / 1e6,
        "live_rss_kb": (live - idle) / 1e3 / order.streams,
        "reader_rss_kb": (followed - live) / 1e3 / order.streams,
        "lost": _lost(answers, plan),
    }


async def _begun(connection: Connection, request: bytes) -> "asyncio.Future[Recording]":
    """Send requests one after the other, each after the first event of the previous one."""
    pending = connection.ask(request)
    await connection.seen(b"data:")
    return pending


def _resident(order: Order) -> int:
    """Return the resident bytes of the server once it is idle."""
    processes.settle(order.process)
    return processes.memory(order.process)["rss"]


async def store(order: Order) -> Figures:
    """Measure the growth of the server's SQLite file per token of ``rounds`` responses, paced or in bursts."""
    async with _connections(order, order.streams) as connections:
        await _warm(order, connections[:1])
        before = _stored(order.database)
        plan = Plan(order.tokens, rate=order.rate)
        answers: list[Answer] = []
        for _ in range(order.rounds):
            pending = [each.ask(reader_requests.start(order.dialect, plan)) for each in connections]
            answers += [read_answer(recording, order.dialect) for recording in await _all(pending)]
        grown = _stored(order.database) - before
    chunks = order.tokens * order.streams * order.rounds
    text = sum(len(answer.text) for answer in answers)
    return {
        "stored_bytes": grown / chunks,
        "text_bytes": text / chunks,
        "chunks_per_event": chunks / max(1, sum(answer.events for answer in answers)),
        "lost": _lost(answers, plan),
    }


def _stored(database: str) -> int:
    """Return the size of an SQLite file after a checkpoint of its log."""
    with sqlite3.connect(database, timeout=30) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return Path(database).stat().st_size


MEASURES: dict[str, Callable[[Order], Coroutine[Any, Any, Figures]]] = {
    "burst": burst,
    "paced": paced,
    "turns": turns,
    "fan-out": fan_out,
    "cancel": cancel,
    "resume": resume,
    "resume-running": resume_running,
    "memory": memory,
    "store": store,
}

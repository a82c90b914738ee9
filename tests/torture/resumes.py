"""Resume: at every event of a stream, by three clients at once, at every pace, while the task runs and after its end.

For each event N of a stream there is one task. A client leaves its stream after event N, and three others resume at once
after N; each must receive N+1, N+2, … to the end, once. The same is repeated after the task's end.
"""

import random
from pathlib import Path

import aiohttp
import anyio

from torture.outcome import Outcome
from torture.server_process import server
from torture.stream_client import FINAL, Refused, Seen, client, resume, send, stored
from torture.upstream import Order, upstream

READERS = 3
PACES = (0.0, 0.0002, 0.0005, 0.001, 0.002, 0.005)
AT_ONCE = 8  # tasks


class _Counts:
    def __init__(self) -> None:
        self.resumed = self.running = 0


async def run(
    folder: Path, rng: random.Random, *, pieces: int = 60, paces: tuple[float, ...] = PACES, step: int = 1
) -> Outcome:
    """Resume at every event.

    Args:
        folder: For the database and the logs.
        rng: Chooses the order.
        pieces: The pieces of a response.
        paces: Seconds between the pieces.
        step: Resume at every event for 1, every second one for 2, ….
    """
    outcome = Outcome("resume")
    counts = _Counts()
    with upstream() as provider:
        async with server(folder, provider.base_url, {"coalesce": "none"}) as process, client() as http:
            whole = Seen()
            await send(http, process.url, Order("whole", pieces=pieces), whole)
            trials = [(pace, number) for pace in paces for number in range(1, whole.last + 1, step)]
            rng.shuffle(trials)
            limiter = anyio.CapacityLimiter(AT_ONCE)
            async with anyio.create_task_group() as group:
                for pace, number in trials:
                    order = Order(f"r{number}p{int(pace * 1e4)}", pieces=pieces, pace=pace)
                    group.start_soon(_try, limiter, http, process.url, order, number, outcome, counts)
    outcome.rounds = len(trials)
    outcome.figures.append(
        f"{whole.last} events a stream, {counts.resumed} resumptions, {counts.running} of them while the task ran"
    )
    outcome.check(counts.running > 0, "nothing was resumed while it ran")
    return outcome


async def _try(
    limiter: anyio.CapacityLimiter,
    http: aiohttp.ClientSession,
    url: str,
    order: Order,
    number: int,
    outcome: Outcome,
    counts: _Counts,
) -> None:
    async with limiter:
        first = Seen()
        await send(http, url, order, first, upto=number)
        outcome.check(first.last == number, f"{order.key}: left after {first.last}, not {number}")
        others = [await _resume_together(http, url, first, outcome, order.key)]
        state, text, _ = await stored(http, url, first.task_id)
        counts.running += sum(seen.ran for seen in others[0])
        others.append(await _resume_together(http, url, first, outcome, order.key))
        counts.resumed += 2 * READERS
    outcome.unfinished += state not in FINAL
    outcome.check(text == order.text(), f"{order.key}: the stored text differs from the provider's")
    for seen in (each for group in others for each in group):
        outcome.lost += seen.lost
        outcome.repeated += seen.repeated
        outcome.check(seen.overviews == 0, f"{order.key}: an unnecessary snapshot of the task was sent")
        outcome.check(
            "".join(first.texts.get("text", [])) + seen.added == text,
            f"{order.key}: the final text differs",
        )
        outcome.check(seen.last == others[0][0].last, f"{order.key}: streams end at different numbers")


class _Resumed(Seen):
    """The events after a number.

    Attributes:
        added: The text.
        ran: Whether the task was running at the request.
    """

    def __init__(self, first: Seen) -> None:
        self.pieces: list[str] = []
        super().__init__(self.pieces.append)
        self.task_id, self.last, self.state = first.task_id, first.last, first.state
        self.texts = {"text": []}
        self.ran = False

    @property
    def added(self) -> str:
        return "".join(self.pieces)


async def _resume_together(
    http: aiohttp.ClientSession, url: str, first: Seen, outcome: Outcome, key: str
) -> list[_Resumed]:
    resumed = [_Resumed(first) for _ in range(READERS)]

    async def go_on(seen: _Resumed) -> None:
        try:
            outcome.check(await resume(http, url, seen), f"{key}: a resumed stream was interrupted")
        except Refused as refused:
            outcome.check(False, f"{key}: not resumed after {first.last}: {refused}")

    before, _, _ = await stored(http, url, first.task_id)
    async with anyio.create_task_group() as group:
        for seen in resumed:
            seen.ran = before not in FINAL
            group.start_soon(go_on, seen)
    return resumed

"""Continue: streams of providers of all formats are cut at random bytes, and the agent continues the responses.

Each response is completed. The text is the provider's, whether it was attached to, continued by prefill, or openly replaced.
"""

import random
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path

import anyio

from support.continuing import FORMAT_OF
from support.cut_responses import cut_response
from torture.outcome import Outcome

CONCURRENT_CUTS = 4


async def run(folder: Path, rng: random.Random, *, cuts: int = 1_000) -> Outcome:
    """Cut responses.

    Args:
        folder: Unused: the scenario has no server with a log.
        rng: Chooses texts, bytes and failures.
        cuts: The number of cuts, in equal parts for each format.
    """
    outcome = Outcome("continue")
    formats = sorted(set(FORMAT_OF.values()))
    counts: Counter[str] = Counter()
    completed = spoiled = calls = 0
    limiter = anyio.Semaphore(CONCURRENT_CUTS)

    async def cut(number: int, seed: int) -> None:
        nonlocal completed, spoiled, calls
        chance = random.Random(seed)
        name = formats[number % len(formats)]
        kind = chance.choice([kind for kind, other in FORMAT_OF.items() if other == name])
        has_call = chance.random() < 0.4
        async with limiter:
            response = await cut_response(kind, chance, call=has_call)
        faults = response.faults()
        for fault in faults:
            outcome.check(False, fault)
        completed += not faults
        calls += has_call
        counts[response.route or "finished before the cut"] += 1
        lost, repeated = _difference(response.expected_text, response.text)
        outcome.lost += lost
        outcome.repeated += repeated
        spoiled += lost + repeated
        outcome.rounds += 1

    # The first response of each format imports its client, which blocks the event loop of all others.
    for number in range(min(cuts, len(formats))):
        await cut(number, rng.getrandbits(32))
    async with anyio.create_task_group() as group:
        for number in range(len(formats), cuts):
            group.start_soon(cut, number, rng.getrandbits(32))
    routes = ", ".join(f"{count} {route}" for route, count in sorted(counts.items()))
    outcome.figures.append(
        f"{cuts} cuts of {len(formats)} formats, {calls} of them with a tool call ({routes}): {completed} completed as "
        f"required, {spoiled} characters lost or repeated"
    )
    return outcome


def _difference(expected: str, text: str) -> tuple[int, int]:
    """The numbers of lost and of repeated characters."""
    if text == expected:
        return 0, 0
    changes = [
        each
        for each in SequenceMatcher(None, expected, text, autojunk=False).get_opcodes()
        if each[0] != "equal"
    ]
    return sum(to - at for _, at, to, _, _ in changes), sum(to - at for _, _, _, at, to in changes)

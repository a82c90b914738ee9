"""Verdict: llmock breaks answers on demand, and judges from outside how its client behaved. It must find *resilient*.

llmock sees what reaches the provider. That a truncated or corrupted answer was not taken for a whole one shows in that
it is asked for again: here by the caller, who is told that the task failed, and asks again as callers do. Had the server
ended such a task as completed, nobody would ask again, and the verdict would be `truncated_stream_accepted`.
"""

import random
from collections.abc import Sequence
from pathlib import Path

import aiohttp
from llmock.chaos import StreamChaos
from llmock.scenarios import Behavior, Fail, SlowFirstToken, StreamFault
from llmock.testing import LLMockServer
from llmock.verdict import judge

from support.processes import Served
from torture.outcome import Outcome
from torture.reading import FINAL, Seen, client, send, stored
from torture.serving import server

READ_TIMEOUT = 1.0
TRIES = 3
CHUNK_DELAY = 50  # milliseconds
FAILED = "TASK_STATE_FAILED"
JUDGING = 5.0  # seconds until llmock has noticed that a request is over


async def run(folder: Path, rng: random.Random, *, each: int = 5) -> Outcome:
    """Ask a provider that llmock breaks.

    Args:
        folder: For the database and the logs.
        rng: Decides after how many chunks.
        each: How often each fault.
    """
    outcome = Outcome("verdict")
    with LLMockServer() as provider:
        # Else all of an answer may be sent before its client can stop reading, and llmock says that it read on.
        provider.state.stream_chaos = StreamChaos(chunk_delay_ms=CHUNK_DELAY)
        settings = {"read_timeout": READ_TIMEOUT, "upstream_retries": 2}
        async with server(folder, provider.base_url(), settings) as process, client() as http:
            for number in range(each):
                for name, behaviors, failing in _cases(rng):
                    provider.state.scenarios.add(*behaviors)
                    key = f"{name} {number}"
                    states = await _ask(http, process, key, outcome)
                    outcome.check(
                        states == [FAILED] * failing + ["TASK_STATE_COMPLETED"], f"{key}: ended {states}"
                    )
                    outcome.rounds += 1
    verdict = judge(provider.state.journal.records(wait=JUDGING))
    outcome.figures.append(
        f"llmock: {'resilient' if verdict.passed else 'NOT resilient'}; {len(verdict.calls)} calls, "
        f"{verdict.attempts} attempts, {verdict.faults} faults, {len(verdict.errors)} errors, "
        f"{len(verdict.warnings)} warnings"
    )
    for finding in verdict.findings:
        outcome.check(False, f"llmock: {finding.severity} {finding.code}: {finding.title}")
    return outcome


def _cases(rng: random.Random) -> list[tuple[str, Sequence[Behavior], int]]:
    """Faults, and how many tasks fail of them before one is completed."""
    after = rng.randint(1, 4)
    return [
        ("none", [], 0),
        ("429 with retry-after", [Fail(429, retry_after=0.5)], 0),
        ("503 twice", [Fail(503, times=2)], 0),
        ("500 for longer", [Fail(500, times=3)], 1),
        ("400", [Fail(400)], 1),
        ("slow first token", [SlowFirstToken(READ_TIMEOUT / 2)], 0),
        ("truncate", [StreamFault("truncate", after_chunks=after)], 1),
        ("disconnect", [StreamFault("disconnect", after_chunks=after)], 1),
        ("malformed", [StreamFault("malformed", after_chunks=after)], 1),
        ("stall", [StreamFault("stall", after_chunks=after, stall_seconds=10)], 1),
    ]


async def _ask(http: aiohttp.ClientSession, process: Served, key: str, outcome: Outcome) -> list[str]:
    """Ask as a caller does who asks again when a task failed; the states of the tasks."""
    states: list[str] = []
    while not states or (states[-1] == FAILED and len(states) < TRIES):
        # A refusal for good is not repeated word for word.
        again = f", again {len(states)}" if key.startswith("400") else ""
        seen = Seen()
        await send(http, process.url, f"Say something about {key}{again}.", seen)
        state, text, _ = await stored(http, process.url, seen.task_id)
        outcome.lost += seen.lost
        outcome.repeated += seen.repeated
        outcome.unfinished += state not in FINAL
        outcome.check(text == seen.text, f"{key}: what was seen is not what is stored")
        states.append(state)
    return states

"""Verdict: llmock injects faults into responses and judges its client's behaviour. The verdict must be *resilient*.

llmock observes only the provider's side. A response that was not accepted as complete is requested again: by the
server, which continues responses that break off, or by the caller, which receives a failed task and repeats its message.
Had the server completed the task with the incomplete response, there would be no second request, and the verdict would be
`truncated_stream_accepted`.
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
from tailrace.server.settings import Bounds
from torture.outcome import Outcome
from torture.server_process import server
from torture.stream_client import FINAL, Seen, client, send, stored

READ_TIMEOUT = 1.0
TRIES = 3
CHUNK_DELAY = 50  # milliseconds
FAILED = "TASK_STATE_FAILED"
JUDGING = 5.0  # seconds until llmock has detected the end of a request


async def run(folder: Path, rng: random.Random, *, each: int = 5) -> Outcome:
    """Use a provider whose responses llmock breaks.

    Args:
        folder: For the database and the logs.
        rng: Chooses the number of chunks.
        each: The repetitions of each fault.
    """
    outcome = Outcome("verdict")
    with LLMockServer() as provider:
        # Otherwise a complete response may be sent before its client stops reading, which llmock judges as reading on.
        provider.state.stream_chaos = StreamChaos(chunk_delay_ms=CHUNK_DELAY)
        settings = {"bounds": Bounds(read_timeout=READ_TIMEOUT, upstream_retries=2)}
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
    """Faults, and the number of tasks that fail before one is completed."""
    after = rng.randint(1, 4)
    return [
        ("none", [], 0),
        ("429 with retry-after", [Fail(429, retry_after=0.5)], 0),
        ("503 twice", [Fail(503, times=2)], 0),
        ("500 for longer", [Fail(500, times=3)], 1),
        ("400", [Fail(400)], 1),
        ("slow first token", [SlowFirstToken(READ_TIMEOUT / 2)], 0),
        ("truncate", [StreamFault("truncate", after_chunks=after)], 0),
        ("disconnect", [StreamFault("disconnect", after_chunks=after)], 0),
        ("malformed", [StreamFault("malformed", after_chunks=after)], 1),
        ("stall", [StreamFault("stall", after_chunks=after, stall_seconds=10)], 0),
    ]


async def _ask(http: aiohttp.ClientSession, process: Served, key: str, outcome: Outcome) -> list[str]:
    """Repeat the message while the task fails, as callers do; return the states of the tasks."""
    states: list[str] = []
    while not states or (states[-1] == FAILED and len(states) < TRIES):
        # A repeated message must differ after a permanent error.
        again = f", again {len(states)}" if key.startswith("400") else ""
        seen = Seen()
        await send(http, process.url, f"Say something about {key}{again}.", seen)
        state, text, _ = await stored(http, process.url, seen.task_id)
        outcome.lost += seen.lost
        outcome.repeated += seen.repeated
        outcome.unfinished += state not in FINAL
        outcome.check(text == seen.text, f"{key}: the received text differs from the stored one")
        states.append(state)
    return states

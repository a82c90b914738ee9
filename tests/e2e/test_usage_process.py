"""The ledger after kills: no attempt is lost or counted twice."""

import asyncio
import random
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from support.processes import served
from support.rpc import Rpc, message
from support.upstream import Received, ScriptedUpstream, Step, json_answer, openai_stream
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI

pytestmark = pytest.mark.e2e

KILLS = 5
TASKS = 8
PIECES = [f"word{number} " for number in range(40)]


class NumberingProvider:
    """A provider whose responses have different numbers of tokens: the number of the request, and a multiple of it."""

    def __init__(self) -> None:
        self.requests = 0

    def respond(self, request: Received) -> Sequence[Step]:
        """The script of a response."""
        if request.method == "GET":
            return json_answer({"object": "list", "data": []})
        self.requests += 1
        given, made = self.requests, 3 * self.requests
        usage = {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
        return openai_stream(PIECES, usage=usage)


async def test_kills_neither_lose_nor_repeat_an_attempt(tmp_path: Path) -> None:
    chance = random.Random(25)
    provider = NumberingProvider()
    database = tmp_path / "t.db"
    task_ids: list[str] = []
    async with ScriptedUpstream(provider.respond, lists_models=True) as upstream:
        arguments = [
            "--model",
            "openai:m",
            "--base-url",
            upstream.base_url,
            "--store",
            f"sqlite:///{database}",
        ]
        for number in range(KILLS):
            with served(tmp_path / f"{number}.log", *arguments) as process:
                await process.ready()
                left = chance.randrange(1, TASKS * len(PIECES))

                def seen(_: Any) -> None:
                    nonlocal left
                    left -= 1
                    if left == 0:
                        process.kill()

                async with Rpc(process.url) as rpc, anyio.create_task_group() as group:
                    for _ in range(TASKS):
                        group.start_soon(run, rpc, task_ids, seen)
        with served(tmp_path / "last.log", *arguments) as process:
            await process.ready()
            async with Rpc(process.url) as rpc:
                with anyio.fail_after(60):
                    reported = [await usage_at_end(rpc, each) for each in task_ids]
    rows = rows_of(database)
    final = [row for row in rows if row[1] == "final"]
    # Each task has one complete response: that of its last status.
    assert Counter((task, given, made) for task, _, given, made in final) == Counter(
        (task, *usage) for task, usage in zip(task_ids, reported, strict=True)
    )
    assert all(not given and not made for _, state, given, made in rows if state != "final")
    # No other request is without a row.
    assert provider.requests - len(final) <= len(rows) - len(final)
    assert len(final) == len({given for _, _, given, _ in final}) == len(task_ids)


async def run(rpc: Rpc, task_ids: list[str], seen: Any) -> None:
    """Send a message, and add the id of its task, until the server is killed."""
    found = False

    def each(events: list[tuple[int, dict[str, Any]]]) -> None:
        nonlocal found
        if events and not found:
            found = True
            task_ids.append(events[0][1]["task"]["id"])
        seen(events)

    with suppress(aiohttp.ClientError, asyncio.IncompleteReadError):
        await rpc.stream("SendStreamingMessage", message("Rivers?"), seen=each)


async def usage_at_end(rpc: Rpc, task_id: str) -> tuple[int, int]:
    """Wait for the end of a task; return the usage of its last status."""
    task = await rpc.result("GetTask", {"id": task_id})
    if task["status"]["state"] != "TASK_STATE_COMPLETED":
        await rpc.stream("SubscribeToTask", {"id": task_id})
        task = await rpc.result("GetTask", {"id": task_id})
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    usage = task["metadata"][EXTENSION_URI]["usage"]
    return usage["inputTokens"], usage["outputTokens"]


def rows_of(database: Path) -> list[tuple[str, str, int, int]]:
    """The rows of the ledger."""
    connection = sqlite3.connect(database)
    try:
        return connection.execute("SELECT task_id, state, input_tokens, output_tokens FROM ledger").fetchall()
    finally:
        connection.close()

"""The ledger after kills: no attempt is lost or counted twice."""

import asyncio
import os
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
from support.rounds import answer
from support.rpc import Rpc, message
from support.upstream import Hang, Received, ScriptedUpstream, SetEvent, Step, json_answer, openai_stream
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from torture.append_tool import FILE

pytestmark = pytest.mark.e2e

KILLS = int(os.environ.get("TAILRACE_TEST_LEDGER_KILLS", "5"))
"""Kills of a server; the nightly run has more."""

TASKS = 8
PIECES = [f"word{number} " for number in range(40)]


class NumberingProvider:
    """A provider whose responses have different numbers of tokens: the number of the request, and a multiple of it.

    Args:
        calls_tool: The first response of a turn calls a tool.
    """

    def __init__(self, *, calls_tool: bool = False) -> None:
        self._calls_tool = calls_tool
        self.requests = 0

    def respond(self, request: Received) -> Sequence[Step]:
        """The script of a response."""
        if request.method == "GET":
            return json_answer({"object": "list", "data": []})
        self.requests += 1
        given, made = self.requests, 3 * self.requests
        usage = {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
        if self._calls_tool and request.json["messages"][-1]["role"] != "tool":
            return answer(*PIECES, calls=[("c1", "append", {"line": "x"})], usage=usage)
        return openai_stream(PIECES, usage=usage)


def server_of(
    upstream: ScriptedUpstream, folder: Path, *, calls_tool: bool
) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment of a server, whose database and tool write to a folder."""
    model = ["--model", "openai:m", "--base-url", upstream.base_url]
    tools = ["--tools", "torture.append_tool:append"] if calls_tool else []
    environment = {FILE: str(folder / "lines"), "PYTHONPATH": str(Path(__file__).parents[1])}
    return [*model, "--store", f"sqlite:///{folder}/t.db", *tools], environment


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("calls_tool", [False, True])
async def test_kills_neither_lose_nor_repeat_an_attempt(tmp_path: Path, *, calls_tool: bool) -> None:
    chance = random.Random(25)
    provider = NumberingProvider(calls_tool=calls_tool)
    task_ids: list[str] = []
    async with ScriptedUpstream(provider.respond, lists_models=True) as upstream:
        arguments, environment = server_of(upstream, tmp_path, calls_tool=calls_tool)
        for number in range(KILLS):
            with served(tmp_path / f"{number}.log", *arguments, **environment) as process:
                await process.ready()
                left = chance.randrange(1, TASKS * len(PIECES) * (1 + calls_tool))

                def seen(_: Any) -> None:
                    nonlocal left
                    left -= 1
                    if left == 0:
                        process.kill()

                async with Rpc(process.url) as rpc, anyio.create_task_group() as group:
                    for each in task_ids[-TASKS:]:  # a task that is interrupted three times fails
                        await usage_at_end(rpc, each)
                    for _ in range(TASKS):
                        group.start_soon(run, rpc, task_ids, seen)
        with served(tmp_path / "last.log", *arguments, **environment) as process:
            await process.ready()
            async with Rpc(process.url) as rpc:
                with anyio.fail_after(60 + KILLS):
                    reported = [await usage_at_end(rpc, each) for each in task_ids]
    rows = rows_of(tmp_path)
    # Without tasks whose first event no client received.
    final = [row for row in rows if row[1] == "final" and row[0] in task_ids]
    if calls_tool:  # each task has two complete responses, however often it was interrupted
        assert Counter(row[0] for row in final) == dict.fromkeys(task_ids, 2)
    else:  # each task has one complete response: that of its last status
        assert Counter((task, given, made) for task, _, given, made in final) == Counter(
            (task, *usage) for task, usage in zip(task_ids, reported, strict=True)
        )
    assert all(made == 3 * given for _, _, given, made in final)
    assert len({given for _, _, given, _ in final}) == len(final)  # no request is counted twice
    assert all(not given and not made for _, state, given, made in rows if state != "final")
    assert provider.requests <= len(rows)  # no request is without a row


async def test_a_request_that_waits_for_its_response_is_lost_after_tools(tmp_path: Path) -> None:
    """The results of tools are in artifacts only, until the response begins."""
    usage = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
    waits = anyio.Event()
    scripts: list[Sequence[Step]] = [
        answer(calls=[("c1", "append", {"line": "x"})], usage=usage),
        [SetEvent(waits), Hang()],
        openai_stream(["Done."], usage=usage),
    ]
    async with ScriptedUpstream(*scripts) as upstream:
        arguments, environment = server_of(upstream, tmp_path, calls_tool=True)
        task_ids: list[str] = []
        with served(tmp_path / "first.log", *arguments, **environment) as process:
            await process.ready()
            async with Rpc(process.url) as rpc, anyio.create_task_group() as group:
                group.start_soon(run, rpc, task_ids, len)
                with anyio.fail_after(30):
                    await waits.wait()
                process.kill()
        with served(tmp_path / "second.log", *arguments, **environment) as process:
            await process.ready()
            async with Rpc(process.url) as rpc:
                await usage_at_end(rpc, task_ids[0])
    assert [(state, given) for _, state, given, _ in rows_of(tmp_path)] == [
        ("final", 1),
        ("lost", 0),
        ("final", 1),
    ]


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
    # A subscription after an event is accepted after the end of the task, too.
    await rpc.stream("SubscribeToTask", {"id": task_id}, {"Last-Event-ID": "1"})
    task = await rpc.result("GetTask", {"id": task_id})
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    usage = task["metadata"][EXTENSION_URI]["usage"]
    return usage["inputTokens"], usage["outputTokens"]


def rows_of(folder: Path) -> list[tuple[str, str, int, int]]:
    """The rows of the ledger."""
    connection = sqlite3.connect(folder / "t.db")
    try:
        return connection.execute("SELECT task_id, state, input_tokens, output_tokens FROM ledger").fetchall()
    finally:
        connection.close()

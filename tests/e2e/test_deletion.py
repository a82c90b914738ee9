"""Deletion by a caller: no byte of the content remains in files, in the database, in the broker or in memory.

The servers run with ``PYTHONMALLOC=malloc`` and ``MALLOC_PERTURB_``: released memory is overwritten, so that a search of a
process finds what it still refers to.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from anyio.abc import TaskStatus
from sqlalchemy import make_url, select
from sqlalchemy.ext.asyncio import create_async_engine

from support.nodes import Nodes
from support.postgres import PostgresServer
from support.processes import Served, served
from support.rounds import answer
from support.upstream import Hang, ScriptedUpstream
from support.valkey import ValkeyServer
from tailrace.server.store.schema import metadata

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no /proc"),
]

MARKER, OTHER = "marigold-in-the-meadow", "thistle-on-the-heath"
"""The words of the two callers, longer than the last 8 bytes of a block, which glibc does not overwrite when it is released."""

_KEYS = {"alice": "alicealicealicealice", "bob": "bobbobbobbobbobbobbob"}
KEYS = ",".join(f"{name}:{key}" for name, key in _KEYS.items())
OVERWRITE = {
    "PYTHONMALLOC": "malloc",
    "MALLOC_PERTURB_": "165",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",  # blocks in these caches are not overwritten
    "TAILRACE_CALLER_KEYS": KEYS,
    "TAILRACE_PUSH_NOTIFICATIONS": "private",
}
"""The environment of a server whose released memory is overwritten."""


def pattern_of(word: str) -> re.Pattern[bytes]:
    """The word as UTF-8 or as four bytes a character."""
    return re.compile(b"|".join((re.escape(word.encode()), re.escape(word.encode("utf-32-le")))))


def regions_of(pid: int) -> Iterator[bytes]:
    """The writable memory of a process."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            span, access, *_ = line.split()
            if not access.startswith("rw") or "[v" in line:
                continue
            begin, end = (int(each, 16) for each in span.split("-"))
            try:
                memory.seek(begin)
                yield memory.read(end - begin)
            except OSError:  # it was unmapped meanwhile
                continue


def found_in_memory(pid: int, word: str) -> list[bytes]:
    """What surrounds a word in the memory of a process."""
    pattern = pattern_of(word)
    return [
        region[max(each.start() - 60, 0) : each.end() + 60]
        for region in regions_of(pid)
        for each in pattern.finditer(region)
    ]


def found_in_files(folder: Path, word: str) -> list[str]:
    """The names of the files with a word."""
    pattern = pattern_of(word)
    return [each.name for each in folder.iterdir() if each.is_file() and pattern.search(each.read_bytes())]


class Caller:
    """A caller of one server.

    Args:
        http: The session.
        server: The server.
        name: The caller.
    """

    def __init__(self, http: aiohttp.ClientSession, server: Served, name: str) -> None:
        self._http = http
        self._server = server
        self._headers = {"X-API-Key": _KEYS[name]}

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request; return the status and the JSON."""
        async with self._http.request(
            method, self._server.url + path, json=body, headers=self._headers
        ) as response:
            return response.status, await response.json()

    async def follow(self, path: str, *, task_status: TaskStatus[None]) -> None:
        """Read a stream to its end; signal when it has a word of its response."""
        async with self._http.get(self._server.url + path, headers=self._headers) as response:
            assert response.status == 200
            async for line in response.content:
                if b"output_text.delta" in line:
                    task_status.started()
                    break
            async for _ in response.content:
                pass


async def fill(caller: Caller, word: str, upstream: ScriptedUpstream) -> dict[str, str]:
    """Create content with a word: a task with a webhook that fails, a response and a completion; return their paths.

    The background response has been requested from the upstream, which responds in the order of its requests.
    """
    before = len(upstream.requests)
    message = {
        "messageId": "m",
        "role": "ROLE_USER",
        "parts": [{"text": f"{word} one"}],
        "contextId": f"c-{word[:3]}",
    }
    hook = {"url": "http://127.0.0.1:9/", "token": f"{word}-token"}
    _, sent = await caller.ask(
        "POST", "/message:send", {"message": message, "configuration": {"taskPushNotificationConfig": hook}}
    )
    task = sent["task"]
    _, response = await caller.ask("POST", "/v1/responses", {"model": "", "input": f"{word} two"})
    chat = {"model": "", "messages": [{"role": "user", "content": f"{word} three"}], "store": True}
    _, completion = await caller.ask("POST", "/v1/chat/completions", chat)
    running = {"model": "", "input": f"{word} hold", "background": True}
    _, background = await caller.ask("POST", "/v1/responses", running)
    await upstream.received(before + 3)
    return {
        "conversation": f"/conversations/{task['contextId']}",
        "task": f"/tasks/{task['id']}",
        "response": f"/v1/responses/{response['id']}",
        "completion": f"/v1/chat/completions/{completion['id']}",
        "background": f"/v1/responses/{background['id']}",
    }


def scripts(servers: int = 1) -> list[Any]:
    """Responses that repeat the word of one caller, whose last one stays open; those of the other; then long ones."""
    found: list[Any] = []
    for word in (OTHER, MARKER):
        repeated = answer(*(f"{word} {number} " for number in range(200)), reasoning=f"{word} hmm")
        open_ended = answer(*(f"{word} {number} " for number in range(50)), finish=None)
        found += [repeated, repeated, repeated, [*open_ended, Hang()]]
    filling = answer("fill " * 100_000)
    return [*found, *[filling] * (2 * servers)]


async def settled(find: Callable[[], object]) -> None:
    """Wait until a search finds nothing; other tasks of the server may still release what they refer to."""
    with anyio.move_on_after(20):
        while True:
            if not find():
                return
            await anyio.sleep(0.2)  # the memory of another process is the only state
    assert not find()


async def overwrite_buffers(caller: Caller) -> None:
    """Send and receive more than buffers of connections hold, between the server and its clients and provider."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "fill " * 200_000}]}
    for _ in range(2):
        await caller.ask("POST", "/message:send", {"message": message})


async def delete(caller: Caller, paths: dict[str, str]) -> None:
    for name in ("conversation", "response", "completion", "background"):
        status, body = await caller.ask("DELETE", paths[name])
        assert status == 200, body
    for name in ("task", "response", "completion", "background"):
        status, body = await caller.ask("GET", paths[name])
        assert status == 404, body


async def test_nothing_remains_of_deleted_content_in_a_cluster(
    tmp_path: Path, postgres: PostgresServer, valkey: ValkeyServer
) -> None:
    nodes = await Nodes.empty(postgres, valkey)
    environment = {**OVERWRITE, "TAILRACE_EVENTS": nodes.events, "TAILRACE_STORE": nodes.store}
    async with ScriptedUpstream(*scripts(servers=3)) as upstream, aiohttp.ClientSession() as http:
        options = ["--model", "openai:scripted", "--base-url", upstream.base_url]
        with ExitStack() as stack:
            servers = [
                stack.enter_context(served(tmp_path / f"log-{number}", *options, **environment))
                for number in range(3)
            ]
            for server in servers:
                await server.ready()
            bob = [Caller(http, server, "bob") for server in servers]
            alice = [Caller(http, server, "alice") for server in servers]
            kept = await fill(bob[0], OTHER, upstream)
            paths = await fill(alice[0], MARKER, upstream)
            before = [await bob[1].ask("GET", kept[name]) for name in ("task", "response", "completion")]
            pids = [server.process.pid for server in servers]
            async with anyio.create_task_group() as group:
                # Each node streams the running task, and loads the others.
                for node in alice:
                    await group.start(node.follow, f"{paths['background']}?stream=true")
                    for name in ("task", "response", "completion"):
                        assert (await node.ask("GET", paths[name]))[0] == 200
                for pid in (valkey.pid, *pids):
                    assert found_in_memory(pid, MARKER)
                await delete(alice[1], paths)
            assert await rows_with(nodes.store, MARKER) == []
            assert await rows_with(nodes.store, OTHER)
            valkey.command("SAVE")
            [dump] = valkey.folder.glob("*.rdb")
            assert pattern_of(MARKER).search(dump.read_bytes()) is None
            for node in bob:
                await overwrite_buffers(node)
            for pid in pids:
                await settled(lambda pid=pid: found_in_memory(pid, MARKER))
            for node in bob:
                again = [await node.ask("GET", kept[name]) for name in ("task", "response", "completion")]
                assert again == before
            for node in alice:
                for name in ("task", "response", "completion", "background"):
                    assert (await node.ask("GET", paths[name]))[0] == 404


async def rows_with(url: str, word: str) -> list[str]:
    """The tables of a PostgreSQL database with a word, in any column."""
    engine = create_async_engine(make_url(url).set(drivername="postgresql+asyncpg"))
    try:
        async with engine.connect() as connection:
            found: list[str] = []
            for table in metadata.sorted_tables:
                rows = await connection.execute(select(table))
                found += [table.name for row in rows if any(word in str(each) for each in row)]
            return found
    finally:
        await engine.dispose()


async def test_nothing_remains_of_deleted_content_in_files_and_memory(tmp_path: Path) -> None:
    store = tmp_path / "data"
    store.mkdir()
    async with ScriptedUpstream(*scripts()) as upstream, aiohttp.ClientSession() as http:
        options = ["--model", "openai:scripted", "--base-url", upstream.base_url]
        options += ["--store", f"sqlite:///{store}/t.db"]
        with served(tmp_path / "log", *options, **OVERWRITE) as server:
            await server.ready()
            alice, bob = Caller(http, server, "alice"), Caller(http, server, "bob")
            kept = await fill(bob, OTHER, upstream)
            paths = await fill(alice, MARKER, upstream)
            before = [await bob.ask("GET", kept[name]) for name in ("task", "response", "completion")]
            assert found_in_files(store, MARKER)
            assert found_in_memory(server.process.pid, MARKER)
            # Another caller's deletion is that of unknown ids.
            for name in ("task", "response", "completion", "background"):
                status, _ = await bob.ask("DELETE", paths[name])
                assert status == 404
            assert (await bob.ask("DELETE", paths["conversation"]))[0] == 200
            assert (await alice.ask("GET", paths["task"]))[0] == 200

            await delete(alice, paths)
            assert found_in_files(store, MARKER) == []

            await overwrite_buffers(bob)

            await settled(lambda: found_in_memory(server.process.pid, MARKER))
            assert [await bob.ask("GET", kept[name]) for name in ("task", "response", "completion")] == before
            assert found_in_memory(server.process.pid, OTHER)
        assert found_in_files(store, MARKER) == []
        assert found_in_files(store, OTHER)


async def test_a_deletion_that_a_crash_interrupts_is_completed(tmp_path: Path) -> None:
    store = tmp_path / "data"
    store.mkdir()
    long = answer(*(f"{MARKER} {number} " for number in range(20_000)))
    async with ScriptedUpstream(long) as upstream, aiohttp.ClientSession() as http:
        options = ["--model", "openai:scripted", "--base-url", upstream.base_url]
        options += ["--store", f"sqlite:///{store}/t.db"]
        environment = {"TAILRACE_CALLER_KEYS": KEYS, "TAILRACE_COALESCE": "none"}
        with served(tmp_path / "log", *options, **environment) as server:
            await server.ready()
            _, response = await Caller(http, server, "alice").ask(
                "POST", "/v1/responses", {"model": "", "input": MARKER}
            )
            path = f"/v1/responses/{response['id']}"
            async with anyio.create_task_group() as group:
                group.start_soon(_delete_until_killed, Caller(http, server, "alice"), path)
                await _until_deleted(store / "t.db")
                server.kill()
        with served(tmp_path / "log-2", *options, **environment) as server:
            await server.ready()
            assert (await Caller(http, server, "alice").ask("GET", path))[0] == 404
            await settled(lambda: rows_of(store / "t.db", "events", "deletions"))
        assert found_in_files(store, MARKER) == []


async def _delete_until_killed(caller: Caller, path: str) -> None:
    with suppress(aiohttp.ClientError):
        await caller.ask("DELETE", path)


async def _until_deleted(path: Path) -> None:
    """Wait until the task is deleted; most of its events follow in further transactions."""
    with anyio.fail_after(60):
        while rows_of(path, "tasks"):
            await anyio.lowlevel.checkpoint()


def rows_of(path: Path, *tables: str) -> int:
    """The number of rows in tables of a SQLite file."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        counts = [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]
    return sum(counts)

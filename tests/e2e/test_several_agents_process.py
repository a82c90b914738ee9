"""``tailrace serve --config``: a reload under 200 streams, in several processes, and after kill -9."""

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import psutil
import pytest

from support.postgres import PostgresServer
from support.processes import Served, served
from support.rpc import message, streamed_text
from support.upstream import Hang, Received, ScriptedUpstream, Step, Wait, openai_stream
from support.valkey import ValkeyServer
from tailrace.wrappers import SSEDecoder

STREAMS = 200
NAMES = ("support", "code", "legal")
PIECES = [f"word{number} " for number in range(60)]
Events = list[tuple[int, dict[str, Any]]]


def write(
    path: Path, upstream: ScriptedUpstream, *names: str, server: str = "", instructions: str = "Be brief."
) -> None:
    tables = [f"[server]\n{server}"]
    for name in names:
        access = f"model = 'openai:{name}'\nbase_url = '{upstream.base_url}'\napi_key = 'none'"
        tables.append(f"[agents.{name}]\n{access}\ninstructions = '{instructions}'")
    path.write_text("\n\n".join(tables))


async def stream(
    http: aiohttp.ClientSession, url: str, seen: Callable[[Events], object] = lambda _: None
) -> Events:
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": message()}
    events: Events = []
    decoder = SSEDecoder()
    async with http.post(url, json=body, headers={"A2A-Version": "1.0"}) as response:
        assert response.status == 200, await response.text()
        async for data in response.content.iter_any():
            events += [(int(event.id), json.loads(event.data)["result"]) for event in decoder.feed(data)]
            seen(events)
    return events


async def lines_of(server: Served, text: str, count: int) -> None:
    """Wait until the log of a server has a text so often."""
    with anyio.fail_after(60):
        while server.log.read_text().count(text) < count:  # noqa: ASYNC110 — its log is the only observable state
            await anyio.sleep(0.02)


async def test_a_reload_under_200_streams_loses_no_event(tmp_path: Path) -> None:
    path = tmp_path / "tailrace.toml"
    steps: list[Step] = [*openai_stream(PIECES)]
    middle, last = anyio.Event(), anyio.Event()
    script = [*steps[:20], Wait(middle), *steps[20:40], Wait(last), *steps[40:]]
    found: list[Events] = []
    begun = 0
    has_begun, has_half = anyio.Event(), anyio.Event()
    half = 0

    async with ScriptedUpstream(script) as upstream:
        write(path, upstream, *NAMES, server=f"store = 'sqlite:///{tmp_path}/t.db'")
        with served(tmp_path / "log", "--config", str(path)) as server:
            await server.ready()
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as http:

                async def follow(number: int) -> None:
                    nonlocal begun, half
                    passed = set[str]()

                    def seen(events: Events) -> None:
                        nonlocal begun, half
                        text = streamed_text(events)
                        if "begun" not in passed and PIECES[10] in text:
                            passed.add("begun")
                            begun += 1
                            if begun == STREAMS:
                                has_begun.set()
                        if "half" not in passed and PIECES[30] in text:
                            passed.add("half")
                            half += 1
                            if half == STREAMS:
                                has_half.set()

                    found.append(await stream(http, f"{server.url}/agents/{NAMES[number % 3]}/", seen))

                async with anyio.create_task_group() as group:
                    for number in range(STREAMS):
                        group.start_soon(follow, number)
                    with anyio.fail_after(60):
                        await has_begun.wait()
                    # support changes, code is removed, legal remains
                    store = f"store = 'sqlite:///{tmp_path}/t.db'"
                    write(path, upstream, "legal", "support", server=store, instructions="Be long.")
                    server.process.send_signal(signal.SIGHUP)
                    await lines_of(server, "the configuration is reloaded", 1)
                    middle.set()
                    with anyio.fail_after(60):
                        await has_half.wait()
                    path.write_text("[agents")
                    server.process.send_signal(signal.SIGHUP)
                    await lines_of(server, "the configuration is not reloaded", 1)
                    write(path, upstream, *NAMES, server=store)
                    server.process.send_signal(signal.SIGHUP)
                    await lines_of(server, "the configuration is reloaded", 2)
                    last.set()
                new = await stream(http, f"{server.url}/agents/code/")
    assert len(found) == STREAMS
    for events in [*found, new]:
        assert [number for number, _ in events] == list(range(1, len(events) + 1))
        assert streamed_text(events) == "".join(PIECES)
        assert events[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_after_kill_9_each_task_begins_again_with_its_own_agent(tmp_path: Path) -> None:
    """A task of an agent that was removed from the file meanwhile fails with the reason."""
    path = tmp_path / "tailrace.toml"
    store = f"store = 'sqlite:///{tmp_path}/t.db'\non_crash = 'restart'"
    begun: list[str] = []
    has_begun = anyio.Event()
    ids: dict[str, str] = {}

    def respond(request: Received) -> Sequence[Step]:
        name = request.json["model"]
        if name in begun:
            return openai_stream([f"again {name}"])
        begun.append(name)
        return [*openai_stream([f"first {name}"], finish=None), Hang()]

    async with ScriptedUpstream(respond) as upstream:
        write(path, upstream, *NAMES, server=store)
        with served(tmp_path / "first", "--config", str(path)) as server:
            await server.ready()
            async with aiohttp.ClientSession() as http, anyio.create_task_group() as group:

                async def follow(name: str) -> None:
                    def seen(events: Events) -> None:
                        ids[name] = events[0][1]["task"]["id"]
                        if len(ids) == len(NAMES) and f"first {name}" in streamed_text(events):
                            has_begun.set()

                    with pytest.raises(aiohttp.ClientError):
                        await stream(http, f"{server.url}/agents/{name}/", seen)

                for name in NAMES:
                    group.start_soon(follow, name)
                with anyio.fail_after(60):
                    await has_begun.wait()
                server.kill()
        write(path, upstream, "legal", "support", server=store)
        with served(tmp_path / "second", "--config", str(path)) as server:
            await server.ready()
            for name in ("support", "legal"):
                task = await _ended(server.url, name, ids[name])
                assert f"again {name}" in json.dumps(task["artifacts"])
        write(path, upstream, *NAMES, server=store)
        with served(tmp_path / "third", "--config", str(path)) as server:
            await server.ready()
            task = await _ended(server.url, "code", ids["code"])
            assert task["status"]["state"] == "TASK_STATE_FAILED"
            assert "no agent 'code' any more" in json.dumps(task["status"])
    assert sorted(request.json["model"] for request in upstream.requests) == sorted(
        [*NAMES, "support", "legal"]
    )


async def _ended(url: str, name: str, task_id: str) -> dict[str, Any]:
    """The task at its end."""
    headers = {"A2A-Version": "1.0"}
    async with aiohttp.ClientSession() as http:
        address = f"{url}/agents/{name}/tasks/{task_id}"
        async with http.get(f"{address}:subscribe", headers=headers) as response:
            await response.read()
        async with http.get(address, headers=headers) as response:
            return await response.json()


async def test_signals_during_the_shutdown_do_not_end_the_process_early(tmp_path: Path) -> None:
    path = tmp_path / "tailrace.toml"
    script = [*openai_stream(["half"], finish=None), Hang()]
    async with ScriptedUpstream(script) as upstream:
        write(path, upstream, "support", server=f"store = 'sqlite:///{tmp_path}/t.db'\nshutdown_grace = 1")
        with served(tmp_path / "log", "--config", str(path)) as server:
            await server.ready()
            async with aiohttp.ClientSession() as http, anyio.create_task_group() as group:
                group.start_soon(stream, http, f"{server.url}/agents/support/")
                await upstream.received()
                server.process.send_signal(signal.SIGTERM)
                with anyio.fail_after(30):
                    while server.process.poll() is None:
                        server.process.send_signal(signal.SIGHUP)
                        await anyio.sleep(0.01)
                group.cancel_scope.cancel()
    assert server.process.returncode == 0


async def test_each_of_several_processes_reloads_the_file(
    tmp_path: Path, postgres: PostgresServer, valkey: ValkeyServer
) -> None:
    path = tmp_path / "tailrace.toml"
    store = await postgres.empty_database("several_agents")
    server_table = f"store = '{store}'\nevents = '{valkey.url()}'\nworkers = 2"
    async with ScriptedUpstream(openai_stream(["Hello"])) as upstream:
        write(path, upstream, "support", server=server_table)
        with served(tmp_path / "log", "--config", str(path)) as server:
            await server.ready()
            await _both_serve(server, "support")
            write(path, upstream, "support", "code", server=server_table)
            server.process.send_signal(signal.SIGHUP)
            await lines_of(server, "the configuration is reloaded", 2)
            await _both_serve(server, "code")
            # A process that starts later has the configuration that the others have, whatever the file contains.
            path.write_text("[agents")
            server.process.send_signal(signal.SIGHUP)
            await lines_of(server, "the configuration is not reloaded", 1)
            victim = psutil.Process(server.process.pid).children()[-1]
            victim.kill()
            await lines_of(server, "is started again", 1)
            for _ in range(5):
                server.process.send_signal(signal.SIGHUP)
            await _until_two_accept(server)
            await _both_serve(server, "code")
            assert server.log.read_text().count("is started again") == 1


async def _until_two_accept(server: Served) -> None:
    """Wait until two processes accept connections."""
    with anyio.fail_after(60):
        while True:
            found = psutil.Process(server.process.pid).children()
            port = int(server.url.rpartition(":")[2])
            accepting = [
                each
                for each in found
                if each.is_running()
                and any(
                    one.laddr.port == port and one.status == psutil.CONN_LISTEN
                    for one in each.net_connections()
                )
            ]
            if len(accepting) == 2:
                return
            await anyio.sleep(0.05)


async def _both_serve(server: Served, name: str) -> None:
    """Send requests on new connections until both processes have accepted some, and all succeed."""
    for _ in range(20):
        async with aiohttp.ClientSession() as http:
            events = await stream(http, f"{server.url}/agents/{name}/")
        assert streamed_text(events) == "Hello"

"""Shutdown of real server processes: running tasks finish, streams end cleanly, and nothing hangs."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from support.processes import Served, served
from support.rpc import Rpc, message, text_of
from support.upstream import Hang, ScriptedUpstream, Wait, openai_stream

BODY = {"jsonrpc": "2.0", "id": "s", "method": "SendStreamingMessage"}
ENDLESS = [*openai_stream(["half"], finish=None), Hang()]
SHUTDOWN_FRAME = b": the server stops\nretry: 3000\n\n"


def options(upstream: ScriptedUpstream, store: Path) -> list[str]:
    return ["--model", "openai:scripted", "--base-url", upstream.base_url, "--store", f"sqlite:///{store}"]


class Stream:
    """A client of a stream.

    Attributes:
        data: All bytes so far.
        clean: Whether the response ended as HTTP requires.
    """

    def __init__(self) -> None:
        self.data = b""
        self.clean = False
        self._more = anyio.Event()

    async def read(self, url: str) -> None:
        """Send a message, and read the answer until the server ends it."""
        async with aiohttp.ClientSession() as http:
            body = BODY | {"params": message()}
            async with http.post(f"{url}/", json=body) as response:
                async for data in response.content.iter_any():
                    self.data += data
                    self._more.set()
                    self._more = anyio.Event()
        self.clean = True

    async def shows(self, text: bytes) -> None:
        while text not in self.data:
            await self._more.wait()


async def logged(log: Path, words: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process has logged a text."""
    while words not in (output := _text_of(log)):
        assert process.poll() is None, output
        await anyio.sleep(0.02)  # its log is the only state to wait on


def _text_of(file: Path) -> str:
    return file.read_text()


async def ended(process: subprocess.Popen[bytes]) -> int:
    with anyio.fail_after(20):
        return await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)


async def tasks_of(folder: Path, upstream: ScriptedUpstream) -> list[dict[str, Any]]:
    """Return the tasks of the store, as the next server lists them. It fails interrupted tasks."""
    with served(folder / "next", *options(upstream, folder / "t.db"), "--on-crash", "fail") as server:
        await server.ready()
        async with Rpc(server.url) as rpc:
            listed = await rpc.result("ListTasks", {"includeArtifacts": True})
            return [await rpc.result("GetTask", {"id": task["id"]}) for task in listed["tasks"]]


async def test_a_running_task_finishes_and_its_stream_ends_cleanly(tmp_path: Path) -> None:
    go_on = anyio.Event()
    script = [*openai_stream(["half "], finish=None), Wait(go_on), *openai_stream(["done"])]
    async with ScriptedUpstream(script) as upstream:
        with served(tmp_path / "log", *options(upstream, tmp_path / "t.db")) as server:
            await server.ready()
            stream = Stream()
            async with anyio.create_task_group() as group:
                group.start_soon(stream.read, server.url)
                await stream.shows(b"half")
                server.process.send_signal(signal.SIGTERM)
                await logged(tmp_path / "log", "Shutting down", server.process)
                async with aiohttp.ClientSession() as http:
                    with pytest.raises(aiohttp.ClientConnectionError):
                        await http.get(f"{server.url}/healthz")
                go_on.set()
            assert await ended(server.process) == 0
        [task] = await tasks_of(tmp_path, upstream)
    assert stream.clean
    assert stream.data.endswith(SHUTDOWN_FRAME)
    assert b"TASK_STATE_COMPLETED" in stream.data
    assert (text_of(task), task["status"]["state"]) == ("half done", "TASK_STATE_COMPLETED")


async def test_without_continuation_what_does_not_finish_in_time_fails_with_what_it_has(
    tmp_path: Path,
) -> None:
    async with ScriptedUpstream(ENDLESS) as upstream:
        arguments = [*options(upstream, tmp_path / "t.db"), "--on-crash", "fail"]
        with served(tmp_path / "log", *arguments, TAILRACE_SHUTDOWN_GRACE="0.2") as server:
            await server.ready()
            stream = Stream()
            async with anyio.create_task_group() as group:
                group.start_soon(stream.read, server.url)
                await stream.shows(b"half")
                server.process.send_signal(signal.SIGTERM)
            assert await ended(server.process) == 0
        [task] = await tasks_of(tmp_path, upstream)
    assert stream.clean
    assert stream.data.endswith(SHUTDOWN_FRAME)
    assert b"the server was stopped before the response was complete" in stream.data
    assert (text_of(task), task["status"]["state"]) == ("half", "TASK_STATE_FAILED")


async def test_a_blocking_send_gets_its_response_and_a_task_without_subscribers_finishes(
    tmp_path: Path,
) -> None:
    go_on = anyio.Event()
    script = [*openai_stream(["half "], finish=None), Wait(go_on), *openai_stream(["done"])]
    async with ScriptedUpstream(script) as upstream:
        with served(tmp_path / "log", *options(upstream, tmp_path / "t.db")) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                at_once = message() | {"configuration": {"returnImmediately": True}}
                await rpc.result("SendMessage", at_once)
                await upstream.received()
                answers: list[dict[str, Any]] = []

                async def ask() -> None:
                    answers.append((await rpc.result("SendMessage", message()))["task"])

                async with anyio.create_task_group() as group:
                    group.start_soon(ask)
                    await upstream.received(1)
                    server.process.send_signal(signal.SIGTERM)
                    await logged(tmp_path / "log", "Shutting down", server.process)
                    go_on.set()
            assert await ended(server.process) == 0
        tasks = await tasks_of(tmp_path, upstream)
    assert text_of(answers[0]) == "half done"
    assert [text_of(task) for task in tasks] == ["half done", "half done"]
    assert {task["status"]["state"] for task in tasks} == {"TASK_STATE_COMPLETED"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_the_process_at_once_and_loses_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with ScriptedUpstream(ENDLESS) as upstream:
        arguments = options(upstream, tmp_path / "t.db")
        with served(tmp_path / "log", *arguments, TAILRACE_SHUTDOWN_GRACE="600") as server:
            await server.ready()
            stream = Stream()
            async with anyio.create_task_group() as group:
                group.start_soon(_until_it_breaks, stream, server)
                await stream.shows(b"half")
                server.process.send_signal(number)
                await logged(tmp_path / "log", "Shutting down", server.process)
                server.process.send_signal(number)
                assert await ended(server.process) == -number
        [task] = await tasks_of(tmp_path, upstream)
    assert (text_of(task), task["status"]["state"]) == ("half", "TASK_STATE_FAILED")
    assert "stopped unexpectedly" in str(task["status"])


async def _until_it_breaks(stream: Stream, server: Served) -> None:
    with pytest.raises(aiohttp.ClientError):
        await stream.read(server.url)


# --- under another ASGI server ----------------------------------------------------------------------------------


@contextmanager
def uvicorn(
    folder: Path, upstream: ScriptedUpstream, *arguments: str, **environment: str
) -> Generator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """Run the application with ``uvicorn``; yield the process, and a function for its address after startup."""
    (folder / "agent.py").write_text("from tailrace.server import create_app\n\napp = create_app()\n")
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "agent:app", "--port", "0", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env=os.environ
            | {
                "TAILRACE_MODEL": "openai:scripted",
                "TAILRACE_BASE_URL": upstream.base_url,
                "TAILRACE_API_KEY": "none",
            }
            | environment,
        )
    try:
        yield process, lambda: re.findall(r"running on (http://[\d.]+:\d+)", log.read_text())[0]
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.mark.parametrize("workers", [1, 2])
async def test_uvicorn_ends_in_good_order_with_streams_that_are_open(tmp_path: Path, workers: int) -> None:
    environment = {"TAILRACE_STORE": "sqlite://", "TAILRACE_SHUTDOWN_GRACE": "0.2"}
    async with ScriptedUpstream(ENDLESS) as upstream:
        with uvicorn(tmp_path, upstream, "--workers", str(workers), **environment) as (process, url):
            # With one process the first line is the last one, with several processes the second.
            await logged(tmp_path / "log", "running on http", process)
            await logged(tmp_path / "log", "Application startup complete", process)
            streams = [Stream(), Stream(), Stream()]
            async with anyio.create_task_group() as group:
                for stream in streams:
                    group.start_soon(stream.read, url())
                for stream in streams:
                    await stream.shows(b"half")
                process.send_signal(signal.SIGTERM)
            # With one process, uvicorn itself ends by the signal.
            assert await ended(process) in (0, -signal.SIGTERM)
    for stream in streams:
        assert stream.clean
        assert stream.data.endswith(SHUTDOWN_FRAME)
        assert b"TASK_STATE_FAILED" in stream.data


async def test_a_second_worker_on_the_same_file_is_refused_and_ends_the_server(tmp_path: Path) -> None:
    async with ScriptedUpstream(ENDLESS) as upstream:
        store = f"sqlite:///{tmp_path}/t.db"
        with uvicorn(tmp_path, upstream, "--workers", "2", TAILRACE_STORE=store) as (process, _):
            await ended(process)
    log = _text_of(tmp_path / "log")
    assert "the store is in use by another process" in log
    assert "failed to start, stopping the parent process" in log
    assert log.count("Application startup failed") == 1  # not retried in a loop

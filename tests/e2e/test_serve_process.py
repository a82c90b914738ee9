"""``tailrace serve`` as a real process: responses, persistence after kill -9, and shutdown on SIGTERM."""

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from support.processes import served, tailrace
from support.rpc import Rpc, message, streamed_text, text_of
from support.upstream import Hang, ScriptedUpstream, openai_stream
from tailrace.wrappers import SSEDecoder


def options(upstream: ScriptedUpstream, store: Path) -> list[str]:
    return [
        "--model",
        "openai:scripted",
        "--base-url",
        upstream.base_url,
        "--store",
        f"sqlite:///{store}",
        "--instructions",
        "Be brief.",
    ]


async def test_a_served_model_answers_as_an_agent(tmp_path: Path) -> None:
    async with ScriptedUpstream(openai_stream(["Hel", "lo"])) as upstream:
        with served(tmp_path / "log", *options(upstream, tmp_path / "t.db")) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                task = (await rpc.result("SendMessage", message()))["task"]
                async with rpc.http.get(f"{server.url}/healthz") as response:
                    assert await response.json() == {"status": "ok"}
        assert text_of(task) == "Hello"
        sent = (await upstream.received()).json["messages"]
        assert sent[0]["role"] == "system"


async def test_after_kill_9_everything_shown_is_there_and_nothing_is_left_working(tmp_path: Path) -> None:
    store = tmp_path / "t.db"
    script = [*openai_stream(["one ", "two ", "three"], finish=None), Hang()]
    async with ScriptedUpstream(script) as upstream:
        with served(tmp_path / "first", *options(upstream, store)) as server:
            await server.ready()
            shown = await _read_until(server.url, "one two three")
            server.kill()
        with served(tmp_path / "second", *options(upstream, store), "--on-crash", "fail") as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                task_id = shown[0][1]["task"]["id"]
                task = await rpc.result("GetTask", {"id": task_id})
                again = await rpc.stream("SubscribeToTask", {"id": task_id}, {"Last-Event-ID": "0"})
                number = str(shown[-1][0])
                rest = await rpc.stream("SubscribeToTask", {"id": task_id}, {"Last-Event-ID": number})
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert "stopped unexpectedly" in task["status"]["message"]["parts"][0]["text"]
    assert text_of(task) == "one two three"
    assert again[: len(shown)] == shown
    assert again[len(shown) :] == rest
    assert streamed_text(again) == "one two three"
    assert [number for number, _ in again] == list(range(1, len(again) + 1))
    assert rest[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_FAILED"


async def test_sigterm_ends_the_server_and_its_streams_in_bounded_time(tmp_path: Path) -> None:
    script = [*openai_stream(["half"], finish=None), Hang()]
    async with ScriptedUpstream(script) as upstream:
        arguments = options(upstream, tmp_path / "t.db")
        with served(tmp_path / "log", *arguments, TAILRACE_SHUTDOWN_GRACE="0.2") as server:
            await server.ready()
            async with anyio.create_task_group() as group:
                group.start_soon(_read_until, server.url, "never")
                await upstream.received()
                server.process.send_signal(signal.SIGTERM)
                with anyio.fail_after(20):
                    assert await anyio.to_thread.run_sync(server.process.wait) == 0
                group.cancel_scope.cancel()


async def _read_until(url: str, text: str) -> list[tuple[int, dict[str, Any]]]:
    """Stream an answer until it contains ``text`` or the connection closes."""
    body = {"jsonrpc": "2.0", "id": "s", "method": "SendStreamingMessage", "params": message()}
    events: list[tuple[int, dict[str, Any]]] = []
    decoder = SSEDecoder()
    # The server may end at any time: before it begins its response, too.
    with suppress(aiohttp.ClientError):
        async with aiohttp.ClientSession() as http, http.post(f"{url}/", json=body) as response:
            async for data in response.content.iter_any():
                events += [(int(event.id), json.loads(event.data)["result"]) for event in decoder.feed(data)]
                if streamed_text(events) == text:
                    break
    return events


STARTABLE = ["serve", "--model", "openai:x", "--port", "0"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve"], "TAILRACE_MODEL"),
        (["serve", "--model", "nobody:x"], "unknown provider 'nobody'"),
        (["serve", "--model", "openai:x", "--store", "mysql://x"], "TAILRACE_STORE"),
        (["serve", "--model", "openai:x", "--port", "70000"], "TAILRACE_PORT"),
        (["serve", "--model", "ollama:x", "--host", "0.0.0.0"], "--allow-anonymous"),
        (["serve", "--model", "openai:x"], "no key for openai:x: set OPENAI_API_KEY"),
        ([*STARTABLE, "--store", "sqlite:////dev/null/t.db"], "cannot open the store"),
        ([*STARTABLE, "--tools", "mcp:/nonexistent"], "/nonexistent cannot be started: No such file"),
        ([*STARTABLE, "--tools", f"mcp:{sys.executable} -c pass"], "exited at once"),
        ([*STARTABLE, "--tools", "mcp:http://127.0.0.1:1/mcp"], "127.0.0.1:1/mcp: no connection"),
    ],
    ids=[
        "no model",
        "provider",
        "database",
        "port",
        "open door",
        "key",
        "store",
        "program",
        "ended",
        "server",
    ],
)
def test_a_setting_that_cannot_be_used_is_one_line_and_status_2(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    environment = {"PATH": ""} | (
        {"TAILRACE_API_KEY": "none"} if arguments[: len(STARTABLE)] == STARTABLE else {}
    )
    done = subprocess.run(
        tailrace(*arguments), capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 2, done
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1

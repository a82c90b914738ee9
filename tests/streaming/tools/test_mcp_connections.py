"""MCP servers that die, hang or refuse, and their startup and shutdown."""

import asyncio
import gc
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import anyio
import anyio.abc
import anyio.lowlevel
import psutil
import pytest

from support.live_server import serving
from support.mcp_server import McpServer, WithSessions
from support.mcp_tools import SERVER, at_an_address, call, program
from support.rounds import answer, model_at, sent
from support.upstream import Head, ScriptedUpstream
from tailrace.streaming import Agent, Tool, ToolError
from tailrace.streaming.tools.mcp import HttpServer, McpToolset, StdioServer
from tailrace.streaming.tools.tools import ToolRunner
from tailrace.wrappers import (
    ConfigurationError,
    ContentPartToolCall,
    ContentPartToolResult,
    UpstreamError,
    UpstreamFault,
)


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncGenerator[None]:  # pyright: ignore[reportUnusedFunction]
    programs, tasks = set(psutil.Process().children(recursive=True)), asyncio.all_tasks()
    yield
    assert not set(psutil.Process().children(recursive=True)) - programs
    left = {
        task for task in asyncio.all_tasks() - tasks if "_shutdown_watcher" not in repr(task)
    }  # sse-starlette's
    assert left <= {asyncio.current_task()}
    gc.collect()  # unclosed resources warn, and warnings are errors


async def pid_of(tools: Sequence[Tool]) -> int:
    return int((await call(tools, "pid")).output)


# --- lost servers ------------------------------------------------------------------------------------------------


async def test_a_program_that_dies_in_a_call_is_restarted_by_the_next_call() -> None:
    async with program().connected() as tools:
        before = await pid_of(tools)
        with pytest.raises(ToolError, match="lost in the middle of the call"):
            await call(tools, "die")
        assert await pid_of(tools) != before


async def test_a_program_that_is_killed_between_calls_is_not_missed() -> None:
    async with program().connected() as tools:
        before = await pid_of(tools)
        with awaited_log("was lost") as lost:
            os.kill(before, signal.SIGKILL)
            await lost.wait()
        assert await pid_of(tools) != before


@contextmanager
def awaited_log(text: str) -> Generator[anyio.Event]:
    """An event that is set when a record with this text is logged."""
    logged = anyio.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                logged.set()

    handler = Handler()
    logger = logging.getLogger("tailrace.streaming.tools.mcp")
    logger.addHandler(handler)
    try:
        yield logged
    finally:
        logger.removeHandler(handler)


async def test_calls_in_progress_fail_when_the_program_is_killed() -> None:
    errors = list[str]()
    async with program().connected() as tools:
        pid = await pid_of(tools)

        async def wait() -> None:
            with pytest.raises(ToolError) as raised:
                await call(tools, "wait")
            errors.append(str(raised.value))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            os.kill(pid, signal.SIGKILL)
        # All calls share the server that is started as the replacement.
        pids = set[int]()

        async def ask() -> None:
            pids.add(await pid_of(tools))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask)
        assert len(pids) == 1
        assert pids != {pid}
    assert len(errors) == 3
    assert all("it is not known whether the call was carried out" in error for error in errors)


async def test_the_agent_goes_on_when_a_program_cannot_be_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = shutil.copy(SERVER, tmp_path)
    rounds = (
        answer(calls=[("call_1", "die", {})]),
        answer(calls=[("call_2", "pid", {})]),
        answer("It died."),
    )
    tools = McpToolset.stdio(sys.executable, str(copy))
    async with ScriptedUpstream(*rounds) as upstream:
        async with Agent(model_at(upstream), tools=[tools]) as agent:
            os.unlink(copy)
            result = await agent.run("Die.")
        errors = [json.loads(sent(request)[-1]["content"])["error"] for request in upstream.requests[1:]]
    assert result.output == "It died."
    assert "lost in the middle" in errors[0]
    assert errors[1] == "the tool's server was lost and cannot be connected again"
    assert "cannot be started: the program exited at once; its last output:" in caplog.text


async def test_a_session_that_the_server_has_dropped_is_started_again() -> None:
    app = WithSessions(McpServer().app)
    async with serving(app) as url, McpToolset.http(f"{url}/mcp").connected() as tools:
        await call(tools, "count")
        async with (
            aiohttp.ClientSession() as http,
            http.delete(f"{url}/mcp", headers={"mcp-session-id": app.sessions[0]}) as response,
        ):
            assert response.status == 200
        assert (await call(tools, "count", {"a": 1})).output == {"n": 1}
        assert len(app.sessions) == 2


async def test_a_server_that_is_gone_fails_one_call_at_a_time() -> None:
    server = McpServer()
    async with anyio.create_task_group() as group:
        over, ended = anyio.Event(), anyio.Event()

        async def serve(*, task_status: anyio.abc.TaskStatus[str]) -> None:
            async with serving(server.app) as url:
                task_status.started(url)
                await over.wait()
            ended.set()

        url = await group.start(serve)
        async with McpToolset.http(f"{url}/mcp").connected() as tools:
            await call(tools, "count")
            over.set()
            await ended.wait()
            for _ in range(2):
                with pytest.raises(ToolError, match="no connection"):
                    await call(tools, "count")


async def test_a_server_that_refuses_is_an_error_with_its_status() -> None:
    refusal = [Head(401, {"content-type": "text/html"}), b"<html>who are you?"]
    async with ScriptedUpstream(refusal) as upstream:
        toolset = McpToolset.http(f"{upstream.base_url}?key=secret", headers={"x-a": "b"})
        with pytest.raises(UpstreamError, match="HTTP 401") as raised:
            async with toolset.connected():
                raise AssertionError
        assert upstream.requests[0].headers["x-a"] == "b"
    assert (raised.value.fault, raised.value.status) == (UpstreamFault.STATUS, 401)
    assert "secret" not in f"{raised.value} {toolset!r}"


async def test_an_unreachable_address_is_an_error() -> None:
    async with ScriptedUpstream() as upstream:
        url = upstream.base_url
    with pytest.raises(UpstreamError, match="no connection") as raised:
        async with McpToolset.http(url).connected():
            raise AssertionError
    assert raised.value.fault is UpstreamFault.CONNECTION


# --- startup and shutdown ----------------------------------------------------------------------------------------


async def test_a_program_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(
        ConfigurationError, match="the MCP server no-such-program cannot be started: No such file"
    ):
        async with McpToolset.stdio("no-such-program").connected():
            raise AssertionError


async def test_a_program_that_ends_at_once_is_an_error_with_its_last_words() -> None:
    with pytest.raises(ConfigurationError, match=r"its last output: no key, no tools$"):
        async with McpToolset.stdio(sys.executable, "-c", "raise SystemExit('no key, no tools')").connected():
            raise AssertionError


async def test_a_program_that_refuses_to_begin_is_an_error_with_its_reason() -> None:
    refusing = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    error = {"code": -32000, "message": "not today"}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}), flush=True)
"""
    with pytest.raises(UpstreamError, match=r"not today$") as raised:
        async with McpToolset.stdio(sys.executable, "-c", refusing).connected():
            raise AssertionError
    assert raised.value.fault is UpstreamFault.PROVIDER


async def test_a_program_that_never_answers_is_ended_when_its_time_is_up() -> None:
    silent = McpToolset.stdio(sys.executable, "-c", "import sys; sys.stdin.read()", connect_timeout=0.2)
    with pytest.raises(UpstreamError, match=r"no answer within 0\.2 s") as raised:
        async with silent.connected():
            raise AssertionError
    assert raised.value.fault is UpstreamFault.TIMEOUT


async def test_connecting_can_be_cancelled() -> None:
    silent = McpToolset.stdio(sys.executable, "-c", "import sys; sys.stdin.read()")
    async with anyio.create_task_group() as group:

        async def connect() -> None:
            async with silent.connected():
                raise AssertionError

        group.start_soon(connect)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()


async def test_the_standard_error_of_a_program_is_logged_and_not_printed(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "tailrace.streaming.tools.mcp"):
        async with program().connected() as tools:
            await pid_of(tools)
    logged = [record.message for record in caplog.records if record.name == "tailrace.streaming.tools.mcp"]
    expected = ("ready", "the pid was asked for")
    assert logged == [f"{sys.executable} {SERVER}: {line}" for line in expected]
    # Others may belong to another test: the closed stream of its handler.
    assert not [line for line in capfd.readouterr().err.splitlines() if line in expected]


async def test_a_program_that_talks_without_end_does_not_stand_still() -> None:
    talking = "import sys; sys.stderr.write('x' * 1_000_000 + '\\n' + 'last'); sys.exit(1)"
    with pytest.raises(ConfigurationError, match=r"its last output: last$"):
        async with McpToolset.stdio(sys.executable, "-c", talking).connected():
            raise AssertionError


async def test_a_program_gets_its_variables_and_folder_and_none_of_our_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    script = "import os, sys; sys.exit(' '.join((os.getcwd(), os.environ['A'], os.environ.get('OPENAI_API_KEY', '-'))))"
    with pytest.raises(ConfigurationError, match=f"its last output: {tmp_path} b -$"):
        async with McpToolset.stdio(sys.executable, "-c", script, env={"A": "b"}, cwd=tmp_path).connected():
            raise AssertionError


async def test_leaving_by_an_error_raises_that_error_and_ends_the_program() -> None:
    with pytest.raises(LookupError, match="mine"):
        async with program().connected():
            raise LookupError("mine")


async def test_leaving_by_cancelling_ends_the_program() -> None:
    pid = 0
    with anyio.CancelScope() as scope:
        async with program().connected() as tools:
            pid = await pid_of(tools)
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert not psutil.pid_exists(pid)


async def test_a_tool_that_is_called_after_the_end_is_an_error() -> None:
    async with program().connected() as tools:
        pass
    with pytest.raises(ToolError, match="no longer connected"):
        await call(tools, "count")


async def test_a_set_may_be_connected_more_than_once_at_a_time() -> None:
    toolset = program()
    async with toolset.connected() as one, toolset.connected() as other:
        assert await pid_of(one) != await pid_of(other)


async def test_a_runner_takes_the_tools_as_any_others() -> None:
    async with at_an_address(McpServer()) as tools:
        calls = [
            ContentPartToolCall(id="1", name="count", arguments={"a": 1}),
            ContentPartToolCall(id="2", name="picture", arguments={}),
            ContentPartToolCall(id="3", name="fail", arguments={}),
        ]
        results = {result.id: result async for result in ToolRunner(tools).run(calls)}
    assert results["1"] == ContentPartToolResult(id="1", name="count", output={"n": 1})
    assert results["2"].name == "picture"
    assert results["3"].is_error


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="begins with http:// or https://"):
        McpToolset.http("example.com/mcp")


def test_a_server_is_named_without_its_secrets() -> None:
    assert str(HttpServer("https://me:secret@example.com/mcp?key=secret#a", {"x": "secret"})) == (
        "https://example.com/mcp"
    )
    assert "secret" not in repr(HttpServer("https://example.com/?key=secret", {"x": "secret"}))
    assert repr(McpToolset(StdioServer("uvx", ("a",), {"KEY": "secret"}))) == "McpToolset(uvx a)"


def test_without_the_package_the_error_names_the_package() -> None:
    program = """
import sys
sys.modules["mcp"] = None
import anyio
from tailrace.streaming.tools.mcp import McpToolset
from tailrace.wrappers import ConfigurationError

async def main():
    try:
        async with McpToolset.stdio("x").connected():
            pass
    except ConfigurationError as error:
        print(error)

anyio.run(main)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'tailrace[mcp]'" in ended.stdout


def test_the_package_is_imported_only_when_it_is_used() -> None:
    program = "import sys, tailrace.streaming.tools.mcp; assert 'mcp' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)

"""Tools of real MCP servers, as programs and over HTTP, that respond, fail, hang and die."""

import asyncio
import base64
import gc
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.abc
import anyio.lowlevel
import psutil
import pytest
from mcp.server import Server
from mcp.types import ListToolsResult
from mcp.types import Tool as McpToolDescription

from support import mcp_server
from support.live_server import serving
from support.mcp_server import PAGES, PIXEL, McpServer, WithSessions
from support.rounds import answer, model_at, sent
from support.upstream import Head, ScriptedUpstream
from tailrace.streaming import Agent, Tool, ToolContext, ToolError
from tailrace.streaming.tools.mcp import HttpServer, McpToolset, StdioServer, tool_result
from tailrace.streaming.tools.tools import ToolRunner
from tailrace.wrappers import (
    ConfigurationError,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers.providers import FORMATS

NAMES = [name for page in PAGES for name in page]
SERVER = str(Path(mcp_server.__file__))


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


def program(**options: Any) -> McpToolset:
    return McpToolset.stdio(sys.executable, SERVER, **options)


async def call(tools: Sequence[Tool], tool: str, arguments: dict[str, Any] | None = None) -> Any:
    """The result of a tool that is called without an agent."""
    (found,) = (each for each in tools if each.definition.name == tool)
    arguments = arguments or {}
    made = ContentPartToolCall(id="call_1", name=tool, arguments=arguments)
    result = await found.call(arguments, ToolContext(made))
    assert isinstance(result, ContentPartToolResult)
    return result


async def pid_of(tools: Sequence[Tool]) -> int:
    return int((await call(tools, "pid")).output)


@asynccontextmanager
async def at_an_address(server: McpServer, **options: Any) -> AsyncGenerator[Sequence[Tool]]:
    async with serving(server.app) as url, McpToolset.http(f"{url}/mcp", **options).connected() as tools:
        yield tools


async def test_annotations_declare_tools_as_idempotent() -> None:
    async with at_an_address(McpServer()) as tools:
        assert {tool.definition.name for tool in tools if tool.idempotent} == {"echo", "count"}


# --- a server of another project ---------------------------------------------------------------------------------


def time_server(**options: Any) -> McpToolset:
    return McpToolset.stdio(sys.executable, "-m", "mcp_server_time", **options)


async def test_the_tools_of_a_program_are_described_and_called() -> None:
    async with time_server().connected() as tools:
        described = {tool.definition.name: tool.definition for tool in tools}
        result = await call(
            tools,
            "convert_time",
            {"source_timezone": "Asia/Tokyo", "time": "21:30", "target_timezone": "Asia/Kolkata"},
        )
        refused = await call(tools, "get_current_time", {"timezone": "Nowhere/Land"})
    assert set(described) == {"get_current_time", "convert_time"}
    assert described["get_current_time"].description.startswith("Get current time")
    assert described["get_current_time"].parameters["required"] == ["timezone"]
    assert not result.is_error
    assert "18:00" in json.dumps(result.output)
    assert refused.is_error
    assert "Nowhere/Land" in refused.output


async def test_an_agent_streams_a_response_with_the_result_of_a_program() -> None:
    arguments = {"source_timezone": "Asia/Tokyo", "time": "21:30", "target_timezone": "Asia/Kolkata"}
    asks = answer(calls=[("call_1", "time_convert_time", arguments)])
    async with ScriptedUpstream(asks, answer("It is ", "18:00.")) as upstream:
        async with Agent(model_at(upstream), tools=[time_server(prefix="time_")]) as agent:
            results = [
                result async for result in agent.run_stream("Half past nine in Tokyo: when is that in Delhi?")
            ]
        first, second = upstream.requests
    assert "".join(result.output for result in results) == "It is 18:00."
    names = {tool["function"]["name"] for tool in first.json["tools"]}
    assert names == {"time_get_current_time", "time_convert_time"}
    assert sent(second)[-1]["role"] == "tool"
    assert "18:00" in sent(second)[-1]["content"]


async def test_a_run_connects_its_tools_by_itself() -> None:
    async with ScriptedUpstream(answer(calls=[("call_1", "fail", {})]), answer("Sorry.")) as upstream:
        agent = Agent(model_at(upstream), tools=[program()])
        result = await agent.run("Try it.")
        await agent.model.aclose()
        assert sent(upstream.requests[1])[-1]["content"] == '{"error": "no luck"}'
    assert result.output == "Sorry."


# --- tools and results -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("modern", [True, False], ids=["2026", "with sessions"])
async def test_all_pages_of_tools_are_read(modern: bool) -> None:
    server = McpServer()
    app = server.app if modern else WithSessions(server.app)
    async with serving(app) as url, McpToolset.http(f"{url}/mcp").connected() as tools:
        assert [tool.definition.name for tool in tools] == NAMES
        assert (await call(tools, "echo", {"texts": ["a", "b"]})).output == "a\nb"


async def test_a_server_may_have_no_tools() -> None:
    bare = Server[Any]("bare").streamable_http_app()
    async with serving(bare) as url, McpToolset.http(f"{url}/mcp").connected() as tools:
        assert tools == []


@pytest.mark.parametrize(
    ("name", "cursor", "why"),
    [
        ("again", "more", "its list of tools has more than 100 pages"),
        ("", None, "describes an invalid tool"),
    ],
)
async def test_a_list_of_tools_that_is_wrong_is_an_error(name: str, cursor: str | None, why: str) -> None:
    async def listed(_context: object, _params: object) -> ListToolsResult:
        return ListToolsResult(
            tools=[McpToolDescription(name=name, input_schema={"type": "object"})], next_cursor=cursor
        )

    async with serving(Server[Any]("wrong", on_list_tools=listed).streamable_http_app()) as url:
        with pytest.raises(UpstreamError, match=why):
            async with McpToolset.http(f"{url}/mcp").connected():
                raise AssertionError


async def test_tools_are_chosen_and_get_a_prefix_and_a_time() -> None:
    server = McpServer()
    async with serving(server.app) as url:
        chosen = McpToolset.http(
            f"{url}/mcp", include=["echo", "pid"], exclude=["pid"], prefix="my_", timeout=7
        )
        async with chosen.connected() as tools:
            assert [(tool.definition.name, tool.timeout) for tool in tools] == [("my_echo", 7)]
            assert (await call(tools, "my_echo", {"texts": ["a"]})).output == "a"
        with pytest.raises(ConfigurationError, match=r"has no tool 'nope'; it has: 'attachments', 'count'"):
            async with McpToolset.http(f"{url}/mcp", include=["echo", "nope"]).connected():
                raise AssertionError


async def test_results_are_in_the_common_format() -> None:
    async with at_an_address(McpServer()) as tools:
        assert (await call(tools, "count", {"a": 1, "b": 2})).output == {"n": 2}
        failed = await call(tools, "fail")
        assert (failed.output, failed.is_error) == ("no luck", True)
        picture = await call(tools, "picture")
        assert picture.output == [
            {"type": "text", "text": "a pixel"},
            {"type": "image", "mimeType": "image/png", "omitted": f"{len(PIXEL)} bytes"},
        ]
        assert base64.b64decode(picture.metadata["mcp"]["content"][1]["data"]) == PIXEL
        attachments = await call(tools, "attachments")
        assert attachments.output == [
            {"files": 3},
            {"type": "audio", "mimeType": "audio/wav", "omitted": "3 bytes"},
            {"type": "resource", "resource": {"uri": "memo://1", "text": "a memo", "mimeType": "text/plain"}},
            {"type": "resource", "resource": {"uri": "memo://2"}, "omitted": "4 bytes"},
            {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt"},
        ]


async def test_a_result_that_violates_the_schema_of_its_tool_is_an_error() -> None:
    async with at_an_address(McpServer()) as tools:
        with pytest.raises(
            ToolError, match="broke the protocol: Invalid structured content returned by tool lie"
        ):
            await call(tools, "lie")


async def test_a_call_that_the_server_rejects_is_an_error_with_the_reason() -> None:
    async with at_an_address(McpServer()) as tools:
        with pytest.raises(ToolError, match="the tool's server answered with an error"):
            await call(tools, "echo")  # the server's own code fails without an argument
        assert (await call(tools, "count")).output == {"n": 0}


@pytest.mark.parametrize("name", FORMATS)
def test_no_provider_is_sent_the_bytes_of_a_picture(name: str) -> None:
    data = base64.b64encode(PIXEL).decode()
    blocks = [{"type": "image", "data": data, "mimeType": "image/png"}]
    for fields in ({"content": blocks}, {"content": blocks, "isError": True, "structuredContent": {"a": 1}}):
        result = tool_result(fields).model_copy(update={"id": "call_1", "name": "look"})
        tool_call = ContentPartToolCall(id="call_1", name="look", arguments={})
        history = History(
            conversation=(
                Message(role=Role.MODEL, content=(tool_call,)),
                Message(role=Role.TOOL, content=(result,)),
            )
        )
        request = json.dumps(FORMATS[name].create_converter().from_history(history))
        assert f"{len(PIXEL)} bytes" in request
        assert data not in request


def test_large_files_are_not_kept() -> None:
    blocks = [{"type": "image", "data": "A" * 1024 * 1024, "mimeType": "image/png"}]
    assert tool_result({"content": blocks}).metadata == {}
    assert tool_result({"content": []}).output == ""


def test_what_is_no_base64_has_a_size_too() -> None:
    (block,) = tool_result({"content": [{"type": "audio", "data": "A" * 5, "mimeType": "audio/wav"}]}).output
    assert block["omitted"] == "3 bytes"


# --- concurrent calls, and cancelling ----------------------------------------------------------------------------


async def test_calls_from_many_tasks_run_at_once_over_one_session() -> None:
    server = McpServer()
    server.meeting = 20
    answers = list[str]()
    async with at_an_address(server) as tools, anyio.create_task_group() as group:

        async def meet() -> None:
            answers.append((await call(tools, "meet")).output)

        for _ in range(server.meeting):
            group.start_soon(meet)
    assert answers == ["met"] * 20


@pytest.mark.parametrize("modern", [True, False], ids=["2026", "with sessions"])
async def test_cancelling_a_call_notifies_the_server_and_keeps_the_other_calls(modern: bool) -> None:
    server = McpServer()
    sessions = WithSessions(server.app)
    async with (
        serving(server.app if modern else sessions) as url,
        McpToolset.http(f"{url}/mcp").connected() as tools,
    ):
        server.meeting = 2
        async with anyio.create_task_group() as group:
            group.start_soon(call, tools, "meet")
            async with anyio.create_task_group() as cancelled:
                cancelled.start_soon(call, tools, "wait")
                await server.waiting.wait()
                cancelled.cancel_scope.cancel()
            with anyio.fail_after(10):
                await server.cancelled.wait()
            await call(tools, "meet")  # the other call is still running
    assert modern or "notifications/cancelled" in sessions.methods
    assert modern or sessions.methods[-1] == "DELETE"  # the session ends with the connection


async def test_the_agents_time_limit_cancels_the_call_and_the_agent_goes_on() -> None:
    server = McpServer()
    script = (answer(calls=[("call_1", "wait", {})]), answer("It took too long."))
    async with serving(server.app) as url, ScriptedUpstream(*script) as upstream:
        tools = McpToolset.http(f"{url}/mcp", timeout=0.5)
        async with Agent(model_at(upstream), tools=[tools]) as agent:
            result = await agent.run("Wait.")
            with anyio.fail_after(10):
                await server.cancelled.wait()
        assert "exceeded its timeout of 0.5 seconds" in sent(upstream.requests[1])[-1]["content"]
    assert result.output == "It took too long."


async def test_an_agent_is_connected_by_one_task_and_runs_in_others() -> None:
    """As in a server: the lifespan connects, requests run and are cancelled."""
    server = McpServer()
    waits, counts = answer(calls=[("call_1", "wait", {})]), answer(calls=[("call_2", "count", {})])
    async with serving(server.app) as url, ScriptedUpstream(waits, counts, answer("None.")) as upstream:
        connected, over = anyio.Event(), anyio.Event()
        outputs = list[str]()
        agent = Agent(model_at(upstream), tools=[McpToolset.http(f"{url}/mcp")])

        async def lifespan() -> None:
            async with agent:
                connected.set()
                await over.wait()

        async def request() -> None:
            outputs.append("".join([result.output async for result in agent.run_stream("Go.")]))

        async with anyio.create_task_group() as group:
            group.start_soon(lifespan)
            await connected.wait()
            async with anyio.create_task_group() as requests:
                requests.start_soon(request)
                await server.waiting.wait()
                requests.cancel_scope.cancel()
            await server.cancelled.wait()
            async with anyio.create_task_group() as requests:
                requests.start_soon(request)
            over.set()
    assert outputs == ["None."]


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

"""Tools of real MCP servers, as programs and over HTTP: descriptions, results and concurrent calls."""

import asyncio
import base64
import gc
import json
import sys
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import psutil
import pytest
from mcp.server import Server
from mcp.types import ListToolsResult
from mcp.types import Tool as McpToolDescription

from support.live_server import serving
from support.mcp_server import PAGES, PIXEL, McpServer, WithSessions
from support.mcp_tools import at_an_address, call, program
from support.rounds import answer, model_at, sent
from support.upstream import ScriptedUpstream
from tailrace.streaming import Agent, ToolError
from tailrace.streaming.tools.mcp import McpToolset, tool_result
from tailrace.wrappers import ConfigurationError, ContentPartToolCall, History, Message, Role, UpstreamError
from tailrace.wrappers.providers import FORMATS

NAMES = [name for page in PAGES for name in page]


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

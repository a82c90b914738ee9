"""A hostile MCP server fails its own calls; it does not block the event loop, exhaust memory, or break a turn."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from support.loop_lag import LoopLag
from support.upstream import Head, Received, ScriptedUpstream, Step, Wait, json_answer, sse
from tailrace.streaming.tools.mcp import McpToolset
from tailrace.streaming.tools.mcp_bounds import MAX_REQUESTS, MAX_RESUMPTIONS, MAX_TOOLS_BYTES
from tailrace.streaming.tools.tools import Tool, ToolContext, ToolError
from tailrace.wrappers import ContentPartToolCall, ContentPartToolResult, UpstreamError

CONTEXT = ToolContext(ContentPartToolCall(id="c", name="t", arguments={}))
OBJECT: dict[str, Any] = {"type": "object"}

Answer = Callable[[object], list[Step]]
"""Returns the response to a call, from the id of its request."""


def result_of(fields: object) -> Answer:
    return lambda request_id: json_answer({"jsonrpc": "2.0", "id": request_id, "result": fields})


def raw_result(*pieces: bytes) -> Answer:
    """Return a response with this text as its result, sent in these chunks."""
    return lambda request_id: [
        Head(200, {"content-type": "application/json"}),
        b'{"jsonrpc":"2.0","id":%s,"result":' % json.dumps(request_id).encode(),
        *pieces,
        b"}",
    ]


def server(answer: Answer, **tool: Any) -> Callable[[Received], list[Step]]:
    """Run a server with one tool ``t`` and this response."""
    described = {"name": "t", "description": "d", "inputSchema": OBJECT, **tool}

    def script(request: Received) -> list[Step]:
        if request.method != "POST":
            return [Head(405, {"content-length": "0"}, chunked=False)]
        message = request.json
        if "id" not in message:
            return [Head(202, {"content-length": "0"}, chunked=False)]
        if message["method"] == "tools/call":
            return answer(message["id"])
        results: dict[str, dict[str, Any]] = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "hostile", "version": "1"},
            },
            "tools/list": {"tools": [described]},
        }
        if message["method"] in results:
            return result_of(results[message["method"]])(message["id"])
        error = {"code": -32601, "message": "no such method"}
        return json_answer({"jsonrpc": "2.0", "id": message["id"], "error": error})

    return script


@asynccontextmanager
async def tool_of(script: Callable[[Received], list[Step]]) -> AsyncGenerator[Tool]:
    async with ScriptedUpstream(script) as upstream:
        async with McpToolset.http(f"{upstream.base_url}/mcp").connected() as tools:
            yield tools[0]


def schema(pattern: str) -> dict[str, Any]:
    return {**OBJECT, "properties": {"a": {"type": "string", "pattern": pattern}}}


async def test_a_pattern_of_an_output_schema_takes_linear_time() -> None:
    """Backtracking in this pattern of a hostile server blocked the event loop for half a minute."""
    answer = result_of({"content": [], "structuredContent": {"a": "a" * 29 + "!"}})
    async with tool_of(server(answer, outputSchema=schema("^(a+)+$"))) as tool:
        async with LoopLag() as lag:
            with pytest.raises(ToolError, match="Invalid structured content"):
                await tool.call({}, CONTEXT)
    assert lag.worst_cpu < 2


@pytest.mark.parametrize(
    "output_schema",
    [
        schema("(?<=x)y"),
        {**OBJECT, "enum": [[each] for each in range(20_000)]},
        {"$ref": "#/$defs/none", **OBJECT},
    ],
    ids=["look-behind", "too large", "a reference to nothing"],
)
async def test_a_schema_that_cannot_be_checked_is_not(
    output_schema: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    answer = result_of({"content": [], "structuredContent": {"a": "b"}})
    with caplog.at_level(logging.WARNING):
        async with tool_of(server(answer, outputSchema=output_schema)) as tool:
            result = await tool.call({}, CONTEXT)
    assert isinstance(result, ContentPartToolResult)
    assert result.output == {"a": "b"}
    assert "are not checked against its output schema" in caplog.text


async def test_a_result_has_to_fit_a_schema_that_can_be_checked() -> None:
    outputs = [{"a": "aaa"}, {"a": "b"}, {"a": 1}]
    answers = iter([result_of({"content": [], "structuredContent": each}) for each in outputs])
    async with tool_of(server(lambda given: next(answers)(given), outputSchema=schema("^a+$"))) as tool:
        result = await tool.call({}, CONTEXT)
        assert isinstance(result, ContentPartToolResult)
        assert result.output == outputs[0]
        for _ in outputs[1:]:
            with pytest.raises(ToolError, match="Invalid structured content returned by tool t"):
                await tool.call({}, CONTEXT)


async def test_a_result_without_its_structured_content_is_an_error() -> None:
    async with tool_of(server(result_of({"content": []}), outputSchema=schema("a"))) as tool:
        with pytest.raises(ToolError, match="no structured content"):
            await tool.call({}, CONTEXT)


TEXT = {"type": "text", "text": "x"}
MANY: dict[str, dict[str, Any]] = {
    "blocks": {"content": [TEXT] * 50_000},
    "structured content": {"content": [], "structuredContent": {"a": [1] * 100_000}},
}


@pytest.mark.parametrize("fields", MANY.values(), ids=MANY)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_result_with_too_many_values_is_an_error(fields: dict[str, Any], *, streamed: bool) -> None:
    def answer(request_id: object) -> list[Step]:
        if not streamed:
            return result_of(fields)(request_id)
        return [sse({"jsonrpc": "2.0", "id": request_id, "result": fields})]

    async with tool_of(server(answer)) as tool:
        with pytest.raises(ToolError, match="more than 50000 JSON values"):
            await tool.call({}, CONTEXT)


@pytest.mark.parametrize(
    "start", [b'{"content":[{"type":"text","text":"', b" ", b"["], ids=["text", "white space", "arrays"]
)
async def test_a_response_that_is_too_large_is_not_read(start: bytes) -> None:
    filler = {b'"': b"x", b" ": b" ", b"[": b"["}[start[-1:]] * 1_000_000
    async with tool_of(server(raw_result(start, *[filler] * 30))) as tool:
        with pytest.raises(ToolError, match="larger than 16777216 bytes"):
            await tool.call({}, CONTEXT)


async def test_a_refusal_that_is_too_large_is_not_read() -> None:
    def answer(_: object) -> list[Step]:
        return [Head(500, {"content-type": "text/plain"}), *[b"x" * 1_000_000] * 30]

    async with tool_of(server(answer)) as tool:
        with pytest.raises(ToolError, match="HTTP 500"):
            await tool.call({}, CONTEXT)


async def test_a_result_that_is_nested_too_deep_is_an_error() -> None:
    nested = json.loads("[" * 100 + "]" * 100)
    async with tool_of(server(result_of({"content": [], "structuredContent": {"a": nested}}))) as tool:
        with pytest.raises(ToolError, match="nested too deep"):
            await tool.call({}, CONTEXT)


SESSION = {"content-type": "application/json", "mcp-session-id": "s"}
BROKEN_OFF = b"id: 1\nretry: 0\ndata:\n\n"
"""The begin of a response that the client is asked to resume at once."""


def server_with_session(
    call: Answer, *, resumed: Callable[[Received], list[Step]], reply: Callable[[], list[Step]]
) -> Callable[[Received], list[Step]]:
    """Run a server with sessions, one tool, these responses to GET, and these to the client's own responses."""
    usual = server(call)

    def script(request: Received) -> list[Step]:
        if request.method == "GET":
            return resumed(request)
        if request.method == "POST" and "method" not in request.json:
            return reply()
        if request.method == "POST" and request.json["method"] == "initialize":
            return [Head(200, SESSION), *usual(request)[1:]]
        return usual(request)

    return script


def accepted() -> list[Step]:
    return [Head(202, {"content-length": "0"}, chunked=False)]


async def test_servers_get_no_stream_for_notifications() -> None:
    """A server that ended this stream at once, with a pause of zero, was asked for it again hundreds of times a second."""
    script = server_with_session(
        result_of({"content": [TEXT]}), resumed=lambda _: [BROKEN_OFF], reply=accepted
    )
    async with ScriptedUpstream(script) as upstream:
        async with McpToolset.http(f"{upstream.base_url}/mcp").connected() as tools:
            for _ in range(3):
                await tools[0].call({}, CONTEXT)
        assert "GET" not in [request.method for request in upstream.requests]


async def test_a_response_is_resumed_a_limited_number_of_times() -> None:
    script = server_with_session(lambda _: [BROKEN_OFF], resumed=lambda _: [BROKEN_OFF], reply=accepted)
    async with ScriptedUpstream(script) as upstream:
        async with McpToolset.http(f"{upstream.base_url}/mcp").connected() as tools:
            for call in (1, 2):
                with pytest.raises(ToolError, match="reconnection attempts were exhausted"):
                    await tools[0].call({}, CONTEXT)
                resumptions = [request for request in upstream.requests if request.method == "GET"]
                assert len(resumptions) == call * MAX_RESUMPTIONS


async def test_a_response_that_breaks_off_is_resumed() -> None:
    requests = list[Received]()

    def call(request_id: object) -> list[Step]:
        return [BROKEN_OFF]

    def resumed(request: Received) -> list[Step]:
        requests.append(request)
        if len(requests) < 5:
            return [BROKEN_OFF]
        return [sse({"jsonrpc": "2.0", "id": 0, "result": {"content": [TEXT]}})]

    async with tool_of(server_with_session(call, resumed=resumed, reply=accepted)) as tool:
        result = await tool.call({}, CONTEXT)
    assert isinstance(result, ContentPartToolResult)
    assert result.output == "x"
    assert {request.headers["last-event-id"] for request in requests} == {"1"}


async def test_requests_of_a_server_that_wait_are_limited() -> None:
    """Each ping started a task, which waited until the server accepted the response to the one before."""
    over = anyio.Event()

    def call(request_id: object) -> list[Step]:
        pings = [sse({"jsonrpc": "2.0", "id": number, "method": "ping"}) for number in range(2_000)]
        return [*pings, sse({"jsonrpc": "2.0", "id": request_id, "result": {"content": [TEXT]}})]

    script = server_with_session(
        call, resumed=lambda _: [BROKEN_OFF], reply=lambda: [Wait(over), *accepted()]
    )
    async with tool_of(script) as tool:
        before = len(asyncio.all_tasks())
        result = await tool.call({}, CONTEXT)
        assert isinstance(result, ContentPartToolResult)
        assert len(asyncio.all_tasks()) - before < 2 * MAX_REQUESTS
        over.set()


async def test_a_list_of_tools_that_is_too_large_is_an_error() -> None:
    page = MAX_TOOLS_BYTES // 4

    def script(request: Received) -> list[Step]:
        if request.method == "POST" and request.json.get("method") == "tools/list":
            params: dict[str, str] = request.json.get("params") or {}
            number = int(params.get("cursor", 0))
            tool = {"name": f"t{number}", "description": "x" * page, "inputSchema": OBJECT}
            return result_of({"tools": [tool], "nextCursor": str(number + 1)})(request.json["id"])
        return server(result_of({}))(request)

    async with ScriptedUpstream(script) as upstream:
        with pytest.raises(
            UpstreamError, match=f"the definitions of its tools are larger than {MAX_TOOLS_BYTES} bytes"
        ):
            async with McpToolset.http(f"{upstream.base_url}/mcp").connected():
                pass
        lists = [
            each
            for each in upstream.requests
            if each.method == "POST" and each.json.get("method") == "tools/list"
        ]
        assert len(lists) == 4

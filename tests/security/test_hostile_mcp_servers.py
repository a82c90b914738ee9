"""A hostile MCP server fails its own calls; it does not block the event loop, exhaust memory, or break a turn."""

import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.loop_lag import LoopLag
from support.upstream import Head, Received, ScriptedUpstream, Step, json_answer, sse
from tailrace.streaming.tools.mcp import McpToolset
from tailrace.streaming.tools.tools import Tool, ToolContext, ToolError
from tailrace.wrappers import ContentPartToolCall, ContentPartToolResult

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

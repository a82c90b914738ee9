"""Tools of an MCP server, and calls of them."""

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support import mcp_server
from support.live_server import serving
from support.mcp_server import McpServer
from tailrace.streaming import Tool, ToolContext
from tailrace.streaming.tools.mcp import McpToolset
from tailrace.wrappers import ContentPartToolCall, ContentPartToolResult

SERVER = str(Path(mcp_server.__file__))


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


@asynccontextmanager
async def at_an_address(server: McpServer, **options: Any) -> AsyncGenerator[Sequence[Tool]]:
    async with serving(server.app) as url, McpToolset.http(f"{url}/mcp", **options).connected() as tools:
        yield tools

"""Tools of servers of the Model Context Protocol (MCP).

::

    time = McpToolset.stdio("uvx", "mcp-server-time")
    search = McpToolset.http("https://example.com/mcp", headers={"Authorization": f"Bearer {token}"})
    async with Agent("openai:gpt-5-mini", tools=[time, search]) as agent:
        ...

The module requires the official SDK (``pip install 'tailrace[mcp]'``), and supports the protocol versions of the SDK.
Specification: https://modelcontextprotocol.io/specification.

The client requests the list of tools once, and ignores notifications of changes. It does not support requests of servers
(sampling, elicitation, roots), and ignores log and progress notifications.

After the connection is lost, the next call reconnects. A call that was in progress is not repeated, because the server may have
executed it. Its result is an error for the model.
"""

import base64
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, cast

import msgspec

from tailrace.streaming.tools.mcp_servers import HttpServer, StdioServer
from tailrace.streaming.tools.tools import Tool, ToolContext, ToolError, Toolset
from tailrace.wrappers import ConfigurationError, ContentPartToolResult, UpstreamError, UpstreamFault
from tailrace.wrappers.request_options import ToolDefinition

if TYPE_CHECKING:
    from tailrace.streaming.tools.mcp_connection import ToolServerClient

DEFAULT_CONNECT_TIMEOUT = 30.0
"""Default timeout in seconds for the connection and the list of tools. Some servers are installed on their first run."""

MAX_KEPT_BYTES = 1024 * 1024
"""Maximum size in bytes of the content of a result that is stored unchanged in the metadata; see `tool_result`."""


class McpOptions(TypedDict, total=False):
    """The arguments of `McpToolset`, except the server."""

    prefix: str
    include: Collection[str] | None
    exclude: Collection[str]
    timeout: float | None
    connect_timeout: float


class McpToolset(Toolset):
    """The tools of one server. Each use of `connected` opens a separate connection.

    Args:
        server: The server.
        prefix: A prefix for the names of the tools, in case several servers have tools of the same name.
        include: Names of the tools to use, without the prefix; None for all tools.
        exclude: Names of the tools to omit, without the prefix.
        timeout: Timeout of a call in seconds; None for the timeout of the agent. The server is notified of a timeout.
        connect_timeout: Timeout in seconds for the connection and the list of tools.
    """

    def __init__(
        self,
        server: StdioServer | HttpServer,
        *,
        prefix: str = "",
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
        timeout: float | None = None,
        connect_timeout: float = DEFAULT_CONNECT_TIMEOUT,
    ) -> None:
        self.server = server
        self._prefix = prefix
        self._include = None if include is None else frozenset(include)
        self._exclude = frozenset(exclude)
        self._timeout = timeout
        self._connect_timeout = connect_timeout

    @classmethod
    def stdio(
        cls,
        command: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        **options: Unpack[McpOptions],
    ) -> Self:
        """Create the toolset of a program. The program runs while the toolset is connected.

        The standard error of the program is logged with the level DEBUG (on Windows, it is discarded).

        Args:
            command: The program.
            *arguments: The arguments of the program.
            env: See `StdioServer`.
            cwd: See `StdioServer`.
            **options: See the class.
        """
        return cls(StdioServer(command, arguments, env or {}, cwd), **options)

    @classmethod
    def http(
        cls, url: str, *, headers: Mapping[str, str] | None = None, **options: Unpack[McpOptions]
    ) -> Self:
        """Create the toolset of a server at a URL.

        Args:
            url: The URL.
            headers: Headers for every request, for example ``Authorization``.
            **options: See the class.

        Raises:
            ConfigurationError: The URL is not an HTTP URL.
        """
        return cls(HttpServer(url, headers or {}), **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.server})"

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[Sequence[Tool]]:
        """Connect to the server; see `Toolset.connected`. Any asyncio task may call the tools during the block.

        After the block, the program or the session is ended within a few seconds, even if the block was cancelled.
        """
        try:
            from tailrace.streaming.tools.mcp_connection import linked
        except ImportError as error:
            raise ConfigurationError(
                f"tools of MCP servers need a package: pip install 'tailrace[mcp]' ({error})"
            ) from error
        async with linked(self.server, self._connect_timeout) as link:
            yield self._tools(link)

    def _tools(self, link: "ToolServerClient") -> list[Tool]:
        selected = {name: tool for name, tool in link.tools.items() if name not in self._exclude}
        if self._include is not None:
            unknown = sorted(self._include - link.tools.keys())
            if unknown:
                raise ConfigurationError(
                    f"the MCP server {self.server} has no tool {', '.join(map(repr, unknown))}; "
                    f"it has: {', '.join(map(repr, sorted(link.tools))) or 'none'}"
                )
            selected = {name: tool for name, tool in selected.items() if name in self._include}
        try:
            return [
                McpTool(
                    link,
                    name,
                    _definition(self._prefix + name, fields),
                    self._timeout,
                    fields.get("annotations") or {},
                )
                for name, fields in selected.items()
            ]
        except ValueError as error:
            raise UpstreamError(
                f"the MCP server {self.server} describes an invalid tool: {error}",
                fault=UpstreamFault.INVALID,
            ) from error


class McpTool(Tool):
    """A tool of a server, created by `McpToolset`."""

    def __init__(
        self,
        link: "ToolServerClient",
        name: str,
        definition: ToolDefinition,
        timeout: float | None,
        annotations: Mapping[str, Any],
    ) -> None:
        self._link = link
        self._name = name
        self.annotations = annotations
        self.idempotent = any(annotations.get(hint) is True for hint in ("readOnlyHint", "idempotentHint"))
        self.definition = definition
        self.timeout = timeout

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> ContentPartToolResult:
        """Call the tool on the server; see `Tool.call` and `tool_result`. The server is notified of a cancellation.

        Raises:
            ToolError: The server rejected the call, disconnected during the call, or cannot be reached; or the result is
                nested too deeply.
        """
        result = await self._link.call(self._name, arguments)
        try:
            return tool_result(result)
        except ValueError:
            raise ToolError("the tool's result is nested too deep") from None


def tool_result(result: Mapping[str, Any]) -> ContentPartToolResult:
    """Convert the result of a server to the common format. The id and the name are empty.

    A result contains blocks (text, images, other files), and may also contain structured content (JSON). The output is:

    - if all blocks are text: the structured content; without structured content, the texts, joined with line breaks.
    - otherwise, a list: the structured content and the blocks that are not text; without structured content, all blocks.

    The list contains the sizes of files instead of their contents, which no provider accepts. If the blocks are at most
    `MAX_KEPT_BYTES` long, ``metadata["mcp"]["content"]`` contains them unchanged.

    Args:
        result: A ``CallToolResult``, as JSON.

    Raises:
        ValueError: The result is nested too deeply.
    """
    blocks = cast("list[dict[str, Any]]", result.get("content") or [])
    reduced = [_model_block(block) for block in blocks]
    other_blocks = [block for block in reduced if block["type"] != "text"]
    structured: object = result.get("structuredContent")
    output: object = "\n".join(block["text"] for block in reduced if block["type"] == "text")
    if structured is not None:
        output = [structured, *other_blocks] if other_blocks else structured
    elif other_blocks:
        output = reduced
    metadata: dict[str, Any] = {}
    if any(_omitted(block) for block in blocks) and len(msgspec.json.encode(blocks)) <= MAX_KEPT_BYTES:
        metadata = {"mcp": {"content": blocks}}
    return ContentPartToolResult(
        id="", name="", output=output, is_error=bool(result.get("isError")), metadata=metadata
    )


def _model_block(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a content block without members for programs, and with the size of a file instead of its bytes."""
    reduced = {
        key: value for key, value in block.items() if key not in ("_meta", "annotations", "icons", "data")
    }
    if block["type"] == "resource":
        reduced["resource"] = {
            key: value for key, value in block["resource"].items() if key not in ("_meta", "blob")
        }
    omitted = _omitted(block)
    if omitted:
        reduced["omitted"] = f"{_size(omitted)} bytes"
    return reduced


def _omitted(block: Mapping[str, Any]) -> str:
    """Return the base64 text of the file in a block; empty if there is no file."""
    if block["type"] == "resource":
        return block["resource"].get("blob", "")
    return block.get("data", "")


def _size(text: str) -> int:
    """Return the number of bytes that a base64 text encodes. For an invalid text, the number is an estimate."""
    try:
        return len(base64.b64decode(text))
    except ValueError:
        return len(text) * 3 // 4


def _definition(name: str, tool: Mapping[str, Any]) -> ToolDefinition:
    """Return the definition of a tool for the model.

    Raises:
        pydantic.ValidationError: The tool has no name, or its schema is nested too deeply.
    """
    description = tool.get("description") or tool.get("title") or ""
    return ToolDefinition(name=name, description=description, parameters=tool["inputSchema"])

"""The tools of servers of the Model Context Protocol (MCP), as a set of tools of an agent.

::

    time = McpToolset.stdio("uvx", "mcp-server-time")
    search = McpToolset.http("https://example.com/mcp", headers={"Authorization": f"Bearer {token}"})
    async with Agent("openai:gpt-5-mini", tools=[time, search]) as agent:
        ...

Built on the official SDK, an extra: ``pip install 'tailrace[mcp]'``. It speaks every version of the protocol that the SDK
does, see https://modelcontextprotocol.io/specification.

The tools are asked for once, when the set is connected: a server's word that they have changed
(``notifications/tools/list_changed``) is ignored. Of what a server may ask of its client (a model's answer, a question to
the user, folders) nothing is offered; what it logs and how far it is, is not told.

A server that is lost is connected anew by the next call, once a call. A call that was under way then is not repeated, since
nobody knows whether it was carried out: its result says so, and the model goes on.
"""

import base64
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, cast

import msgspec

from tailrace.streaming.tools import Tool, ToolContext, Toolset
from tailrace.wrappers import ConfigurationError, ContentPartToolResult, UpstreamError, UpstreamFault
from tailrace.wrappers.options import ToolDefinition

if TYPE_CHECKING:
    from tailrace.streaming.mcp_link import Link

DEFAULT_CONNECT_TIMEOUT = 30.0
"""Seconds that a server may take until its tools are known; one that is installed on its first run takes some."""

MAX_KEPT_BYTES = 1024 * 1024
"""Size of a result with files up to which it is kept as it was, see `tool_result`."""


@dataclass(frozen=True)
class StdioServer:
    """A server that is a program, spoken to over its standard input and output.

    Attributes:
        command: The program.
        arguments: Its arguments.
        env: Variables of its environment, beside the few that every program needs (``PATH``, ``HOME``, …): ours, with the
            keys of providers in it, is not handed on.
        cwd: Its folder; ours when None.
    """

    command: str
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | Path | None = None

    def __str__(self) -> str:
        return " ".join((self.command, *self.arguments))


@dataclass(frozen=True)
class HttpServer:
    """A server at an address (the transport that is called Streamable HTTP).

    Attributes:
        url: The address.
        headers: Sent with every request.

    Raises:
        ConfigurationError: The address is none of HTTP.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigurationError(f"an MCP server's address begins with http:// or https://: {self.url!r}")

    def __str__(self) -> str:
        """The address without what may be secret in it: a user's name, and the query."""
        scheme, _, rest = self.url.partition("://")
        authority, slash, path = rest.partition("#")[0].partition("?")[0].partition("/")
        return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"


class McpOptions(TypedDict, total=False):
    """What `McpToolset` takes beside the server."""

    prefix: str
    include: Collection[str] | None
    exclude: Collection[str]
    timeout: float | None
    connect_timeout: float


class McpToolset(Toolset):
    """The tools of one server. Whoever connects it has a connection of their own.

    Args:
        server: Where they are.
        prefix: Put before each name, where two servers have tools of the same name.
        include: The tools that are wanted, by the server's names; all when None.
        exclude: Those that are not.
        timeout: Seconds that a call may take; None for the agent's own limit. The server is told of a call that is given
            up, for this or another reason.
        connect_timeout: Seconds until the tools are known.
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
        """The tools of a program, which runs as long as the set is connected.

        What it writes to its standard error goes to the logger ``tailrace.streaming.mcp``, level DEBUG (on Windows:
        nowhere).

        Args:
            command: The program.
            *arguments: Its arguments.
            env: See `StdioServer`.
            cwd: See `StdioServer`.
            **options: See the class.
        """
        return cls(StdioServer(command, arguments, env or {}, cwd), **options)

    @classmethod
    def http(
        cls, url: str, *, headers: Mapping[str, str] | None = None, **options: Unpack[McpOptions]
    ) -> Self:
        """The tools of a server at an address.

        Args:
            url: The address.
            headers: Sent with every request (``Authorization``, for one).
            **options: See the class.

        Raises:
            ConfigurationError: The address is none of HTTP.
        """
        return cls(HttpServer(url, headers or {}), **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.server})"

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[Sequence[Tool]]:
        """See `Toolset.connected`. The tools may be called from any task while the block lasts.

        Cancelling a call ends that call alone. Leaving the block ends the program, or the session, within some seconds,
        also when it is left by cancelling.
        """
        try:
            from tailrace.streaming.mcp_link import linked
        except ImportError as error:
            raise ConfigurationError(
                f"tools of MCP servers need a package: pip install 'tailrace[mcp]' ({error})"
            ) from error
        async with linked(self.server, self._connect_timeout) as link:
            yield self._tools(link)

    def _tools(self, link: "Link") -> list[Tool]:
        offered = {name: tool for name, tool in link.tools.items() if name not in self._exclude}
        if self._include is not None:
            unknown = sorted(self._include - link.tools.keys())
            if unknown:
                raise ConfigurationError(
                    f"the MCP server {self.server} has no tool {', '.join(map(repr, unknown))}; "
                    f"it has: {', '.join(sorted(link.tools)) or 'none'}"
                )
            offered = {name: tool for name, tool in offered.items() if name in self._include}
        try:
            return [
                McpTool(link, name, _definition(self._prefix + name, fields), self._timeout)
                for name, fields in offered.items()
            ]
        except ValueError as error:
            raise UpstreamError(
                f"the MCP server {self.server} describes a tool that is none: {error}",
                fault=UpstreamFault.INVALID,
            ) from error


class McpTool(Tool):
    """A tool of a server, made by `McpToolset`."""

    def __init__(self, link: "Link", name: str, definition: ToolDefinition, timeout: float | None) -> None:
        self._link = link
        self._name = name
        self.definition = definition
        self.timeout = timeout

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> ContentPartToolResult:
        """Have the server do it; see `Tool.call` and `tool_result`.

        Cancelling tells the server (``notifications/cancelled``, or by closing the request, as the version has it).

        Raises:
            ToolError: The server refused the call, was lost while it was under way, or cannot be reached.
        """
        return tool_result(await self._link.call(self._name, arguments))


def tool_result(result: Mapping[str, Any]) -> ContentPartToolResult:
    """What a server answered, in the common format; without the call's id and name.

    The output is the structured content; without one the text, its blocks joined by line ends. Where there are blocks of
    another kind it is a list: the structured content if there is any, or the text blocks, and those others as in the
    protocol, but with the bytes of a file replaced by their number. No provider takes such files in the form of this
    protocol, and as text they would fill the model's window. They are kept in ``metadata["mcp"]["content"]``, where the
    whole is no larger than `MAX_KEPT_BYTES`.

    Args:
        result: A ``CallToolResult``, as JSON.

    Raises:
        ValueError: It is nested too deep.
    """
    blocks = cast("list[dict[str, Any]]", result.get("content") or [])
    shown = [_shown(block) for block in blocks]
    others = [block for block in shown if block["type"] != "text"]
    structured: object = result.get("structuredContent")
    output: object = "\n".join(block["text"] for block in shown if block["type"] == "text")
    if structured is not None:
        output = [structured, *others] if others else structured
    elif others:
        output = shown
    metadata: dict[str, Any] = {}
    if any(_omitted(block) for block in blocks) and len(msgspec.json.encode(blocks)) <= MAX_KEPT_BYTES:
        metadata = {"mcp": {"content": blocks}}
    return ContentPartToolResult(
        id="", name="", output=output, is_error=bool(result.get("isError")), metadata=metadata
    )


def _shown(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block of content as a model is to see it: without what is for programs, and without a file's bytes."""
    shown = {
        key: value for key, value in block.items() if key not in ("_meta", "annotations", "icons", "data")
    }
    if block["type"] == "resource":
        shown["resource"] = {
            key: value for key, value in block["resource"].items() if key not in ("_meta", "blob")
        }
    omitted = _omitted(block)
    if omitted:
        shown["omitted"] = f"{_size(omitted)} bytes"
    return shown


def _omitted(block: Mapping[str, Any]) -> str:
    """The base64 of the file that a block holds; empty where it holds none."""
    if block["type"] == "resource":
        return block["resource"].get("blob", "")
    return block.get("data", "")


def _size(text: str) -> int:
    """How many bytes base64 stands for; of what is none, about as many."""
    try:
        return len(base64.b64decode(text))
    except ValueError:
        return len(text) * 3 // 4


def _definition(name: str, tool: Mapping[str, Any]) -> ToolDefinition:
    """What the model is told of a tool.

    Raises:
        pydantic.ValidationError: It has no name, or its schema is nested too deep.
    """
    told = tool.get("description") or tool.get("title") or ""
    return ToolDefinition(name=name, description=told, parameters=tool["inputSchema"])

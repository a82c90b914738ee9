"""Connections to an MCP server, which are reopened after they are lost. Requires the official SDK.

The asyncio task that opens a client of the SDK must also close it, but any asyncio task may call a tool and thereby reconnect.
Each connection therefore has its own asyncio task. It is shielded from cancellation, so that the server is always disconnected
properly, within a limited time.
"""

import logging
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, cast

import anyio
import anyio.abc
import httpx2
import pydantic
from mcp import Client, MCPError
from mcp.types import CONNECTION_CLOSED, Implementation

from tailrace.streaming.tools.mcp_bounds import BoundedTools, MessageFilter, limited_resumptions
from tailrace.streaming.tools.mcp_http import FORGOTTEN, HttpTransport, first_line
from tailrace.streaming.tools.mcp_servers import HttpServer, StdioServer
from tailrace.streaming.tools.mcp_stdio import StdioTransport
from tailrace.streaming.tools.tools import ToolError
from tailrace.wrappers import TailraceError, UpstreamError, UpstreamFault
from tailrace.wrappers.redaction.redactor import Redactor

logger = logging.getLogger("tailrace.streaming.tools.mcp")

Fields = dict[str, Any]

CLOSING_TIME = 5.0
"""Maximum time in seconds for disconnecting from a server, or ending its program."""

MAX_PAGES = 100
"""Maximum number of pages of a list of tools."""

_CLOSED = "Connection closed"  # the SDK's error for pending calls
_LOST = (
    "the tool's server was lost in the middle of the call; it is not known whether the call was carried out"
)


@asynccontextmanager
async def linked(
    server: StdioServer | HttpServer, connect_timeout: float
) -> "AsyncGenerator[ToolServerClient]":
    """Connect to a server, and request its tools.

    Raises:
        ConfigurationError: The server's program cannot be started.
        UpstreamError: The server cannot be reached, or does not respond.
    """
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        link = ToolServerClient(server, connect_timeout, group)
        try:
            await link.open()
            yield link
        except Exception as error:
            failure = error  # raised below, because the task group would wrap it
        finally:
            link.close()
    if failure is not None:
        raise failure


class ToolServerClient:
    """Client for the tools of a server. A call replaces a lost connection.

    Attributes:
        tools: The tools by name, as listed by the first connection.
    """

    def __init__(
        self, server: StdioServer | HttpServer, connect_timeout: float, group: anyio.abc.TaskGroup
    ) -> None:
        self.tools: dict[str, Fields] = {}
        self._server = server
        self._connect_timeout = connect_timeout
        self._redactor = _redactor(server)
        self._group = group
        self._connection: _Connection | None = None
        self._closed = False

    async def open(self) -> None:
        """Connect, and request the tools.

        Raises:
            ConfigurationError: As for `linked`.
            UpstreamError: As for `linked`.
        """
        connection = self._usable()
        await connection.client()
        self.tools = connection.tools

    def close(self) -> None:
        """Reject further calls. The connection is closed when the current asyncio task next waits."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    async def call(self, name: str, arguments: Fields) -> Fields:
        """Call a tool. Return the ``CallToolResult`` as a JSON object.

        Raises:
            ToolError: The server rejected the call, disconnected during the call, or cannot be reached.
        """
        for may_repeat in (True, False):
            connection = self._usable()
            try:
                client = await connection.client()
            except TailraceError as error:
                logger.warning("%s", getattr(error, "diagnosis", "") or error)
                # The details may contain addresses and arguments of the program.
                raise ToolError("the tool's server was lost and cannot be connected again") from None
            try:
                with limited_resumptions():
                    result = await client.call_tool(name, arguments)
            except MCPError as error:
                if error.message == FORGOTTEN:
                    # The server has not run the call (MCP 2025-11-25, "Session Management").
                    connection.close()
                    if may_repeat:
                        continue
                # Servers use this code for other errors too.
                if error.code == CONNECTION_CLOSED and (connection.is_closed or error.message == _CLOSED):
                    raise ToolError(_LOST) from None
                reason = self._redactor.for_callers(error.message)
                raise ToolError(f"the tool's server answered with an error: {reason}") from None
            except (RuntimeError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                if connection.is_closed:
                    raise ToolError(_LOST) from None
                reason = self._redactor.for_callers(first_line(error))
                raise ToolError(f"the tool's server broke the protocol: {reason}") from None
            except pydantic.ValidationError as error:
                reason = self._redactor.for_callers(first_line(error))
                raise ToolError(f"the tool's answer is none of the protocol: {reason}") from None
            fields = result.model_dump(mode="json", by_alias=True, exclude_none=True)
            await connection.messages.output_schemas.check(name, fields)
            return fields
        raise AssertionError("the second try returns or raises")

    def _usable(self) -> "_Connection":
        if self._closed:
            raise ToolError("the tool's server is no longer connected")
        if self._connection is None or self._connection.is_closed:
            self._connection = _Connection(self._server, self._connect_timeout)
            self._group.start_soon(self._connection.run, name=f"MCP server {self._server}")
        return self._connection


class _Connection:
    """One client of the SDK. `run` opens and closes the client.

    Attributes:
        tools: The tools by name; empty before the client is connected.
    """

    def __init__(self, server: StdioServer | HttpServer, connect_timeout: float) -> None:
        self.tools: dict[str, Fields] = {}
        self.messages = MessageFilter()
        self._server = server
        self._connect_timeout = connect_timeout
        self._client: Client | None = None
        self._failure: TailraceError | None = None
        self._has_result = anyio.Event()
        self._ending = anyio.Event()
        self._closed = False
        self._scope = anyio.CancelScope(shield=True)
        self._transport = (
            StdioTransport(server, self.messages, self._ending)
            if isinstance(server, StdioServer)
            else HttpTransport(server, self.messages, self._ending, connect_timeout)
        )

    @property
    def is_closed(self) -> bool:
        """True if the connection was lost or closed; False while it is being opened."""
        return self._ending.is_set()

    async def client(self) -> Client:
        """Wait until the client is connected. Return the client.

        Raises:
            ConfigurationError: The server's program cannot be started.
            UpstreamError: The server cannot be reached, or does not respond.
        """
        await self._has_result.wait()
        if self._client is not None:
            return self._client
        raise self._failure or UpstreamError(
            f"the connection to the MCP server {self._server} was closed",
            fault=UpstreamFault.CONNECTION,
        )

    def close(self) -> None:
        self._closed = True
        self._ending.set()
        if not self._has_result.is_set():
            self._scope.cancel()
            self._has_result.set()  # the task may be cancelled before its first step

    async def run(self) -> None:
        """Connect, and wait until the connection is lost or `close` is called. This method never raises an exception."""
        self._scope.deadline = anyio.current_time() + self._connect_timeout
        error: Exception | None = None
        try:
            with self._scope:
                await self._run_client()
        except Exception as caught:
            error = caught
        finally:
            if not self._has_result.is_set():
                self._failure = self._redacted(self._connection_error(error))
                self._has_result.set()
            elif not self._closed:
                logger.warning("the MCP server %s was lost", self._server, exc_info=error)
            self._ending.set()

    async def _run_client(self) -> None:
        # A cancel scope must not be exited here before the client is closed, because the client has a task group.
        about = Implementation(name="tailrace", version=version("tailrace"))
        transport: Any = self._transport.streams()
        async with Client(transport, client_info=about, cache=None) as client:
            self.tools = await _list_tools(client)
            self._scope.deadline = math.inf
            if not self._ending.is_set():
                self._client = client
                self._has_result.set()
            await self._ending.wait()
            self._scope.deadline = anyio.current_time() + CLOSING_TIME

    def _redacted(self, error: TailraceError) -> TailraceError:
        """Move details from an error for callers to its ``diagnosis``."""
        if not isinstance(error, UpstreamError):
            return error
        error.diagnosis = error.message
        return _redactor(self._server).redact(error)

    def _connection_error(self, error: Exception | None) -> TailraceError:
        if isinstance(error, ExceptionGroup):
            return self._connection_error(cast("ExceptionGroup[Exception]", error).exceptions[0])
        known = self._transport.failure(error)
        if known is not None:
            return known
        reason, fault = first_line(error), UpstreamFault.PROVIDER
        if error is None and not self._scope.cancelled_caught:
            reason, fault = "it ended at once", UpstreamFault.CONNECTION
        elif error is None:
            reason, fault = f"no answer within {self._connect_timeout:g} s", UpstreamFault.TIMEOUT
        elif isinstance(error, pydantic.ValidationError | httpx2.InvalidURL):
            fault = UpstreamFault.INVALID
        return UpstreamError(f"the MCP server {self._server}: {reason}", fault=fault)


def _redactor(server: StdioServer | HttpServer) -> Redactor:
    if isinstance(server, HttpServer):
        return Redactor.of_request(server.url, server.headers)
    return Redactor.of_request("", server.env)


async def _list_tools(client: Client) -> dict[str, Fields]:
    tools = BoundedTools()
    if client.server_capabilities.tools is None:
        return tools.by_name
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            tools.add(tool)
        cursor = page.next_cursor
        if not cursor:
            return tools.by_name
    raise RuntimeError(f"its list of tools has more than {MAX_PAGES} pages")

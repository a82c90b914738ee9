"""Connections to an MCP server, with reconnection. Needs the official SDK.

The SDK's client must be closed by the task that opened it, while calls come from any task, and a lost server is reconnected
during a call. Each connection therefore has a task of its own, in a task group that ends with the link. That task is shielded:
however the link ends, the server is disconnected properly, within a bounded time.
"""

import logging
import math
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from types import TracebackType
from typing import IO, Any, Self, TypeAlias, cast

import anyio
import anyio.abc
import httpx2
import mcp.client.stdio
import mcp.client.streamable_http
import pydantic
from mcp import Client, MCPError
from mcp.shared.message import SessionMessage
from mcp.types import CONNECTION_CLOSED, INTERNAL_ERROR, Implementation

from tailrace.streaming.tools.mcp_bounds import (
    BoundedBody,
    BoundedTools,
    OutputSchemas,
    RespondingStream,
    ServerRequests,
    bounded_message,
    limited_resumptions,
    take_resumption,
)
from tailrace.streaming.tools.mcp_servers import HttpServer, StdioServer
from tailrace.streaming.tools.tools import ToolError
from tailrace.wrappers import ConfigurationError, TailraceError, UpstreamError, UpstreamFault
from tailrace.wrappers.redaction.redactor import Redactor

logger = logging.getLogger("tailrace.streaming.tools.mcp")

Fields = dict[str, Any]

CLOSING_TIME = 5.0
"""Seconds for disconnecting from a server; a program receives its signals within them."""

MAX_PAGES = 100
"""Maximum pages of a list of tools."""

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Maximum size of one event of a server at a URL: a result, with its files."""

MAX_LINE_BYTES = 8 * 1024
"""Maximum bytes of one log entry of a program's standard error."""

_DRAINING_TIME = 0.5  # for the last output, if another process holds the program's standard error open
_SESSION = "mcp-session-id"
_CLOSED = "Connection closed"  # the SDK's error for pending calls
_FORGOTTEN = "the session is not known to the server"
_LOST = (
    "the tool's server was lost in the middle of the call; it is not known whether the call was carried out"
)


@asynccontextmanager
async def linked(server: StdioServer | HttpServer, connect_timeout: float) -> "AsyncGenerator[Link]":
    """Connect to a server, and request its tools.

    Raises:
        ConfigurationError: The server's program cannot be started.
        UpstreamError: The server cannot be reached, or does not reply.
    """
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        link = Link(server, connect_timeout, group)
        try:
            await link.open()
            yield link
        except Exception as error:
            failure = error  # raised below: the task group would wrap it
        finally:
            link.close()
    if failure is not None:
        raise failure


class Link:
    """Calls tools, over a connection that is opened again when it is lost.

    Attributes:
        tools: The tools by name, as of the first connection.
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
        """Connect, and request the tools; see `linked`."""
        connection = self._usable()
        await connection.client()
        self.tools = connection.tools

    def close(self) -> None:
        """Accept no more calls; the server is disconnected as soon as this task waits."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    async def call(self, name: str, arguments: Fields) -> Fields:
        """Call a tool; return the ``CallToolResult`` as JSON.

        Raises:
            ToolError: The server refused the call, disconnected during it, or cannot be reached.
        """
        for may_repeat in (True, False):
            connection = self._usable()
            try:
                client = await connection.client()
            except TailraceError as error:
                logger.warning("%s", getattr(error, "diagnosis", "") or error)
                # Without details, which may name arguments of the program, and addresses.
                raise ToolError("the tool's server was lost and cannot be connected again") from None
            try:
                with limited_resumptions():
                    result = await client.call_tool(name, arguments)
            except MCPError as error:
                if error.message == _FORGOTTEN:
                    # The server does not know the session (2025-11-25, "Session Management"), so it did nothing.
                    connection.close()
                    if may_repeat:
                        continue
                # Servers use this code for errors of their own, too.
                if error.code == CONNECTION_CLOSED and (connection.over or error.message == _CLOSED):
                    raise ToolError(_LOST) from None
                reason = self._redactor.for_callers(error.message)
                raise ToolError(f"the tool's server answered with an error: {reason}") from None
            except (RuntimeError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                if connection.over:
                    raise ToolError(_LOST) from None
                reason = self._redactor.for_callers(_first_line(error))
                raise ToolError(f"the tool's server broke the protocol: {reason}") from None
            except pydantic.ValidationError as error:
                reason = self._redactor.for_callers(_first_line(error))
                raise ToolError(f"the tool's answer is none of the protocol: {reason}") from None
            fields = result.model_dump(mode="json", by_alias=True, exclude_none=True)
            await connection.output_schemas.check(name, fields)
            return fields
        raise AssertionError("the second try returns or raises")

    def _usable(self) -> "_Connection":
        if self._closed:
            raise ToolError("the tool's server is no longer connected")
        if self._connection is None or self._connection.over:
            self._connection = _Connection(self._server, self._connect_timeout)
            self._group.start_soon(self._connection.run, name=f"MCP server {self._server}")
        return self._connection


class _Connection:
    """One client of the SDK, and the task that owns it.

    Attributes:
        tools: The tools by name, known when the client is connected.
        output_schemas: The output schemas of the tools.
    """

    def __init__(self, server: StdioServer | HttpServer, connect_timeout: float) -> None:
        self.tools: dict[str, Fields] = {}
        self.output_schemas = OutputSchemas()
        self._server = server
        self._connect_timeout = connect_timeout
        self._client: Client | None = None
        self._failure: TailraceError | None = None
        self._settled = anyio.Event()
        self._ending = anyio.Event()
        self._closed = False
        self._scope = anyio.CancelScope(shield=True)
        self._transport = (
            _StdioTransport(server, self._ending, self.output_schemas)
            if isinstance(server, StdioServer)
            else _HttpTransport(server, self._ending, self.output_schemas, connect_timeout)
        )

    @property
    def over(self) -> bool:
        """Return whether it was lost or closed; False while it is being opened."""
        return self._ending.is_set()

    async def client(self) -> Client:
        """Return the client as soon as it is connected.

        Raises:
            ConfigurationError: The server's program cannot be started.
            UpstreamError: The server cannot be reached, or does not reply.
        """
        await self._settled.wait()
        if self._client is not None:
            return self._client
        raise self._failure or UpstreamError(
            f"the connection to the MCP server {self._server} was closed",
            fault=UpstreamFault.CONNECTION,
        )

    def close(self) -> None:
        """Close the connection: properly when it is connected, else at once."""
        self._closed = True
        self._ending.set()
        if not self._settled.is_set():
            self._scope.cancel()
            self._settled.set()  # the task may be cancelled before its first step

    async def run(self) -> None:
        """Stay connected until the server is lost or `close` is called. Raises nothing."""
        self._scope.deadline = anyio.current_time() + self._connect_timeout
        error: Exception | None = None
        try:
            with self._scope:
                await self._keep()
        except Exception as caught:
            error = caught
        finally:
            if not self._settled.is_set():
                self._failure = self._redacted(self._why(error))
                self._settled.set()
            elif not self._closed:
                logger.warning("the MCP server %s was lost", self._server, exc_info=error)
            self._ending.set()

    async def _keep(self) -> None:
        # No cancel scope in here may end before the client does: its task group would be left in disorder.
        about = Implementation(name="tailrace", version=version("tailrace"))
        transport: Any = self._transport.streams()
        async with Client(transport, client_info=about, cache=None) as client:
            self.tools = await _list_tools(client)
            self._scope.deadline = math.inf
            if not self._ending.is_set():
                self._client = client
                self._settled.set()
            await self._ending.wait()
            self._scope.deadline = anyio.current_time() + CLOSING_TIME

    def _redacted(self, error: TailraceError) -> TailraceError:
        """Return the error for callers; the details are in its ``diagnosis``."""
        if not isinstance(error, UpstreamError):
            return error
        error.diagnosis = error.message
        return _redactor(self._server).redact(error)

    def _why(self, error: Exception | None) -> TailraceError:
        """Return the reason for a failed connection."""
        if isinstance(error, ExceptionGroup):
            return self._why(cast("ExceptionGroup[Exception]", error).exceptions[0])
        known = self._transport.trouble(error)
        if known is not None:
            return known
        reason, fault = _first_line(error), UpstreamFault.PROVIDER
        if error is None and not self._scope.cancelled_caught:
            reason, fault = "it ended at once", UpstreamFault.CONNECTION
        elif error is None:
            reason, fault = f"no answer within {self._connect_timeout:g} s", UpstreamFault.TIMEOUT
        elif isinstance(error, pydantic.ValidationError | httpx2.InvalidURL):
            fault = UpstreamFault.INVALID
        return UpstreamError(f"the MCP server {self._server}: {reason}", fault=fault)


def _redactor(server: StdioServer | HttpServer) -> Redactor:
    """Create a redactor for the credentials of a server."""
    if isinstance(server, HttpServer):
        return Redactor.of_request(server.url, server.headers)
    return Redactor.of_request("", server.env)


async def _list_tools(client: Client) -> dict[str, Fields]:
    """List all tools, page by page; none of a server without tools."""
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


def _first_line(error: BaseException | None) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _watched(received: Any, sent: Any, ended: anyio.Event, output_schemas: OutputSchemas) -> "_Streams":
    requests = ServerRequests()
    return _Watched(received, ended, output_schemas, requests), RespondingStream(sent, requests)


# --- transports: those of the SDK, with what it does not report ----------------------------------------------------

_Streams: TypeAlias = tuple["_Watched", RespondingStream]


class _Watched:
    """The stream of a server's messages; sets an event when it ends, which the SDK reports to pending calls only.

    Messages are bounded, and output schemas are removed from them. Notifications are left out: none is used.
    """

    def __init__(
        self, stream: Any, ended: anyio.Event, output_schemas: OutputSchemas, requests: ServerRequests
    ) -> None:
        self._stream = stream
        self._ended = ended
        self._output_schemas = output_schemas
        self._requests = requests

    @property
    def last_context(self) -> Any:
        """Part of the SDK's interface."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        while True:
            try:
                message = await self._stream.receive()
            except (anyio.EndOfStream, anyio.ClosedResourceError):
                self._ended.set()
                raise
            if not isinstance(message, SessionMessage) or self._requests.accept(message):
                break
        if isinstance(message, SessionMessage):
            message = bounded_message(message)
            self._output_schemas.take(message)
        return message

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _StdioTransport:
    """The SDK's transport, with the program's standard error in the log."""

    def __init__(self, server: StdioServer, ended: anyio.Event, output_schemas: OutputSchemas) -> None:
        self._server = server
        self._ended = ended
        self._output_schemas = output_schemas
        self._last_output = deque[str](maxlen=1)

    def trouble(self, error: Exception | None) -> TailraceError | None:
        """Return the error of a failed start; None if the program did not cause it."""
        why = ""
        if isinstance(error, OSError | ValueError) and not isinstance(error, pydantic.ValidationError):
            why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        elif self._ended.is_set() and isinstance(error, MCPError):
            why = f"it ended at once; its last words: {' '.join(self._last_output) or 'none'}"
        return ConfigurationError(f"the MCP server {self._server} cannot be started: {why}") if why else None

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[_Streams]:
        """Open the SDK's transport."""
        parameters = mcp.client.stdio.StdioServerParameters(
            command=self._server.command,
            args=list(self._server.arguments),
            env=dict(self._server.env),
            cwd=self._server.cwd,
        )
        async with self._error_log() as log:
            async with mcp.client.stdio.stdio_client(parameters, cast("Any", log)) as (received, sent):
                log.close()  # the program has its own end
                yield _watched(received, sent, self._ended, self._output_schemas)

    @asynccontextmanager
    async def _error_log(self) -> AsyncGenerator[IO[bytes]]:
        """Open a file for the program to write to; each line is logged."""
        if sys.platform == "win32":  # it cannot wait for pipes
            with open(os.devnull, "wb") as nowhere:  # noqa: ASYNC230
                yield nowhere
            return
        readable, writable = os.pipe()
        drained = anyio.Event()
        try:
            with os.fdopen(writable, "wb") as log:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._read_errors, readable, drained)
                    try:
                        yield log
                    finally:
                        log.close()
                        with anyio.move_on_after(_DRAINING_TIME, shield=True):
                            await drained.wait()
                        group.cancel_scope.cancel()
        finally:
            os.close(readable)

    async def _read_errors(self, readable: int, drained: anyio.Event) -> None:
        rest = b""
        while True:
            await anyio.wait_readable(readable)
            read = os.read(readable, MAX_LINE_BYTES)
            *lines, rest = (rest + read).split(b"\n")
            if len(rest) > MAX_LINE_BYTES or not read:
                lines, rest = [*lines, rest], b""
            for line in lines:
                text = line.decode("utf-8", "replace").strip()
                if text:
                    self._last_output.append(text)
                    logger.debug("%s: %s", self._server, text)
            if not read:
                drained.set()
                return


class _HttpTransport:
    """The SDK's transport, over a client that converts failures of a request to JSON-RPC errors."""

    def __init__(
        self, server: HttpServer, ended: anyio.Event, output_schemas: OutputSchemas, connect_timeout: float
    ) -> None:
        self._server = server
        self._client = _HttpClient(server, connect_timeout)
        self._ended = ended
        self._output_schemas = output_schemas

    def trouble(self, error: Exception | None) -> TailraceError | None:
        """Return the last HTTP failure, if an error at the start is caused by it."""
        return self._client.trouble if isinstance(error, MCPError) else None

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[_Streams]:
        """Open the SDK's transport."""
        streams = mcp.client.streamable_http.streamable_http_client(
            self._server.url, http_client=self._client, max_sse_event_size=MAX_EVENT_BYTES
        )
        async with self._client, streams as (received, sent):
            yield _watched(received, sent, self._ended, self._output_schemas)


class _HttpClient(httpx2.AsyncClient):
    """An HTTP client that fails single requests.

    The SDK ends the whole session, with all its calls, when one request finds no connection; and it reports neither status
    nor reason of a refusal. Both become JSON-RPC errors here, which the SDK returns to the single call.

    Attributes:
        session_lost: The server reported that it does not know the session.
        trouble: The latest failure.
    """

    def __init__(self, server: HttpServer, connect_timeout: float) -> None:
        # Reads have no timeout of their own: the agent limits the duration of calls, and the stream of a server's own
        # messages is silent for most of the time.
        headers = {"accept-encoding": "identity", **server.headers}
        super().__init__(
            headers=headers, timeout=httpx2.Timeout(connect_timeout, read=None), follow_redirects=False
        )
        self.session_lost = False
        self.trouble: UpstreamError | None = None
        self._server = server

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; a message that cannot be sent, or is refused, gets a JSON-RPC error."""
        if request.method == "DELETE" and self.session_lost:
            return httpx2.Response(204, request=request)  # there is no session to end
        if request.method == "GET" and not take_resumption():
            # A server's own stream would carry only notifications, and would be opened again as often as it ends.
            return httpx2.Response(405, request=request)
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as error:
            if request.method != "POST":
                raise
            timeout = isinstance(error, httpx2.TimeoutException)
            fault = UpstreamFault.TIMEOUT if timeout else UpstreamFault.CONNECTION
            return self._failed(request, 502, f"no connection: {_first_line(error)}", fault)
        unusable = _unusable(response)
        if unusable:
            await response.aclose()
            if request.method != "POST":
                return httpx2.Response(405, request=request)  # like a server without a stream of its own
            return self._failed(request, 502, unusable, UpstreamFault.INVALID)
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            body = cast("httpx2.AsyncByteStream", response.stream)
            response.stream = BoundedBody(body, MAX_EVENT_BYTES)  # the SDK bounds events only
        if request.method != "POST" or response.status_code < 400:
            return response
        if response.status_code == 404 and _SESSION in request.headers:
            self.session_lost = True
            await response.aclose()
            return self._failed(request, 404, _FORGOTTEN, UpstreamFault.STATUS)
        with suppress(httpx2.StreamError):
            if b'"jsonrpc"' in await response.aread():
                return response
        await response.aclose()
        reason = f"HTTP {response.status_code} {response.reason_phrase}".strip()
        return self._failed(request, response.status_code, reason, UpstreamFault.STATUS)

    def _failed(
        self, request: httpx2.Request, status: int, reason: str, fault: UpstreamFault
    ) -> httpx2.Response:
        self.trouble = UpstreamError(
            f"the MCP server {self._server}: {reason}",
            fault=fault,
            status=status if fault is UpstreamFault.STATUS else None,
        )
        error: Mapping[str, object] = {"code": INTERNAL_ERROR, "message": reason}
        return httpx2.Response(status, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)


def _unusable(response: httpx2.Response) -> str:
    """Return why a response is not read; empty if it is."""
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        return "it has a compressed body, which was not requested"  # it could exceed the memory
    if response.has_redirect_location:
        return (
            f"HTTP {response.status_code}: redirects are not followed; give the address that it redirects to"
        )
    return ""

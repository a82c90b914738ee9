"""The transport to an MCP server at a URL: the transport of the official MCP SDK, with another HTTP client."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import anyio
import httpx2
import mcp.client.streamable_http
from mcp import MCPError
from mcp.types import INTERNAL_ERROR

from tailrace.streaming.tools.mcp_bounds import (
    MAX_MESSAGE_BYTES,
    BoundedBody,
    MessageFilter,
    acquire_resumption,
)
from tailrace.streaming.tools.mcp_servers import HttpServer
from tailrace.streaming.tools.mcp_streams import Streams, limited_streams
from tailrace.wrappers import TailraceError, UpstreamError, UpstreamFault

FORGOTTEN = "the session is not known to the server"
"""The error message of a call if the server does not know its session."""

_SESSION = "mcp-session-id"


class HttpTransport:
    """The transport of the SDK, with an HTTP client that converts failures of single requests to JSON-RPC errors.

    Args:
        server: The server.
        message_filter: The filter for the messages of the server.
        end_event: An `anyio.Event` that is set when the stream of messages ends.
        connect_timeout: Timeout in seconds for opening a connection.
    """

    def __init__(
        self,
        server: HttpServer,
        message_filter: MessageFilter,
        end_event: anyio.Event,
        connect_timeout: float,
    ) -> None:
        self._server = server
        self._client = _HttpClient(server, connect_timeout)
        self._message_filter = message_filter
        self._end_event = end_event

    def failure(self, error: Exception | None) -> TailraceError | None:
        """Return the HTTP failure that caused the error of a failed connection; None if there is no such failure."""
        return self._client.failure if isinstance(error, MCPError) else None

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[Streams]:
        """Open the SDK's transport."""
        streams = mcp.client.streamable_http.streamable_http_client(
            self._server.url, http_client=self._client, max_sse_event_size=MAX_MESSAGE_BYTES
        )
        async with self._client, streams as (received, sent):
            yield limited_streams(received, sent, self._message_filter, self._end_event)


class _HttpClient(httpx2.AsyncClient):
    """An HTTP client in which a failure affects only one request.

    If one request fails to connect, the SDK ends the session with all its calls. If the server rejects a request, the SDK does
    not report the reason. This class converts both cases to JSON-RPC errors, which the SDK returns to the single call.

    Attributes:
        session_lost: True if the server reported that it does not know the session.
        failure: The latest failure; None if there was none.
    """

    def __init__(self, server: HttpServer, connect_timeout: float) -> None:
        # The agent limits the duration of calls.
        headers = {"accept-encoding": "identity", **server.headers}
        super().__init__(
            headers=headers, timeout=httpx2.Timeout(connect_timeout, read=None), follow_redirects=False
        )
        self.session_lost = False
        self.failure: UpstreamError | None = None
        self._server = server

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request. If a message cannot be sent or is rejected, return a JSON-RPC error."""
        if request.method == "DELETE" and self.session_lost:
            return httpx2.Response(204, request=request)  # there is no session to end
        if request.method == "GET" and not acquire_resumption():
            # Do not open a stream for messages of the server, which the SDK would reopen without a limit.
            return httpx2.Response(405, request=request)
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as error:
            if request.method != "POST":
                raise
            timeout = isinstance(error, httpx2.TimeoutException)
            fault = UpstreamFault.TIMEOUT if timeout else UpstreamFault.CONNECTION
            return self._failed(request, 502, f"no connection: {first_line(error)}", fault)
        rejection_reason = _rejection_reason(response)
        if rejection_reason:
            await response.aclose()
            if request.method != "POST":
                # A server without a stream for its own messages returns this status.
                return httpx2.Response(405, request=request)
            return self._failed(request, 502, rejection_reason, UpstreamFault.INVALID)
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            body = cast("httpx2.AsyncByteStream", response.stream)
            response.stream = BoundedBody(body, MAX_MESSAGE_BYTES)  # the SDK limits only events
        if request.method != "POST" or response.status_code < 400:
            return response
        if response.status_code == 404 and _SESSION in request.headers:
            self.session_lost = True
            await response.aclose()
            return self._failed(request, 404, FORGOTTEN, UpstreamFault.STATUS)
        with suppress(httpx2.StreamError):
            if b'"jsonrpc"' in await response.aread():
                return response
        await response.aclose()
        reason = f"HTTP {response.status_code} {response.reason_phrase}".strip()
        return self._failed(request, response.status_code, reason, UpstreamFault.STATUS)

    def _failed(
        self, request: httpx2.Request, status: int, reason: str, fault: UpstreamFault
    ) -> httpx2.Response:
        self.failure = UpstreamError(
            f"the MCP server {self._server}: {reason}",
            fault=fault,
            status=status if fault is UpstreamFault.STATUS else None,
        )
        error: Mapping[str, object] = {"code": INTERNAL_ERROR, "message": reason}
        return httpx2.Response(status, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)


def _rejection_reason(response: httpx2.Response) -> str:
    """Return the reason why a response is rejected; empty if it is accepted."""
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        return "it has a compressed body, which was not requested"  # the decompressed body could exceed the memory
    if response.has_redirect_location:
        return (
            f"HTTP {response.status_code}: redirects are not followed; give the address that it redirects to"
        )
    return ""


def first_line(error: BaseException | None) -> str:
    """Return the first line of an error's text; the name of its class if the text is empty."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__

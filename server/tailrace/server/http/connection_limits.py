"""Limits of ``tailrace serve`` for connections: their number, and the time and size of request headers.

If a client connects when the maximum number of connections is open, the server closes the connection that has been idle (without
a running request) longest. If all connections have a running request, the server accepts `RESERVED` additional connections for
health probes. It rejects other requests on these connections with 503.

A client may send requests before it has received the responses to earlier requests (HTTP pipelining). Because these requests wait
in memory, the server closes a connection with more than `MAX_QUEUED_REQUESTS` waiting requests.

The size of headers, of chunk extensions and of trailers is limited. Trailers are discarded.

Without a free file descriptor (``ulimit -n``), a server cannot open its database or call a model. The default maximum of
connections therefore leaves a quarter of the descriptors free.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, cast

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tailrace.server.http.error_responses import Problem
from tailrace.server.http.operator_endpoints import PATHS as OPERATOR_PATHS
from tailrace.server.http.sliced_data import SlicedData
from tailrace.server.runtime.limits import OverloadedError

try:
    import resource
except ImportError:  # Windows
    resource = None

RESERVED = 16
"""Number of additional connections for health probes."""

MAX_HEADER_BYTES = 256 * 1024
"""Maximum bytes of a request header, of a chunk extension, and of trailers."""

MAX_QUEUED_REQUESTS = 32
"""Maximum number of waiting requests of one connection."""

logger = logging.getLogger("tailrace.server")

_TIMEOUT_RESPONSE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"

_CONNECTION: ContextVar["_Connection | None"] = ContextVar("tailrace_connection", default=None)


def default_max_connections() -> int:
    """Return three quarters of the limit of file descriptors, minus `RESERVED`; 0 if there is no limit."""
    if resource is None:
        return 0
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 0 if files == resource.RLIM_INFINITY else max(1, files * 3 // 4 - RESERVED)


class _Connection:
    """The state of one connection.

    Attributes:
        transport: The transport; None after the connection is closed.
        requests: The number of running requests.
        queued: The number of requests whose header is complete, but that have not begun.
        in_body: True if the header of the last request is complete, but its body is not.
        pending_bytes: The number of bytes since the last complete header, part of a body, or request.
        since: The time (`time.monotonic`) at which the connection began to wait for a request or for the rest of a header.
    """

    __slots__ = ("in_body", "pending_bytes", "queued", "requests", "since", "transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport: asyncio.Transport | None = transport
        self.requests = 0
        self.queued = 0
        self.in_body = False
        self.pending_bytes = 0
        self.since = 0.0


class TooManyQueuedError(Exception):
    """A connection sent too many requests without waiting for responses."""


class ConnectionLimits:
    """Counts and closes the connections of one server.

    Args:
        max_connections: The maximum number of open connections; 0 for no limit.
        header_timeout: Seconds for which a connection may be open without a running request. The first byte of a header restarts
            the timeout.
    """

    def __init__(self, max_connections: int, header_timeout: float) -> None:
        self._max = max_connections
        self._timeout = header_timeout
        self._open = 0
        # Connections without a running request, the one that has been idle longest first.
        self._waiting: dict[_Connection, None] = {}

    def protocol(self) -> type[asyncio.Protocol]:
        """Return a subclass of uvicorn's protocol class for ``uvicorn.Config(http=…)`` (``docs/decisions/0024-…``)."""
        limits = self

        class LimitedProtocol(HttpToolsProtocol):
            _connection: _Connection
            _data: SlicedData

            def connection_made(self, transport: Any) -> None:
                self._connection = _Connection(transport)
                self._data = SlicedData(transport, self._parse)
                super().connection_made(transport)
                self.flow = FlowControl(cast("asyncio.Transport", self._data))
                limits.add(self._connection)

            def data_received(self, data: bytes) -> None:
                self._data.feed(data)

            def _parse(self, data: bytes) -> None:
                limits.received(self._connection, len(data))
                # In this call, uvicorn creates the asyncio tasks of requests, which inherit the context variable.
                token = _CONNECTION.set(self._connection)
                try:
                    super().data_received(data)
                finally:
                    _CONNECTION.reset(token)
                limits.check_pending(self._connection)

            def on_header(self, name: bytes, value: bytes) -> None:
                """Handle a header, or a trailer of a chunked body."""
                if not self._connection.in_body:
                    super().on_header(name, value)

            def on_headers_complete(self) -> None:
                """Handle the end of the headers. An exception ends the parsing."""
                limits.queue_request(self._connection)
                self._connection.in_body = True
                self._connection.pending_bytes = 0
                super().on_headers_complete()

            def on_body(self, body: bytes) -> None:
                """Handle a part of a body."""
                self._connection.pending_bytes = 0
                super().on_body(body)

            def on_message_complete(self) -> None:
                """Handle the end of a request."""
                self._connection.in_body = False
                self._connection.pending_bytes = 0
                super().on_message_complete()

            def connection_lost(self, exc: Exception | None) -> None:
                limits.closed(self._connection)
                self._data.close()
                super().connection_lost(exc)

        return LimitedProtocol

    def add(self, connection: _Connection) -> None:
        """Count a new connection. If there are too many connections, close the one that has been idle longest."""
        self._open += 1
        self._wait(connection)
        if not self._max or self._open <= self._max:
            return
        oldest = next(iter(self._waiting))
        if oldest is not connection or self._open > self._max + RESERVED:
            self._abort(oldest)

    def received(self, connection: _Connection, size: int) -> None:
        """Count received bytes before they are parsed.

        The rest of the body of a rejected request does not restart the timeout. The connection remains open meanwhile, because
        most clients read the response only after they have sent the body.
        """
        if connection.transport is None:
            return
        if not (connection.requests or connection.in_body or connection.pending_bytes):
            self._wait(connection)
        connection.pending_bytes += size

    def check_pending(self, connection: _Connection) -> None:
        """Close the connection if its header, a chunk extension or the trailers of a body are too large."""
        if connection.pending_bytes > MAX_HEADER_BYTES:
            self._abort(connection)

    def queue_request(self, connection: _Connection) -> None:
        """Count a request whose header is complete, but that has not begun.

        Raises:
            TooManyQueuedError: More than `MAX_QUEUED_REQUESTS` requests wait. The connection is closed.
        """
        connection.queued += 1
        if connection.queued <= MAX_QUEUED_REQUESTS:
            return
        if connection.transport is not None:
            logger.warning(
                "closed a connection that sent %d requests without waiting for responses", connection.queued
            )
            self._abort(connection)
        raise TooManyQueuedError

    def closed(self, connection: _Connection) -> None:
        """Stop counting a connection. Further calls do nothing."""
        if connection.transport is not None:
            self._open -= 1
            self._waiting.pop(connection, None)
            connection.transport = None

    def begin_request(self, scope: Scope) -> Callable[[Scope, Receive, Send], Awaitable[None]] | None:
        """Count a request that begins. It ends when the current asyncio task ends.

        Returns:
            An application that rejects the request; None if the request is accepted.
        """
        connection = _CONNECTION.get()
        task = asyncio.current_task()
        if connection is None or connection.transport is None or task is None:
            return None
        connection.queued -= 1
        connection.requests += 1
        self._waiting.pop(connection, None)
        task.add_done_callback(lambda _: self._end_request(connection))
        if self._max and self._open > self._max and scope["path"] not in OPERATOR_PATHS:
            return self._refuse
        return None

    def close_expired(self) -> None:
        """Close connections whose timeout has expired. Must be called several times per second."""
        latest = time.monotonic() - self._timeout
        for connection in list(self._waiting):
            if connection.since <= latest:
                self._expire(connection)

    def _end_request(self, connection: _Connection) -> None:
        connection.requests -= 1
        if not connection.requests and connection.transport is not None:
            self._wait(connection)

    def _wait(self, connection: _Connection) -> None:
        connection.since = time.monotonic()
        self._waiting.pop(connection, None)
        self._waiting[connection] = None

    def _expire(self, connection: _Connection) -> None:
        transport = connection.transport
        is_incomplete = connection.pending_bytes and not connection.in_body
        if transport is not None and not transport.is_closing() and is_incomplete:
            transport.write(_TIMEOUT_RESPONSE)
            transport.close()
            self._waiting.pop(connection)
            return
        self._abort(connection)

    def _abort(self, connection: _Connection) -> None:
        transport = connection.transport
        # The transport reports its end only later.
        self.closed(connection)
        if transport is not None:
            transport.abort()

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = OverloadedError(
            f"the server has {self._open} connections; the maximum is {self._max}; try again later",
            limit="max_connections",
            allowed=self._max,
        )
        response = Problem.of(error).response()
        response.headers["Connection"] = "close"
        await response(scope, receive, send)

"""Limits for the connections of ``tailrace serve``: their number, and the time and size of request headers.

An idle connection needs a file descriptor of the server. When the maximum number of connections is reached, the server closes an
idle connection for each new connection: the oldest one without a running request. Idle connections therefore never block new
clients. If all connections have a running request, the server accepts `RESERVED` more connections for health probes, and rejects
other requests on them with 503.

A client may send requests before it has received the responses to earlier requests (HTTP pipelining). These requests wait in memory,
so the server closes a connection that sends more than `MAX_QUEUED_REQUESTS`.

The size of headers, of chunk extensions and of the trailers of a chunked body is limited. Trailers are discarded and never become
headers of a request.

The operating system limits the number of file descriptors (``ulimit -n``). Without a free descriptor, a server cannot accept
connections, open its database, or call a model. The default maximum therefore leaves a quarter of the descriptors free.
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
"""Maximum bytes of a request header, or of the data between two parts of a chunked body."""

MAX_QUEUED_REQUESTS = 32
"""Maximum number of requests of one connection that wait to be processed."""

logger = logging.getLogger("tailrace.server")

_TIMEOUT_RESPONSE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"

_CONNECTION: ContextVar["_Connection | None"] = ContextVar("tailrace_connection", default=None)


def default_max_connections() -> int:
    """Return three quarters of the process's file descriptor limit, minus `RESERVED`; 0 (no limit) if there is no limit."""
    if resource is None:
        return 0
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 0 if files == resource.RLIM_INFINITY else max(1, files * 3 // 4 - RESERVED)


class _Connection:
    """The state of one connection. The contexts of requests reference this object, so it is small.

    Attributes:
        transport: The transport; None after the connection is closed.
        requests: The number of running requests.
        queued: The number of requests with a complete header that have not begun.
        in_body: True if the header of the last request is complete but its body is not.
        pending_bytes: The number of bytes since the last complete header, part of a body, or request.
        since: The time at which the connection began to wait for a request or the rest of a header, in seconds of
            `time.monotonic`.
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
        header_timeout: Seconds that a connection may be open without a running request. The timeout restarts when the last
            request of the connection ends, and with the first byte of the next header.
    """

    def __init__(self, max_connections: int, header_timeout: float) -> None:
        self._max = max_connections
        self._timeout = header_timeout
        self._open = 0
        # Connections without a running request, the oldest first.
        self._waiting: dict[_Connection, None] = {}

    def protocol(self) -> type[asyncio.Protocol]:
        """Return a protocol class for ``uvicorn.Config(http=…)``: a subclass of uvicorn's protocol (decision 24)."""
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
                # uvicorn creates the asyncio tasks of requests in this call, and the tasks inherit the context variable.
                token = _CONNECTION.set(self._connection)
                try:
                    super().data_received(data)
                finally:
                    _CONNECTION.reset(token)
                limits.check_pending(self._connection)

            def on_header(self, name: bytes, value: bytes) -> None:
                """Called by httptools for each header, and for each trailer of a chunked body."""
                if not self._connection.in_body:
                    super().on_header(name, value)

            def on_headers_complete(self) -> None:
                """Called by httptools after the last header. An exception ends the parsing."""
                limits.queue_request(self._connection)
                self._connection.in_body = True
                self._connection.pending_bytes = 0
                super().on_headers_complete()

            def on_body(self, body: bytes) -> None:
                """Called by httptools for each part of a body."""
                self._connection.pending_bytes = 0
                super().on_body(body)

            def on_message_complete(self) -> None:
                """Called by httptools at the end of a request."""
                self._connection.in_body = False
                self._connection.pending_bytes = 0
                super().on_message_complete()

            def connection_lost(self, exc: Exception | None) -> None:
                limits.closed(self._connection)
                self._data.close()
                super().connection_lost(exc)

        return LimitedProtocol

    def add(self, connection: _Connection) -> None:
        """Count a new connection. If there are too many connections, close the oldest one without a running request."""
        self._open += 1
        self._wait(connection)
        if not self._max or self._open <= self._max:
            return
        oldest = next(iter(self._waiting))
        if oldest is not connection or self._open > self._max + RESERVED:
            self._abort(oldest)

    def received(self, connection: _Connection, size: int) -> None:
        """Count received bytes before they are parsed, and start the timeout of a header with its first byte.

        The rest of the body of a rejected request does not start the timeout of a header. Most clients read the response only
        after they have sent the complete body, so the connection remains open until the running timeout expires.
        """
        if connection.transport is None:
            return
        if not (connection.requests or connection.in_body or connection.pending_bytes):
            self._wait(connection)
        connection.pending_bytes += size

    def check_pending(self, connection: _Connection) -> None:
        """Close a connection whose header is too large."""
        if connection.pending_bytes > MAX_HEADER_BYTES:
            self._abort(connection)

    def queue_request(self, connection: _Connection) -> None:
        """Count a request whose header is complete and that has not begun.

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
        """Count a request that begins. The request ends together with the current asyncio task.

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
        """Close connections whose timeout has passed. Call this method several times per second."""
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
        self.closed(
            connection
        )  # not only when the transport reports it, because a new connection may need this slot before
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

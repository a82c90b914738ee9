"""Bounds on the connections of ``tailrace serve``: their number, and how long the header of a request may take.

A connection without a request under way costs a client nothing and the server a file. Where the number of connections
reaches its bound, the oldest of those is closed for each new one, so that connections which only begin a request, or
none, never keep others out. Where all have a request under way, a few more are accepted for health probes alone; other
requests on these are refused with 503.

A client may send requests before it has the responses to earlier ones (HTTP pipelining). They are parsed as they arrive
and wait in memory, so their number is bounded: a connection with more of them is closed.

Everything between bodies is bounded in bytes, whether or not a request runs meanwhile: headers, the trailers of a chunked
body, the extensions of a chunk. Trailers are discarded; they never become headers of a request.

The number of files is bounded by the operating system (``ulimit -n``). A server that reaches that bound can accept no
connection, open no database and call no model, which is why the default bound leaves a quarter of them.
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

from tailrace.server.http.endpoints import PATHS as OPERATOR_PATHS
from tailrace.server.http.problems import Problem
from tailrace.server.http.sliced_data import SlicedData
from tailrace.server.runtime.limits import OverloadedError

try:
    import resource
except ImportError:  # Windows
    resource = None

RESERVED = 16
"""Connections beyond the bound, for health probes."""

MAX_HEADER_BYTES = 256 * 1024
"""Bytes that a connection may send before a header is complete, a body continues, or a request ends."""

MAX_QUEUED_REQUESTS = 32
"""Requests of one connection that were received and have not begun."""

logger = logging.getLogger("tailrace.server")

_TIMEOUT_RESPONSE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"

_CONNECTION: ContextVar["_Connection | None"] = ContextVar("tailrace_connection", default=None)


def default_max_connections() -> int:
    """Three quarters of the files that this process may open, less `RESERVED`; 0 (no bound) where there is no limit."""
    if resource is None:
        return 0
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 0 if files == resource.RLIM_INFINITY else max(1, files * 3 // 4 - RESERVED)


class _Connection:
    """The state of one connection; referenced by the context of its requests, so kept small.

    Attributes:
        transport: None after its end.
        requests: Requests that run.
        queued: Requests whose header is complete and that have not begun.
        in_body: The header of the last request is complete, and its body is not.
        pending_bytes: Bytes since the end of a header, a part of a body, or the end of a request, whichever was last.
        since: When it began to wait for a request, or for the rest of one: in seconds of `time.monotonic`.
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
        max_connections: How many may be open; 0 for any number.
        header_timeout: Seconds that a connection may be without a request under way: from its beginning, from the end
            of its last request, and from the first byte of the next.
    """

    def __init__(self, max_connections: int, header_timeout: float) -> None:
        self._max = max_connections
        self._timeout = header_timeout
        self._open = 0
        # Those without a request under way, the oldest first.
        self._waiting: dict[_Connection, None] = {}

    def protocol(self) -> type[asyncio.Protocol]:
        """The class of protocols for ``uvicorn.Config(http=…)``: uvicorn's own, whose connections are counted here."""
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
                # The tasks of its requests are made in here, and inherit it.
                token = _CONNECTION.set(self._connection)
                try:
                    super().data_received(data)
                finally:
                    _CONNECTION.reset(token)
                limits.check_pending(self._connection)

            def on_header(self, name: bytes, value: bytes) -> None:
                """Called by httptools, for a trailer of a chunked body as for a header."""
                if not self._connection.in_body:
                    super().on_header(name, value)

            def on_headers_complete(self) -> None:
                """Called by httptools; an exception ends the parsing."""
                limits.queue_request(self._connection)
                self._connection.in_body = True
                self._connection.pending_bytes = 0
                super().on_headers_complete()

            def on_body(self, body: bytes) -> None:
                """Called by httptools for each part of a body, or of a chunk."""
                self._connection.pending_bytes = 0
                super().on_body(body)

            def on_message_complete(self) -> None:
                """Called by httptools."""
                self._connection.in_body = False
                self._connection.pending_bytes = 0
                super().on_message_complete()

            def connection_lost(self, exc: Exception | None) -> None:
                limits.closed(self._connection)
                self._data.close()
                super().connection_lost(exc)

        return LimitedProtocol

    def add(self, connection: _Connection) -> None:
        """Count a new connection; close the oldest that waits, where there are too many."""
        self._open += 1
        self._wait(connection)
        if not self._max or self._open <= self._max:
            return
        oldest = next(iter(self._waiting))
        if oldest is not connection or self._open > self._max + RESERVED:
            self._abort(oldest)

    def received(self, connection: _Connection, size: int) -> None:
        """Count bytes before they are parsed, and begin the time of a header with its first byte.

        The rest of a body whose request was refused is no header: most clients read the response only after they sent
        all of it, so the connection stays open for it until the timeout.
        """
        if connection.transport is None:
            return
        if not (connection.requests or connection.in_body or connection.pending_bytes):
            self._wait(connection)
        connection.pending_bytes += size

    def check_pending(self, connection: _Connection) -> None:
        """Close a connection whose header is too large: each further piece of it would be added to all that came before."""
        if connection.pending_bytes > MAX_HEADER_BYTES:
            self._abort(connection)

    def queue_request(self, connection: _Connection) -> None:
        """Count a request whose header is complete and that has not begun.

        Raises:
            TooManyQueuedError: There are more than `MAX_QUEUED_REQUESTS`; the connection is closed.
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
        """Forget a connection; once is enough, more does nothing."""
        if connection.transport is not None:
            self._open -= 1
            self._waiting.pop(connection, None)
            connection.transport = None

    def begin_request(self, scope: Scope) -> Callable[[Scope, Receive, Send], Awaitable[None]] | None:
        """Note that the header of a request is complete; its end is that of the current task.

        Returns:
            The application that refuses the request; None to serve it.
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
        """Close connections that waited too long; to be called several times a second."""
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
        begun = connection.pending_bytes and not connection.in_body
        if transport is not None and not transport.is_closing() and begun:
            transport.write(_TIMEOUT_RESPONSE)
            transport.close()
            self._waiting.pop(connection)
            return
        self._abort(connection)

    def _abort(self, connection: _Connection) -> None:
        transport = connection.transport
        self.closed(connection)  # now: the transport reports it later, and its place may be taken before
        if transport is not None:
            transport.abort()

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = OverloadedError(
            f"the server has {self._open} connections, and at most {self._max} are served; try again later",
            limit="max_connections",
            allowed=self._max,
        )
        response = Problem.of(error).response()
        response.headers["Connection"] = "close"
        await response(scope, receive, send)

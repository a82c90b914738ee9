"""One HTTP/1.1 connection to a server, which handles one request at a time. `HttpClient` pools connections."""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from tailrace.wrappers.http.errors import NoResponseError, TransportError
from tailrace.wrappers.http.response import Headers, HttpRequest, HttpResponse, ResponseBody

MAX_HEAD_BYTES = 64 * 1024
"""Maximum number of bytes before the body, or between two pieces of the body: headers, interim responses, trailers and chunk
extensions."""

SENT_AT_ONCE = 1024 * 1024
"""Maximum number of bytes of a request that are sent in one event-loop tick. With TLS, 1 MiB takes 2 ms."""

_NOTHING = memoryview(b"")


class Connection(asyncio.Protocol):
    """One connection.

    Args:
        on_idle: Called at the end of a response if the connection can be used for another request. Otherwise, the connection is
            closed.

    Attributes:
        idle_timer: Timer of the pool, which closes an idle connection.
    """

    def __init__(self, on_idle: Callable[["Connection"], None]) -> None:
        self.idle_timer: asyncio.TimerHandle | None = None
        self._on_idle = on_idle
        self._transport: asyncio.Transport | None = None
        # From here to `_has_excess`: the state of the current request.
        self._response: HttpResponse | None = None
        self._body: ResponseBody | None = None
        self._parser: HttpResponseParser | None = None
        self._fields: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0  # received since the last piece of a body
        self._ends_with_connection = False
        self._is_complete = False
        self._keeps_alive = False
        self._has_excess = False
        self._unsent = _NOTHING  # the part of the request's body that has not been sent
        self._is_full = False  # True if the send buffer of the transport is full
        self._is_scheduled = False  # True if `_send_more` is scheduled for the next event-loop tick

    @property
    def is_open(self) -> bool:
        """True if the connection is open and can send a request."""
        return self._transport is not None and not self._transport.is_closing()

    async def send(
        self, request: HttpRequest, head: bytes, payload: bytes, read_timeout: float | None
    ) -> HttpResponse:
        """Send a request. Return the response after its headers have arrived, possibly before the request was sent completely.

        Args:
            request: The request.
            head: The request line and the headers as bytes.
            payload: The body of the request.
            read_timeout: Maximum number of seconds without data, before and within the response; None for no limit.

        Raises:
            OSError: The connection broke, the server violated the protocol, or the read timeout expired.
        """
        transport = self._transport
        assert transport is not None  # noqa: S101 — set before the first request
        body = self._body = ResponseBody(request, transport, read_timeout)
        response = self._response = HttpResponse(body)
        self._head_bytes = 0
        self._fields.clear()
        self._ends_with_connection = self._is_complete = self._keeps_alive = self._has_excess = False
        self.on_body = body.feed
        self._parser = HttpResponseParser(self)
        # Other clients accept these violations, too: a single LF, spaces after the size of a chunk, and folded headers.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        transport.write(head + payload[:SENT_AT_ONCE])
        self._unsent = memoryview(payload)[SENT_AT_ONCE:]
        self._send_soon()
        try:
            while not response.status:
                body.read_nowait()  # raises an error if the connection has ended
                await body.arrival()
            encoding = response.headers.get("content-encoding", "").strip().lower()
            if encoding not in ("", "identity"):
                body.decode(encoding)
        except BaseException:
            body.close()
            raise
        return response

    async def start_tls(
        self, context: ssl.SSLContext, host: str, on_idle: Callable[["Connection"], None]
    ) -> "Connection":
        """Start TLS with a server, through a tunnel of a proxy. Return the connection to the server.

        Args:
            context: TLS settings.
            host: The host name of the server.
            on_idle: See `Connection`.

        Raises:
            OSError: The handshake failed.
        """
        assert self._transport is not None  # noqa: S101 — see `send`
        self._response = self._body = self._parser = None
        connection = Connection(on_idle)
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(self._transport, connection, context, server_hostname=host)
        if transport is None:
            raise TransportError("the proxy closed the connection during the TLS handshake")
        connection.connection_made(transport)
        return connection

    def close(self, error: OSError | None = None) -> None:
        """Close the connection. An incomplete response ends with ``error``, or by default with a `TransportError`."""
        if self.idle_timer is not None:
            self.idle_timer.cancel()
        if self._body is not None:
            self._end(error or TransportError("the connection was closed"))
        elif self._transport is not None:
            self._transport.abort()

    # --- callbacks of the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        body, parser = self._body, self._parser
        if body is None or parser is None:
            self.close()  # no response is expected
            return
        received = body.received
        try:
            parser.feed_data(data)
        except HttpParserUpgrade:
            self._end(TransportError("the server switched to another protocol"))
            return
        except HttpParserError as error:
            if not self._is_complete:
                self._end(TransportError(f"the server's response is not HTTP: {error}"))
                return
            self._has_excess = True
        if self._has_excess:
            self._end(TransportError("the server sent bytes after the end of the response"))
        elif self._is_complete:
            self._end(None)
        elif body.received != received:
            self._head_bytes = 0
        else:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._end(TransportError(f"the response has more than {MAX_HEAD_BYTES} bytes of headers"))

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._is_full = True

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._is_full = False
        self._send_soon()

    def eof_received(self) -> None:
        """Return None, so that the transport closes itself. See `asyncio.Protocol`."""
        self._fail_requests(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._fail_requests(exc)

    # --- callbacks of the HTTP parser (body data is passed to the body directly) ---

    def on_message_begin(self) -> None:
        """Handle the start of a response."""
        self._has_excess = self._is_complete

    def on_status(self, status: bytes) -> None:
        """Store the reason phrase."""
        if self._response is not None and not self._is_complete:
            self._response.reason = status.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header field, or a trailer field, which is never used."""
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """Handle the end of the headers."""
        response, parser, body = self._response, self._parser, self._body
        if response is None or parser is None or body is None or self._is_complete:
            return
        status = parser.get_status_code()
        if status >= 200:  # a lower status is an interim response
            response.headers = headers = Headers(self._fields)
            response.status = status
            encodings = headers.get("transfer-encoding", "").lower()
            self._ends_with_connection = "content-length" not in headers and "chunked" not in encodings
            body.wake()
        else:
            self._fields.clear()

    def on_message_complete(self) -> None:
        """Handle the end of a response."""
        if self._response is not None and self._response.status and self._parser is not None:
            self._is_complete = True
            # A response to CONNECT has no body, even if its headers announce one.
            is_tunnel = self._response.body.request.method == "CONNECT"
            self._keeps_alive = is_tunnel or self._parser.should_keep_alive()

    def _send_soon(self) -> None:
        """Send the next part of the request's body in the next event-loop tick."""
        if self._unsent and not self._is_full and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_more)

    def _send_more(self) -> None:
        self._is_scheduled = False
        transport, body = self._transport, self._body
        if transport is None or body is None or self._is_full or transport.is_closing():
            return
        transport.write(self._unsent[:SENT_AT_ONCE])
        self._unsent = self._unsent[SENT_AT_ONCE:]
        body.restart_timeout()
        self._send_soon()

    def _fail_requests(self, cause: Exception | None) -> None:
        """End the current request, with an error if the response is incomplete."""
        response = self._response
        if response is None:
            return
        reason = f": {cause}" if cause is not None else ""
        if response.status:
            is_end = self._ends_with_connection and cause is None
            error = TransportError(f"the server closed the connection in the middle of the response{reason}")
            self._end(None if is_end else error)
        elif self._head_bytes:
            self._end(
                TransportError(f"the server closed the connection in the middle of the headers{reason}")
            )
        else:
            self._end(NoResponseError(f"the server closed the connection without a response{reason}"))

    def _end(self, error: OSError | None) -> None:
        body, transport = self._body, self._transport
        self._response = self._body = self._parser = None
        self.on_body = _ignore
        if body is None or transport is None:
            return
        is_reusable = error is None and self._keeps_alive and not transport.is_closing()
        is_reusable = is_reusable and not self._unsent and not transport.get_write_buffer_size()
        self._unsent = _NOTHING
        body.finish(error)
        if is_reusable:
            self._on_idle(self)
        else:
            transport.abort()


def _ignore(_data: bytes) -> None:
    """Discard body data."""

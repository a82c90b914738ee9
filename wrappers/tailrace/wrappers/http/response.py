"""Responses of the HTTP client, their streamed bodies, and an iterator over the decoded chunks of a body.

`Connection` adds received data to a `ResponseBody`. `HTTPModel.stream` yields a `ChunkStream`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.tool_names import ToolNames
from tailrace.wrappers.decoding.decoder import ResponseDecoder
from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.http.content_decoder import ContentDecoder
from tailrace.wrappers.http.errors import ReadTimeout, TransportError
from tailrace.wrappers.http.read_budget import SMALL_BYTES, read_budget

HIGH_WATER = 128 * 1024
"""Number of buffered bytes of a body above which reading from its connection is paused."""


class Headers(Mapping[str, str]):
    """Header fields of a response. Names are case-insensitive. If a field is repeated, its first value is used.

    Args:
        fields: The received fields, as pairs of name and value.

    Attributes:
        fields: The received fields in order, including repeated fields.
    """

    __slots__ = ("_values", "fields")

    def __init__(self, fields: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.fields = tuple(fields)
        self._values: dict[str, str] = {}
        for name, value in self.fields:
            self._values.setdefault(name.decode("latin-1").lower(), value.decode("utf-8", "replace").strip())

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request to send.

    Attributes:
        headers: All header fields, by lower-case name.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)  # contains credentials


class ResponseBody:
    """The body of one response. It has one reader, which must call `close` at the end.

    ::

        while True:
            await body.arrival()
            data = body.read_nowait()

    The read timeout has one timer for each response, not for each read. The time in which the reader processes data does not
    count.

    Args:
        request: The request that was sent.
        transport: The transport of the connection.
        read_timeout: Maximum number of seconds for which the reader waits for data; None for no limit.

    Attributes:
        request: The request that was sent.
        received: Number of bytes received so far, before decompression.
    """

    __slots__ = (
        "_budget",
        "_buffer",
        "_decoder",
        "_error",
        "_is_complete",
        "_is_paused",
        "_loop",
        "_read_timeout",
        "_size",
        "_timer",
        "_transport",
        "_unsent",
        "_waiter",
        "_waiting_since",
        "received",
        "request",
    )

    def __init__(
        self, request: HttpRequest, transport: asyncio.Transport, read_timeout: float | None
    ) -> None:
        self.request = request
        self.received = 0
        self._transport: asyncio.Transport | None = transport  # None after the end of the body
        self._loop = asyncio.get_running_loop()
        self._budget = read_budget(self._loop)
        self._buffer: list[bytes] = []
        self._size = 0
        self._decoder: ContentDecoder | None = None
        self._error: OSError | None = None
        self._is_complete = False
        self._is_paused = False
        self._unsent = 0
        self._waiter: asyncio.Future[None] | None = None
        self._waiting_since = 0.0
        self._read_timeout = read_timeout
        self._timer: asyncio.TimerHandle | None = None
        if read_timeout is not None:
            self._timer = self._loop.call_later(read_timeout, self._check_silence)

    # --- the reader's side ---

    def read_nowait(self) -> bytes | None:
        """Return received data. The read budget of the event-loop tick limits its size.

        Returns:
            The data; None if no data can be read now; ``b""`` at the end of the body.

        Raises:
            OSError: The connection was lost, the read timeout expired, or the compressed data is invalid. Raised after all valid
                data has been returned.
        """
        if self._decoder is not None:
            return self._read_decoded(self._decoder)
        size, buffer = self._size, self._buffer
        if not size:
            return self._end() if self._is_complete else None
        if size <= SMALL_BYTES:
            if len(buffer) == 1:  # the most common case
                self._size = 0
                return buffer.pop()
        elif not (size := self._budget.share(size)):
            return None
        data = b"".join(buffer)
        buffer.clear()
        self._size -= size
        if self._size:
            buffer.append(data[size:])
            data = data[:size]
        if self._is_paused and self._size <= HIGH_WATER:
            self._resume()
        return data

    def arrival(self) -> asyncio.Future[None]:
        """Return a future that completes when `read_nowait` may return data. The reader may cancel the future."""
        self._waiting_since = self._loop.time()
        waiter = self._waiter = self._loop.create_future()
        if self._size or self._is_complete or (self._decoder is not None and self._decoder.has_more):
            if self._budget.is_spent:
                self._loop.call_soon(self.wake)  # in the next tick, which has a new budget
            else:
                self.wake()
        return waiter

    async def read(self) -> bytes:
        """Return the rest of the body.

        Raises:
            OSError: See `read_nowait`.
        """
        return b"".join([chunk async for chunk in self])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while (data := self.read_nowait()) is None:
            await self.arrival()
        if not data:
            raise StopAsyncIteration
        return data

    def close(self) -> None:
        """Discard unread data. If the body is not complete, close the connection."""
        closed = TransportError("the response was closed")
        self.abort(closed)
        self._error = closed  # replaces an error whose traceback refers to this object
        self._buffer.clear()
        self._size = 0

    # --- the connection's side ---

    def feed(self, data: bytes) -> None:
        """Add body data."""
        self._buffer.append(data)
        self._size += len(data)
        self.received += len(data)
        waiter = self._waiter
        if waiter is not None:  # `wake`, inlined because this line runs for each token
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
        if self._size > HIGH_WATER and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def restart_timeout(self) -> None:
        """Restart the read timeout, because more of the request has been sent."""
        self._waiting_since = self._loop.time()

    def wake(self) -> None:
        """Wake the reader."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def decode(self, encoding: str) -> None:
        """Decompress the body. Call this method before the first read.

        Raises:
            TransportError: The content encoding is not supported.
        """
        self._decoder = ContentDecoder(encoding)

    def finish(self, error: OSError | None = None) -> None:
        """End the body, with or without an error. Later calls have no effect."""
        if self._is_complete:
            return
        self._is_complete = True
        self._error = error
        if error is None:
            self._resume()
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self.wake()

    def abort(self, error: OSError) -> None:
        """If the body is not complete, end it with an error and close the connection."""
        transport = self._transport
        self.finish(error)
        if transport is not None:
            transport.abort()

    def _resume(self) -> None:
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def _read_decoded(self, decoder: ContentDecoder) -> bytes | None:
        while True:
            if decoder.has_more:
                if not self._budget.share(SMALL_BYTES):
                    return None
            elif self._size:
                chunks, self._buffer = self._buffer, []
                self._size = 0
                self._resume()
                decoder.feed(chunks)
            elif not self._is_complete:
                return None
            else:
                if self._error is None:
                    decoder.close()
                return self._end()
            data = decoder.read(SMALL_BYTES)
            if data:
                return data

    def _end(self) -> bytes:
        if self._error is not None:
            raise self._error
        return b""

    def _check_silence(self) -> None:
        transport, timeout = self._transport, self._read_timeout
        if transport is None or timeout is None:
            return
        now = self._loop.time()
        unsent = transport.get_write_buffer_size()
        if unsent != self._unsent:  # the request is still being sent
            self._unsent = unsent
            self._waiting_since = now
        waits = self._waiter is not None and not self._waiter.done()
        remaining = timeout - (now - self._waiting_since if waits else 0.0)
        if remaining > 0:
            self._timer = self._loop.call_later(remaining, self._check_silence)
        else:
            self.abort(ReadTimeout(f"the server sent nothing for {timeout:g} seconds"))


class HttpResponse:
    """A response whose headers have arrived. Its body may still be arriving.

    Attributes:
        reason: The reason phrase; empty if the server sent no phrase.
    """

    __slots__ = ("body", "headers", "reason", "status")

    def __init__(self, body: ResponseBody) -> None:
        self.status = 0
        self.reason = ""
        self.headers = Headers()
        self.body = body

    def close(self) -> None:
        """Close the body."""
        self.body.close()


class SentRequest(Protocol):
    """A request that has been sent."""

    @property
    def url(self) -> object:
        """The URL. ``str`` converts it to text."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers."""
        ...


class Body(Protocol):
    """The body of a response; see `tailrace.wrappers.http.ResponseBody`."""

    @property
    def request(self) -> SentRequest:
        """The request to which this is the response."""
        ...

    def read_nowait(self) -> bytes | None:
        """Return received data; None if no data can be read now; ``b""`` at the end of the body.

        Raises:
            OSError: The connection was lost, or no data arrived in time (TimeoutError). Raised after all received data has been
                returned.
        """
        ...

    def arrival(self) -> Awaitable[object]:
        """Return an awaitable that completes when `read_nowait` may return data."""
        ...


class ErrorReporter(Protocol):
    """Converts the errors of a response; see `tailrace.wrappers.http.http_model.HTTPModel`."""

    def connection_error(self, error: Exception) -> UpstreamError:
        """Convert the exception of a connection that was lost during a response."""
        ...

    def redacted_error(self, error: UpstreamError, url: str, headers: Mapping[str, str]) -> UpstreamError:
        """Remove from an error all data that callers must not receive. Return the error."""
        ...


class ChunkStream(AsyncIterator[Sequence[ChunkWrapper[Any]]]):
    """Async iterator over the chunks of a response. Each item has the chunks of one network read.

    Args:
        body: The body of the response.
        decoder: The decoder for the body.
        names: The tool names that were replaced; None if no name was replaced.
        model: Converts connection errors, and redacts all errors.
    """

    __slots__ = ("_body", "_decoder", "_error", "_has_ended", "_model", "_names")

    def __init__(
        self, body: Body, decoder: ResponseDecoder[Any], names: ToolNames | None, model: "ErrorReporter"
    ) -> None:
        self._body = body
        self._decoder = decoder
        self._names = names
        self._model = model
        self._has_ended = False
        self._error: UpstreamError | None = None

    async def __anext__(self) -> Sequence[ChunkWrapper[Any]]:
        body, decoder, names = self._body, self._decoder, self._names
        while not self._has_ended:
            try:
                if decoder.done:
                    data = b""  # data after the end of the response is ignored
                else:
                    await body.arrival()
                    data = body.read_nowait()
                    if data is None:
                        continue
                self._has_ended = not data
                chunks = decoder.feed(data) if data else decoder.close()
            except (OSError, UpstreamError) as error:
                chunks = self._break(error)
            for chunk in chunks:
                if not chunk.plain:
                    self._redact(chunk)
            if names is not None:
                chunks = names.restore_names(chunks)
                if self._has_ended:
                    chunks = [*chunks, *names.close()]
            if chunks:
                return chunks
        if self._error is None:
            raise StopAsyncIteration
        try:
            raise self._error
        finally:
            self._error = None  # the traceback of the error would refer to this object

    def _break(self, error: OSError | UpstreamError) -> Sequence[ChunkWrapper[Any]]:
        """End the stream with an error. Return the remaining chunks. The next call of ``__anext__`` raises the error."""
        self._has_ended = True
        request = self._body.request
        if isinstance(error, UpstreamError):
            self._error = self._model.redacted_error(error, str(request.url), request.headers)
            return ()
        remaining = self._decoder.close()
        redacted = self._model.redacted_error(
            self._model.connection_error(error), str(request.url), request.headers
        )
        # With its traceback, the error would form a reference cycle with the body.
        redacted.__cause__ = error.with_traceback(None)
        self._error = redacted
        # The connection error has more details than the decoder's error for a truncated stream.
        return [chunk for chunk in remaining if chunk.details is None or chunk.details.error is None]

    def _redact(self, chunk: ChunkWrapper[Any]) -> None:
        error = chunk.details.error if chunk.details is not None else None
        if error is not None:
            request = self._body.request
            self._model.redacted_error(error, str(request.url), request.headers)

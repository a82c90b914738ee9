"""Sends the events of a task as server-sent events (SSE).

`EventFrames` adds the SSE fields to stored events, and converts an event if the client uses another version of A2A.
`EventResponse` sends all available frames in one write.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import aclosing
from contextvars import copy_context
from functools import partial
from typing import Self

import anyio
import anyio.lowlevel
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tailrace.server.http.deferred_response import can_defer, defer
from tailrace.server.http.sse_frames import PING, Frames
from tailrace.server.runtime.event_stream import EventStream
from tailrace.server.runtime.stream_registry import OpenStreams
from tailrace.server.settings import Settings
from tailrace.streaming.a2a.version_codec import Dialect
from tailrace.wrappers import StoreError
from tailrace.wrappers.concurrency.worker_thread import json_text_cost, run_bounded

logger = logging.getLogger("tailrace.server")

RECONNECT_AFTER = 3.0
"""Seconds after which a client should reconnect if the server stopped (the SSE field ``retry``)."""

_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}  # prevents buffering in proxies


class EventFrames:
    r"""An async iterator over the SSE frames of one stream.

    A frame consists of the line ``id: NUMBER``, the line ``data: HEAD BODY TAIL``, and an empty line. Each item of the iterator
    contains all available frames. The iterator ends after the event that closes the stream, or after a frame with an error of the
    store. Users of this object must call `aclose`.

    Args:
        stream: The events.
        dialect: The version of A2A in whose format the events are written.
        write_error: Encodes an error of the store for the last frame.
        stopping: Set when the server stops. The last frame of a stream then asks the client to reconnect.
        head: Bytes before the body of each event, for example the beginning of a JSON-RPC response.
        tail: Bytes after the body of each event.
        ends: True to send a last event of type ``end``, so that a page can close its ``EventSource``.
    """

    __slots__ = (
        "_closes",
        "_ends",
        "_has_ended",
        "_head",
        "_read",
        "_stopping",
        "_stream",
        "_tail",
        "_write",
        "_write_error",
    )

    def __init__(
        self,
        stream: EventStream,
        dialect: Dialect,
        write_error: Callable[[StoreError], bytes],
        stopping: anyio.Event,
        *,
        head: bytes = b"",
        tail: bytes = b"",
        ends: bool = False,
    ) -> None:
        self._stream = stream
        self._read = stream.read
        self._write = None if dialect.stores_events else dialect.for_stream(stream.artifact_ids).write_event
        self._write_error = write_error
        self._stopping = stopping
        self._head = head
        self._tail = tail
        self._ends = ends
        self._closes = False
        self._has_ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._has_ended:
            raise StopAsyncIteration
        if self._closes:
            return self._last_frames()
        try:
            events = await self._read()
        except StoreError as error:
            self._has_ended = True
            return frame_data(self._write_error(error))
        if not events:
            return self._last_frames()
        head, tail, write = self._head, self._tail, self._write
        frames: list[bytes] = []
        closes = not events[0].number and self._stream.message is not None
        for event in events:
            if event.state is not None:
                self._closes = closes = self._stream.closes(event)
            body: bytes | None = event.body
            if write is not None:
                body = await run_bounded(json_text_cost(event.body), partial(write, event, is_last=closes))
            if body is not None:
                number = b"id: %d\n" % event.number if event.number else b""
                frames.append(b"%bdata: %b%b%b\n\n" % (number, head, body, tail))
            if closes:
                break
        return b"".join(frames)

    def _last_frames(self) -> bytes:
        """Return the frames after the last event."""
        self._has_ended = True
        stops = self._stopping.is_set()
        frames = shutdown_frame() if stops else b""
        if self._ends and (self._closes or not stops):
            frames += b"event: end\ndata: {}\n\n"
        return frames

    async def aclose(self) -> None:
        """Close the stream of events."""
        self._has_ended = True
        self._stream.close()


def frame_data(data: bytes) -> bytes:
    r"""Return an SSE frame without an id. ``data`` must be one line."""
    return b"data: " + data + b"\n\n"


def shutdown_frame() -> bytes:
    """Return the last frame of a stream that ends because the server stops."""
    return b": the server stops\nretry: %d\n\n" % int(RECONNECT_AFTER * 1000)


class EventResponse(StreamingResponse):
    """The HTTP response for one stream. It sends frames, and disconnects stalled clients.

    On ``tailrace serve``, the body is sent after the application has returned (`tailrace.server.http.deferred_response`). On
    other ASGI servers, `tailrace.server.http.sse_fallback` sends the frames.

    One asyncio task reads and sends frames. The asyncio task of the request waits for the client's disconnect, sends ping
    comments, and checks the duration of writes.

    Args:
        frames: The frames. The iterator is closed at the end.
        settings: The settings. A client that receives no bytes for ``bounds.send_timeout`` seconds is disconnected.
        headers: Additional headers.
        streams: The registry of open streams.
    """

    def __init__(
        self, frames: Frames, *, settings: Settings, headers: dict[str, str], streams: OpenStreams
    ) -> None:
        super().__init__(frames, headers=_HEADERS | headers, media_type="text/event-stream")
        self._frames = frames
        self._streams = streams
        self._settings = settings
        self._ping_interval: float = settings.bounds.ping_interval
        self._send_timeout = settings.bounds.send_timeout
        self._sent_at = 0.0
        self._sends_since = math.inf
        self._context = copy_context()  # the context of the request
        self._error: Exception | None = None
        self._waiting: anyio.CancelScope | None = None  # the scope in which the client is watched
        self._is_cancelled = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. ASGI interface."""
        if not can_defer(scope):
            # `tailrace serve` does not need this module.
            from tailrace.server.http.sse_fallback import EventSource

            source = EventSource(self._frames, self._streams, self._settings, self.raw_headers)
            await source(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self.raw_headers: list[tuple[bytes, bytes]] = []  # frees the memory
        if not defer(scope, self._stream):
            await self._stream(receive, send)

    def cancel(self) -> None:
        """End the stream without a last frame."""
        self._is_cancelled = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def _stream(self, receive: Receive, send: Send) -> None:
        self._sent_at = asyncio.get_running_loop().time()
        self._streams.add(self)
        # A separate asyncio task sends the frames: without deferral, each resumption of this coroutine would resume all
        # coroutines of the middleware. A task group would need a fifth of the memory of a stream.
        sending = asyncio.create_task(self._send_frames(send), context=self._context)  # noqa: TID251
        try:
            await self._watch(receive, send)
        finally:
            self._streams.discard(self)
            if not sending.done():
                with anyio.CancelScope(shield=True):
                    # The asyncio task must begin before it is cancelled, because its cleanup closes the frames.
                    await anyio.lowlevel.checkpoint()
                    sending.cancel()
                    await asyncio.wait([sending])
        if self._error is not None:
            raise self._error

    async def _send_frames(self, send: Send) -> None:
        """Send all frames and the end of the body. `_watch` then receives ``http.disconnect``."""
        clock = asyncio.get_running_loop().time
        try:
            async with aclosing(self._frames) as frames:
                async for data in frames:
                    if data:
                        self._sends_since = self._sent_at = clock()
                        await send({"type": "http.response.body", "body": data, "more_body": True})
                        self._sends_since = math.inf
                        data = b""  # frees the memory
            self._sends_since = clock()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception as error:
            self._error = error
            self.cancel()
        except BaseException:
            self.cancel()
            raise

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Send ping comments. Return when the stream has ended, or the client disconnects or stalls."""
        clock = asyncio.get_running_loop().time
        while True:
            # A write may begin during the sleep, and its timeout must be detected.
            due = min(self._sent_at + self._ping_interval, clock() + self._send_timeout)
            if self._sends_since < math.inf:
                due = self._sends_since + self._send_timeout
            with anyio.CancelScope(deadline=due) as self._waiting:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
            if self._is_cancelled:
                return
            now = clock()
            is_stalled = now >= self._sends_since + self._send_timeout
            if self._sends_since == math.inf and now >= self._sent_at + self._ping_interval:
                self._sent_at = now
                # The comment may block, too.
                with anyio.move_on_after(self._send_timeout) as self._waiting:
                    await send({"type": "http.response.body", "body": PING, "more_body": True})
                if self._is_cancelled:
                    return
                is_stalled = self._waiting.cancelled_caught
            if is_stalled:
                logger.info("disconnected a client that received no bytes for %g seconds", self._send_timeout)
                return

"""Events of a task's log as server-sent events.

An event's body was encoded once, when it happened; here it is only framed, and everything that a reader can have by
now leaves in one write.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Self

import anyio
import anyio.lowlevel
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tailrace.server.http.deferred_response import can_defer, defer
from tailrace.server.http.frames import PING, Frames
from tailrace.server.runtime.connections import OpenStreams
from tailrace.server.runtime.operations import EventStream
from tailrace.server.settings import Settings
from tailrace.streaming.a2a.dialect import Dialect
from tailrace.wrappers import StoreError
from tailrace.wrappers.concurrency.worker_thread import json_text_cost, run_bounded

logger = logging.getLogger("tailrace.server")

RECONNECT_AFTER = 3.0
"""Seconds after which a client whose stream the server's end has ended is to come back."""

_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}  # proxies must not buffer


class EventFrames:
    r"""The events of one stream as SSE frames: ``id: NUMBER``, ``data: HEAD BODY TAIL`` on one line, an empty line.

    An async iterator; each item is one write. It ends after the event that closes the stream, when the task is over, or
    when the events cannot be read, with a frame that says so. To be closed.

    Args:
        stream: The events.
        dialect: The version of the protocol to write.
        write_error: Encodes a store's error for the last frame.
        stopping: Set when the server stops: a stream that ends then asks the client to reconnect.
        head: Put before each body, for example the opening of a JSON-RPC response.
        tail: Put after each body.
        ends: End with an event of type ``end`` when nothing follows, so that an ``EventSource`` does not reconnect.
    """

    __slots__ = (
        "_closes",
        "_ends",
        "_head",
        "_is_over",
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
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._is_over:
            raise StopAsyncIteration
        if self._closes:
            return self._last_frames()
        try:
            events = await self._read()
        except StoreError as error:
            self._is_over = True
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
                body = await run_bounded(json_text_cost(event.body), partial(write, event, closes=closes))
            if body is not None:
                number = b"id: %d\n" % event.number if event.number else b""
                frames.append(b"%bdata: %b%b%b\n\n" % (number, head, body, tail))
            if closes:
                break
        return b"".join(frames)

    def _last_frames(self) -> bytes:
        """The frames after the last event: none, those of a shutdown, or that of the end."""
        self._is_over = True
        stops = self._stopping.is_set()
        frames = shutdown_frame() if stops else b""
        if self._ends and (self._closes or not stops):
            frames += b"event: end\ndata: {}\n\n"
        return frames

    async def aclose(self) -> None:
        """Give back what the stream holds."""
        self._is_over = True
        self._stream.close()


def frame_data(data: bytes) -> bytes:
    r"""One SSE frame without an id; ``data`` is one line."""
    return b"data: " + data + b"\n\n"


def shutdown_frame() -> bytes:
    """The last frame of a stream that ends because the server stops: reconnect, but only after `RECONNECT_AFTER`."""
    return b": the server stops\nretry: %d\n\n" % int(RECONNECT_AFTER * 1000)


class EventResponse(StreamingResponse):
    """The response of one stream: sends frames as they come, and drops a client that takes none.

    On a server that does not offer `tailrace.server.http.deferred_response`, which is any but that of ``tailrace serve``, the
    response is sse-starlette's (`tailrace.server.http.event_source`).

    A stream is two tasks: one reads frames and sends them; the request's own waits for the client to leave, and looks at
    the clock when a comment may be due or a write may have taken too long. No timer is made for a write.

    Args:
        frames: Complete frames; closed at the end.
        settings: Intervals. A client that takes no bytes for ``bounds.send_timeout`` seconds is dropped.
        headers: Further headers.
        streams: Where the stream is registered while it is open; open streams are closed some time after the server
            begins to stop (`STOP_TIMEOUT`).
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
        self._context = copy_context()  # of the request; the sending task runs in it
        self._error: Exception | None = None
        self._is_complete = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, as ASGI has it."""
        if not can_defer(scope):
            # Here: a process of `tailrace serve` never imports it.
            from tailrace.server.http.event_source import EventSource

            source = EventSource(self._frames, self._streams, self._settings, self.raw_headers)
            await source(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self.raw_headers: list[tuple[bytes, bytes]] = []  # not needed any more
        if not defer(scope, self._stream):
            await self._stream(receive, send)

    async def _stream(self, receive: Receive, send: Send) -> None:
        self._sent_at = asyncio.get_running_loop().time()
        with anyio.CancelScope() as stream:
            self._streams.add(stream)
            # In a task of its own: on the way to here are a dozen callers, all of which a task goes through to resume. And a
            # bare one, which is awaited below: a task group would take a fifth of the memory of a reader.
            sending = asyncio.create_task(self._send_frames(send, stream), context=self._context)  # noqa: TID251
            try:
                await self._watch(receive, send, stream)
            finally:
                self._streams.discard(stream)
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()  # it has begun, and will release what the frames hold
                    sending.cancel()
                    await asyncio.wait([sending])
        if self._error is not None:
            raise self._error
        if self._is_complete:
            with anyio.move_on_after(self._send_timeout):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_frames(self, send: Send, stream: anyio.CancelScope) -> None:
        """Send all frames, then end the stream."""
        clock = asyncio.get_running_loop().time
        try:
            async for data in self._frames:
                if data:
                    self._sends_since = self._sent_at = clock()
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                    self._sends_since = math.inf
                    data = b""  # the first may be as long as the task, and the next may be long in coming
            self._is_complete = True
        except Exception as error:
            self._error = error
        finally:
            with anyio.CancelScope(shield=True):
                await self._frames.aclose()
            stream.cancel()

    async def _watch(self, receive: Receive, send: Send, stream: anyio.CancelScope) -> None:
        """Cancel the stream when the client leaves, or takes nothing for too long; send comments meanwhile."""
        clock = asyncio.get_running_loop().time
        while True:
            # A write that begins while this sleeps is looked at before it has taken too long, and then just in time.
            due = min(self._sent_at + self._ping_interval, clock() + self._send_timeout)
            if self._sends_since < math.inf:
                due = self._sends_since + self._send_timeout
            with anyio.CancelScope(deadline=due):
                message = await receive()
                if message["type"] == "http.disconnect":
                    stream.cancel()
                    return
            now = clock()
            is_stalled = now >= self._sends_since + self._send_timeout
            if self._sends_since == math.inf and now >= self._sent_at + self._ping_interval:
                self._sent_at = now
                # A stalled client may be found by the comment: the write before it was the last that found room.
                with anyio.move_on_after(self._send_timeout) as comment:
                    await send({"type": "http.response.body", "body": PING, "more_body": True})
                is_stalled = comment.cancelled_caught
            if is_stalled:
                logger.info("a client that took nothing for %g seconds was dropped", self._send_timeout)
                stream.cancel()
                return

"""Events of a task's log as server-sent events.

An event's body was encoded once, when it happened; here it is only framed, and everything that a reader can have by
now leaves in one write.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Sequence
from contextvars import copy_context
from functools import partial

import anyio
import anyio.lowlevel
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tailrace.server.direct_writing import Writer, writer_of
from tailrace.server.late_streaming import put_off
from tailrace.server.open_streams import OpenStreams
from tailrace.server.operations import EventStream
from tailrace.server.settings import Settings
from tailrace.streaming.a2a.dialect import Dialect
from tailrace.streaming.task import Event

logger = logging.getLogger("tailrace.server")

RECONNECT_AFTER = 3.0
"""Seconds after which a client whose stream the server's end has ended is to come back."""

STOP_TIMEOUT = 6.0
"""Seconds that streams have to end by themselves once their tasks are over because the server stops."""

_COMMENT = b": ping\n\n"
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}  # nobody between is to collect them


class Framing:
    r"""Writes the events of one stream as SSE frames: ``id: NUMBER``, ``data: HEAD BODY TAIL`` on one line, an empty line.

    Args:
        stream: Whose events they are.
        dialect: The version of the protocol to write.
        head: Put before each body, for example the opening of a JSON-RPC response.
        tail: Put after each body.

    Attributes:
        stream: As given.
        closed: Nothing follows the last event that was written.
    """

    __slots__ = ("_head", "_tail", "_write", "closed", "stream")

    def __init__(self, stream: EventStream, dialect: Dialect, head: bytes = b"", tail: bytes = b"") -> None:
        self.stream = stream
        self.closed = False
        self._write = dialect.for_stream(stream.artifact_ids).write_event
        self._head = head
        self._tail = tail

    def frame(self, events: Sequence[Event]) -> bytes:
        """Events, in order, as frames."""
        head, tail = self._head, self._tail
        frames: list[bytes] = []
        for event in events:
            self.closed = closes = self.stream.closes(event)
            body = self._write(event, closes=closes)
            if body is None:
                continue
            number = b"id: %d\n" % event.number if event.number else b""
            frames.append(b"%bdata: %b%b%b\n\n" % (number, head, body, tail))
        return b"".join(frames)


def frame_data(data: bytes) -> bytes:
    r"""One SSE frame without an id; ``data`` is one line."""
    return b"data: " + data + b"\n\n"


def farewell() -> bytes:
    """The last frame of a stream that ends because the server does: reconnect, but only after `RECONNECT_AFTER`."""
    return b": the server stops\nretry: %d\n\n" % int(RECONNECT_AFTER * 1000)


class _EventStream(StreamingResponse):
    """Sends frames as they come, and takes a client that does not read for what it is: no error of the server.

    A stream is a task that sends, and the request's own, which sleeps: it waits for the client to leave, and looks at the
    clock when a comment may be due or a write may have taken too long. Nothing is made for a write.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes],
        streams: OpenStreams,
        settings: Settings,
        headers: dict[str, str],
        framing: Framing | None = None,
    ) -> None:
        super().__init__(frames, headers=_HEADERS | headers, media_type="text/event-stream")
        self._frames = frames
        self._framing = framing
        self._writer: Writer | None = None
        self._streams = streams
        self._silence: float = settings.ping_interval
        self._patience = settings.send_timeout
        self._sent_at = 0.0
        self._sends_since = math.inf
        self._context = copy_context()  # what is current while the request is answered
        self._failed: Exception | None = None
        self._is_whole = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._framing is not None:
            self._writer = writer_of(scope)
        if not put_off(scope, partial(self._stream, receive, send)):
            await self._stream(receive, send)

    async def _stream(self, receive: Receive, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        self._sent_at = clock()
        if self._framing is not None and self._writer is not None:
            self._framing.stream.take_at_once(self._take)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self.raw_headers: list[tuple[bytes, bytes]] = []  # nobody asks for them any more
        with anyio.CancelScope() as stream:
            self._streams.add(stream)
            # In a task of its own: on the way to here are a dozen callers, all of whom a task goes through to go on. And a
            # bare one, which is waited for below: a task group would take a fifth of the memory of a reader.
            handing_on = asyncio.create_task(self._hand_on(send, stream), context=self._context)  # noqa: TID251
            try:
                await self._look_after(receive, send, stream)
            finally:
                self._streams.discard(stream)
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()  # it has begun, and will give back what the frames hold
                    handing_on.cancel()
                    await asyncio.wait([handing_on])
                if self._framing is not None:
                    self._framing.stream.take_at_once(None)  # which holds this
        if self._failed is not None:
            raise self._failed
        if self._is_whole:
            with anyio.move_on_after(self._patience):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _hand_on(self, send: Send, stream: anyio.CancelScope) -> None:
        """Send all frames, and end the stream."""
        clock = asyncio.get_running_loop().time
        try:
            async for data in self._frames:
                if data:
                    self._sends_since = self._sent_at = clock()
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                    self._sends_since = math.inf
                    data = b""  # the first piece may be as long as the task, and the next one may be long in coming
            self._is_whole = True
        except Exception as error:
            self._failed = error
        finally:
            with anyio.CancelScope(shield=True):
                await self._frames.aclose()
            stream.cancel()

    def _take(self, events: Sequence[Event]) -> bool:
        """Write events at once, if the one before was taken."""
        writer, framing = self._writer, self._framing
        if writer is None or framing is None or self._sends_since < math.inf or not writer.ready:
            return False
        try:
            data = framing.frame(events)
            if data:
                self._sent_at = asyncio.get_running_loop().time()
                writer.write(data)
        except Exception:
            logger.exception("a stream's events cannot be written at once")
            return False
        return True

    async def _look_after(self, receive: Receive, send: Send, stream: anyio.CancelScope) -> None:
        """Until the client leaves, or takes nothing for too long: then the stream is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            # A write that begins while this sleeps is looked at before it has taken too long, and then just in time.
            due = min(self._sent_at + self._silence, clock() + self._patience)
            if self._sends_since < math.inf:
                due = self._sends_since + self._patience
            with anyio.CancelScope(deadline=due):
                message = await receive()
                if message["type"] == "http.disconnect":
                    stream.cancel()
                    return
            now = clock()
            is_stalled = now >= self._sends_since + self._patience
            if self._sends_since == math.inf and now >= self._sent_at + self._silence:
                self._sent_at = now
                # Who takes nothing may be found out by the comment: the write before it was the last that found room.
                with anyio.move_on_after(self._patience) as comment:
                    await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
                is_stalled = comment.cancelled_caught
            if is_stalled:
                logger.info("a client that took nothing for %g seconds was dropped", self._patience)
                stream.cancel()
                return


def sse_response(
    frames: AsyncGenerator[bytes],
    *,
    settings: Settings,
    headers: dict[str, str],
    streams: OpenStreams,
    framing: Framing | None = None,
) -> Response:
    """A ``text/event-stream`` response of ready-made frames, with comments while nothing happens.

    A client that leaves ends the iterator; one that takes no bytes for ``settings.send_timeout`` seconds is dropped.

    Args:
        frames: Each piece is one write, and whole frames; closed at the end.
        settings: Intervals.
        headers: Further ones.
        streams: Where the stream is one of while it is open; they are cut off some time after the server is told to
            stop (`STOP_TIMEOUT`).
        framing: What the frames are made with, so that no task need be woken for the newest events.
    """
    return _EventStream(frames, streams, settings, headers, framing)

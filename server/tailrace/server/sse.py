"""Events of a task's log as server-sent events.

An event's body was encoded once, when it happened; here it is only framed, and everything that a reader can have by
now leaves in one write. The frames are bytes, which sse-starlette passes through untouched.
"""

import logging
from collections.abc import AsyncIterator, Sequence

import anyio
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.types import Receive, Scope, Send

from tailrace.server.operations import EventStream
from tailrace.server.settings import Settings
from tailrace.streaming.a2a.dialect import Dialect
from tailrace.streaming.task import Event

logger = logging.getLogger("tailrace.server")

RECONNECT_AFTER = 3.0
"""Seconds after which a client whose stream the server's end has ended is to come back."""

STOP_TIMEOUT = 6.0
"""Seconds that streams have to end by themselves once their tasks are over because the server stops."""


def frame_events(
    stream: EventStream, events: Sequence[Event], dialect: Dialect, head: bytes = b"", tail: bytes = b""
) -> bytes:
    r"""The events as SSE frames: ``id: NUMBER``, ``data: HEAD BODY TAIL`` on one line, an empty line.

    Args:
        stream: Whose events they are.
        events: What to frame, in order.
        dialect: The version of the protocol to write.
        head: Put before each body, for example the opening of a JSON-RPC response.
        tail: Put after each body.
    """
    frames: list[bytes] = []
    for event in events:
        body = dialect.write_event(event, closes=stream.closes(event))
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


class _EventStream(EventSourceResponse):
    """Takes a client that does not read for what it is: no error of the server."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            logger.info("a client that took nothing for %g seconds was dropped", self.send_timeout)


def sse_response(
    frames: AsyncIterator[bytes],
    *,
    settings: Settings,
    headers: dict[str, str],
    stopping: anyio.Event,
) -> EventSourceResponse:
    """A ``text/event-stream`` response of ready-made frames, with comments while nothing happens.

    A client that leaves ends the iterator; one that takes no bytes for ``settings.send_timeout`` seconds is dropped.
    ``stopping`` is set when the server is told to stop; the stream then ends by itself once its task is over, for which
    that has ``settings.shutdown_grace``, and is cut off `STOP_TIMEOUT` after that.
    """
    return _EventStream(
        frames,
        ping=settings.ping_interval,
        send_timeout=settings.send_timeout,
        sep="\n",
        headers=headers,
        shutdown_event=stopping,
        shutdown_grace_period=settings.shutdown_grace + STOP_TIMEOUT,
    )

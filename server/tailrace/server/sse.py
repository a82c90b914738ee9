"""Events of a task's log as server-sent events.

An event's body was encoded once, when it happened; here it is only framed, and everything that a reader can have by
now leaves in one write. The frames are bytes, which sse-starlette passes through untouched.
"""

import logging
from collections.abc import AsyncIterator, Sequence

import anyio
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.types import Receive, Scope, Send

from tailrace.streaming.task import Event

logger = logging.getLogger("tailrace.server")

STOP_TIMEOUT = 2.0
"""Seconds that streams have to end by themselves once the server was told to stop."""


def frame_events(events: Sequence[Event], head: bytes = b"", tail: bytes = b"") -> bytes:
    r"""The events as SSE frames: ``id: NUMBER``, ``data: HEAD BODY TAIL`` on one line, an empty line.

    Args:
        events: What to frame, in order.
        head: Put before each body, for example the opening of a JSON-RPC response.
        tail: Put after each body.
    """
    return b"".join(
        [b"id: %d\ndata: %b%b%b\n\n" % (event.number, head, event.body, tail) for event in events]
    )


def frame_data(data: bytes) -> bytes:
    r"""One SSE frame without an id; ``data`` is one line."""
    return b"data: " + data + b"\n\n"


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
    ping_interval: int,
    send_timeout: float,
    headers: dict[str, str],
    stopping: anyio.Event,
) -> EventSourceResponse:
    """A ``text/event-stream`` response of ready-made frames, with comments while nothing happens.

    A client that leaves ends the iterator; one that takes no bytes for ``send_timeout`` seconds is dropped.
    ``stopping`` is set when the server is told to stop; the stream then has `STOP_TIMEOUT` to end by itself.
    """
    return _EventStream(
        frames,
        ping=ping_interval,
        send_timeout=send_timeout,
        sep="\n",
        headers=headers,
        shutdown_event=stopping,
        shutdown_grace_period=STOP_TIMEOUT,
    )

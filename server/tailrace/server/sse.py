"""Events of a task's log as server-sent events.

An event's body was encoded once, when it happened; here it is only framed, and everything that a reader can have by
now leaves in one write. The frames are bytes, which sse-starlette passes through untouched.
"""

from collections.abc import AsyncIterator, Sequence

from sse_starlette.sse import EventSourceResponse

from tailrace.streaming.task import Event


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


def sse_response(
    frames: AsyncIterator[bytes], *, ping_interval: int, send_timeout: float, headers: dict[str, str]
) -> EventSourceResponse:
    """A ``text/event-stream`` response of ready-made frames, with comments while nothing happens.

    A client that leaves ends the iterator; one that takes no bytes for ``send_timeout`` seconds is dropped.
    """
    return EventSourceResponse(
        frames, ping=ping_interval, send_timeout=send_timeout, sep="\n", headers=headers
    )

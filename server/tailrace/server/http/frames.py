"""Frames of server-sent events, and the constants of the responses that send them."""

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

STOP_TIMEOUT = 6.0
"""Seconds for open streams to end by themselves after a stopping server has ended their tasks."""

PING = b": ping\n\n"
"""The comment that keeps a connection open."""


class Frames(Protocol):
    """The frames of a stream, each item one write; an async generator is one."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def __anext__(self) -> Awaitable[bytes]: ...

    def aclose(self) -> Awaitable[None]:
        """Release what the frames hold, whether or not any was read."""
        ...

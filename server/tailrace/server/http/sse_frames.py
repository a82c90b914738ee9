"""The interface of iterators over SSE frames, and constants for both SSE responses (`sse` and `sse_fallback`)."""

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

STOP_TIMEOUT = 6.0
"""Seconds after the beginning of a shutdown when open streams are cancelled. Until then, streams can send their last events."""

PING = b": ping\n\n"
"""The SSE comment that keeps a connection open."""


class Frames(Protocol):
    """An async iterator of bytes, each item of which is sent in one write. Async generators implement this interface."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def __anext__(self) -> Awaitable[bytes]: ...

    def aclose(self) -> Awaitable[None]:
        """Release the resources, even if no item was read."""
        ...

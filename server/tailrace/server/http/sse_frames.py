"""The interface of iterators over SSE frames, and constants of both SSE responses (`sse` and `sse_fallback`)."""

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

STOP_TIMEOUT = 6.0
"""Seconds after ``shutdown_grace`` at which open streams are cancelled."""

PING = b": ping\n\n"
"""An SSE comment. It keeps a connection open."""


class Frames(Protocol):
    """An async iterator of bytes, for example an async generator. Each item is sent in one write."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def __anext__(self) -> Awaitable[bytes]: ...

    def aclose(self) -> Awaitable[None]:
        """Close the iterator, even if no item was read."""
        ...

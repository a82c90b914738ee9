"""The open SSE streams of a server, and their end when it stops."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Protocol

import anyio

STOP_TIMEOUT = 6.0
"""Seconds that streams have to end by themselves once their tasks are over because the server stops."""

PING = b": ping\n\n"
"""The comment that keeps a connection open."""


class Frames(Protocol):
    """The frames of a stream, each item one write; an async generator is one."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def __anext__(self) -> Awaitable[bytes]: ...

    def aclose(self) -> Awaitable[None]:
        """Release what the frames hold, whether or not any was read."""
        ...


class OpenStreams:
    """All open streams, each by the cancel scope that ends it."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()

    def add(self, scope: anyio.CancelScope) -> None:
        """Register a stream."""
        self._scopes.add(scope)

    def discard(self, scope: anyio.CancelScope) -> None:
        """Remove a stream that has ended."""
        self._scopes.discard(scope)

    @asynccontextmanager
    async def cut_off(self, stopping: anyio.Event, after: float) -> AsyncGenerator[None]:
        """While the block runs: end the open streams ``after`` seconds after the server begins to stop."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._cut_off, stopping, after)
            yield
            group.cancel_scope.cancel()

    async def _cut_off(self, stopping: anyio.Event, after: float) -> None:
        await stopping.wait()
        await anyio.sleep(after)
        for scope in list(self._scopes):
            scope.cancel()

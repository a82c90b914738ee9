"""The open SSE streams of a server."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio


class OpenStreams:
    """The cancel scopes of all open SSE streams."""

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
        """Cancel the open streams if the server stops before the block ends.

        Args:
            stopping: Set when the server begins to stop.
            after: Seconds after this event until the streams are cancelled.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self._cut_off, stopping, after)
            yield
            group.cancel_scope.cancel()

    async def _cut_off(self, stopping: anyio.Event, after: float) -> None:
        await stopping.wait()
        await anyio.sleep(after)
        for scope in list(self._scopes):
            scope.cancel()

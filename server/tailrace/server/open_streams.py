"""The SSE streams that a server has open, and what cuts them off when it stops."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio


class OpenStreams:
    """All streams that are open, each by the scope that ends it."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()

    def add(self, scope: anyio.CancelScope) -> None:
        """One more, until it is discarded."""
        self._scopes.add(scope)

    def discard(self, scope: anyio.CancelScope) -> None:
        """It is over."""
        self._scopes.discard(scope)

    @asynccontextmanager
    async def cut_off(self, stopping: anyio.Event, after: float) -> AsyncGenerator[None]:
        """While the block runs: cut off what is still open ``after`` seconds after the server is told to stop."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._cut_off, stopping, after)
            yield
            group.cancel_scope.cancel()

    async def _cut_off(self, stopping: anyio.Event, after: float) -> None:
        await stopping.wait()
        await anyio.sleep(after)
        for scope in list(self._scopes):
            scope.cancel()

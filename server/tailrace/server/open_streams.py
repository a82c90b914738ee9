"""The SSE streams that a server has open, and what cuts them off when it stops."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import anyio


class OpenStreams:
    """All streams that are open, each by the scope that ends it."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()

    @contextmanager
    def holding(self, scope: anyio.CancelScope) -> Generator[None]:
        """One more while the block runs."""
        self._scopes.add(scope)
        try:
            yield
        finally:
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

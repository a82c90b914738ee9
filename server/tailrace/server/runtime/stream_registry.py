"""The open SSE streams of a server."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Protocol

import anyio


class OpenStream(Protocol):
    """An open SSE stream, or the cancel scope of one."""

    def cancel(self) -> object:
        """End the stream without a last frame."""
        ...


class OpenStreams:
    """All open SSE streams."""

    def __init__(self) -> None:
        self._streams: set[OpenStream] = set()

    def add(self, stream: OpenStream) -> None:
        """Register a stream."""
        self._streams.add(stream)

    def discard(self, stream: OpenStream) -> None:
        """Remove a stream that has ended."""
        self._streams.discard(stream)

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
        for stream in list(self._streams):
            stream.cancel()

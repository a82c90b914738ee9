"""The SSE response for ASGI servers other than ``tailrace serve``, which do not support deferred responses.

It is based on sse-starlette, whose import patches a method of uvicorn's server.
"""

import logging
from contextlib import suppress
from typing import Any, Self, cast

import anyio
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.types import Receive, Scope, Send

from tailrace.server.http.sse_frames import PING, STOP_TIMEOUT, Frames
from tailrace.server.runtime.stream_registry import OpenStreams
from tailrace.server.settings import Settings

logger = logging.getLogger("tailrace.server")


class EventSource(EventSourceResponse):
    """The HTTP response for one stream.

    The stream ends after its last frame, when the client disconnects or receives no bytes for ``bounds.send_timeout`` seconds, or
    when the server cancels the stream.

    Args:
        frames: The frames. The iterator is closed at the end, even if no frame was read.
        streams: The registry of open streams.
        settings: The settings.
        raw_headers: The headers of the response.
    """

    def __init__(
        self,
        frames: Frames,
        streams: OpenStreams,
        settings: Settings,
        raw_headers: list[tuple[bytes, bytes]],
    ) -> None:
        self._frames = _Frames(frames)
        super().__init__(  # pyright: ignore[reportUnknownMemberType] — it takes dicts of any kind, too
            self._frames,
            ping=settings.bounds.ping_interval,
            ping_message_factory=cast("Any", lambda: PING),  # sse-starlette sends bytes unchanged
            sep="\n",
            send_timeout=settings.bounds.send_timeout,
            shutdown_grace_period=settings.shutdown_grace + STOP_TIMEOUT + 1,
        )
        self.raw_headers = raw_headers
        self._streams = streams
        self._patience = settings.bounds.send_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. ASGI interface."""
        with anyio.CancelScope() as stream:
            self._streams.add(stream)
            try:
                await super().__call__(scope, receive, send)
            except SendTimeoutError:
                logger.info("disconnected a client that received no bytes for %g seconds", self._patience)
            finally:
                self._streams.discard(stream)
                with anyio.CancelScope(shield=True):
                    await self._frames.aclose()


class _Frames:
    """An iterator over non-empty frames. `aclose` also closes an iterator that was never read."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._has_started = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        self._has_started = True
        while not (data := await self._frames.__anext__()):
            pass
        return data

    async def aclose(self) -> None:
        if not self._has_started:
            # Start the generator in a cancelled scope, because an unstarted generator does not run its cleanup.
            with anyio.CancelScope(shield=True) as scope, suppress(StopAsyncIteration):
                scope.cancel()
                await self.__anext__()
        await self._frames.aclose()

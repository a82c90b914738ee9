"""Streams of server-sent events on any ASGI server: the response of sse-starlette over frames that are encoded already.

`tailrace.server.http.sse` uses it wherever the server does not offer the extensions of ``tailrace serve``. Importing
sse-starlette replaces a method of uvicorn's server, by which it learns of a shutdown; hence a module of its own.
"""

import logging
from contextlib import suppress
from typing import Any, Self, cast

import anyio
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.types import Receive, Scope, Send

from tailrace.server.http.frames import PING, STOP_TIMEOUT, Frames
from tailrace.server.runtime.connections import OpenStreams
from tailrace.server.settings import Settings

logger = logging.getLogger("tailrace.server")


class EventSource(EventSourceResponse):
    """The response of one stream.

    A stream ends with its frames, when the client leaves, when the client takes no bytes for ``bounds.send_timeout``
    seconds, or when the server cuts it off. sse-starlette ends streams when a shutdown begins; here it waits until the
    server has ended them by itself. That is set for this response alone: `AppStatus.disable_automatic_graceful_drain` would
    hold for every other stream of the process, the embedding application's own included.

    Args:
        frames: Complete frames; closed at the end, even where nothing was read of them.
        streams: The open streams of the server, of which this is one.
        settings: Intervals.
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
            ping_message_factory=cast("Any", lambda: PING),  # bytes are sent as they are
            sep="\n",
            send_timeout=settings.bounds.send_timeout,
            shutdown_grace_period=settings.shutdown_grace + STOP_TIMEOUT + 1,
        )
        self.raw_headers = raw_headers
        self._streams = streams
        self._patience = settings.bounds.send_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, as ASGI has it."""
        with anyio.CancelScope() as stream:
            self._streams.add(stream)
            try:
                await super().__call__(scope, receive, send)
            except SendTimeoutError:
                logger.info("a client that took nothing for %g seconds was dropped", self._patience)
            finally:
                self._streams.discard(stream)
                with anyio.CancelScope(shield=True):
                    await self._frames.aclose()


class _Frames:
    """Frames without empty ones, whose resources are released even if none was read."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._is_begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        self._is_begun = True
        while not (data := await self._frames.__anext__()):
            pass
        return data

    async def aclose(self) -> None:
        if not self._is_begun:
            # A generator that never ran has no end to run either: begin it, cancelled, so that it releases what it holds.
            with anyio.CancelScope(shield=True) as begun, suppress(StopAsyncIteration):
                begun.cancel()
                await self.__anext__()
        await self._frames.aclose()

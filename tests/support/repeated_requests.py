"""Concurrent requests with one idempotency key."""

from collections.abc import Mapping
from typing import Any

import anyio

from support.response_streams import RawClient
from tailrace.server.runtime.stream_filter import FilterStream, StreamFilter


class HoldingFilter(StreamFilter, FilterStream):
    """An input filter that holds each message with one text until `release_first` or `release_all`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._held: list[anyio.Event] = []
        self._changed = anyio.Event()
        self._is_open = False

    def open(self) -> FilterStream:
        return self

    async def feed(self, text: str) -> str:
        if text == self._text and not self._is_open:
            held = anyio.Event()
            self._held.append(held)
            self._changed.set()
            await held.wait()
        return text

    async def close(self) -> str:
        return ""

    async def holds(self, count: int) -> None:
        """Wait until this number of messages has arrived."""
        while len(self._held) < count:
            self._changed = anyio.Event()
            await self._changed.wait()

    def release_first(self) -> None:
        """Let the first message pass."""
        self._held[0].set()

    def release_all(self) -> None:
        """Let all messages pass, also later ones."""
        self._is_open = True
        for each in self._held:
            each.set()


async def streams_of_both(
    first: RawClient,
    second: RawClient,
    path: str,
    body: Mapping[str, Any],
    *,
    hold: HoldingFilter,
    go_on: anyio.Event,
    piece: bytes,
    is_locked: bool = False,
) -> tuple[list[bytes], list[bytes]]:
    """Return the streams of two requests. The second one is held until the first one has streamed ``piece``.

    Args:
        first: The client of the first request.
        second: The client of the second request.
        path: The path of the requests.
        body: The body of the requests.
        hold: The filter of the servers.
        go_on: Lets the model continue after ``piece``.
        piece: A part of a frame of both streams.
        is_locked: True if the second request waits for a lock before the filter.
    """
    streams: tuple[list[bytes], list[bytes]] = ([], [])
    reached = (anyio.Event(), anyio.Event())

    async def read(at: int, client: RawClient) -> None:
        async with client.open_stream(path, body) as frames:
            async for frame in frames:
                streams[at].append(frame)
                if piece in frame:
                    reached[at].set()

    async with anyio.create_task_group() as group:
        group.start_soon(read, 0, first)
        await hold.holds(1)
        group.start_soon(read, 1, second)
        if is_locked:
            await second.json("POST", "/conversations", {})  # is sent later, and waits for nothing
        else:
            await hold.holds(2)
        hold.release_first()
        await reached[0].wait()
        hold.release_all()
        await reached[1].wait()
        go_on.set()
    return streams

"""Bodies that arrive faster than they are read: other tasks run in between, and no data is lost."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import anyio
import anyio.lowlevel
import pytest

from support.http_server import END, ScriptedBody, chunk, scripted_body
from tailrace.wrappers.http import ResponseBody, TransportError
from tailrace.wrappers.http import read_budget as budget_module
from tailrace.wrappers.http.read_budget import SMALL_BYTES
from tailrace.wrappers.http.response import HIGH_WATER

TICK_BYTES = 256 * 1024
SIZE = 2 * TICK_BYTES


@pytest.fixture(autouse=True)
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "TICK_BYTES", TICK_BYTES)


class Ticks:
    """Counts the ticks of the event loop and the bytes read in each."""

    def __init__(self) -> None:
        self.read = Counter[int]()
        self._number = 0
        self._tick()

    def _tick(self) -> None:
        self._number += 1
        self._next = asyncio.get_running_loop().call_soon(self._tick)

    async def drain(self, body: ResponseBody, pieces: list[bytes]) -> None:
        async for piece in body:
            self.read[self._number] += len(piece)
            pieces.append(piece)

    def stop(self) -> None:
        self._next.cancel()


async def arrived(body: ResponseBody) -> None:
    """Wait until the body has paused its connection."""
    while body.received <= HIGH_WATER:
        await anyio.lowlevel.checkpoint()


def numbered(size: int) -> bytes:
    return b"".join(b"%07d " % number for number in range(size // 8))


async def test_a_tick_reads_no_more_of_many_large_bodies_than_of_one():
    sent = numbered(SIZE)
    pieces: list[list[bytes]] = [[] for _ in range(6)]
    async with AsyncExitStack() as stack:
        large: list[tuple[ScriptedBody, ResponseBody]] = [
            await stack.enter_async_context(scripted_body()) for _ in pieces
        ]
        for script, body in large:
            script.send(b"".join(chunk(sent[at : at + 256]) for at in range(0, SIZE, 256)) + END)
            await arrived(body)
        ticks = Ticks()
        async with anyio.create_task_group() as group:
            for (_, body), own in zip(large, pieces, strict=True):
                group.start_soon(ticks.drain, body, own)
        ticks.stop()
    assert all(b"".join(own) == sent for own in pieces)
    # A tick of the test may begin in the middle of one of the budget's; small bodies are read in any case.
    assert max(ticks.read.values()) <= 2 * TICK_BYTES + (len(pieces) + 1) * SMALL_BYTES
    assert max(ticks.read.values()) > SMALL_BYTES


async def test_what_arrives_while_large_bodies_are_read_need_not_wait_for_their_end():
    count = 16
    pieces: list[bytes] = []
    async with AsyncExitStack() as stack:
        large = [await stack.enter_async_context(scripted_body()) for _ in range(count)]
        for script, body in large:
            script.send(chunk(numbered(SIZE)) + END)
            await arrived(body)
        other, small = await stack.enter_async_context(scripted_body())
        ticks = Ticks()
        async with anyio.create_task_group() as group:
            for _, body in large:
                group.start_soon(ticks.drain, body, pieces)
            while not pieces:
                await anyio.lowlevel.checkpoint()
            other.send(chunk(b"small") + END)
            assert await small.read() == b"small"
            assert ticks.read.total() < count * SIZE
        ticks.stop()
    assert ticks.read.total() == count * SIZE


async def test_a_reader_that_is_cancelled_between_two_ticks_leaves_the_rest_to_the_next():
    sent = numbered(SIZE)
    async with scripted_body() as (script, body):
        script.send(chunk(sent) + END)
        await arrived(body)
        found: list[bytes] = []
        while (data := body.read_nowait()) is not None:
            found.append(data)
        with anyio.CancelScope() as scope:
            scope.cancel()
            while True:
                await body.arrival()
                await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert b"".join(found) + await body.read() == sent


async def test_a_connection_that_breaks_is_an_error_after_all_that_arrived_however_many_ticks_it_takes():
    sent = numbered(SIZE)
    async with scripted_body() as (script, body):
        script.send(chunk(sent))
        await arrived(body)
        script.close()
        found: list[bytes] = []
        ticks = Ticks()
        with pytest.raises(TransportError):
            await ticks.drain(body, found)
        ticks.stop()
        assert b"".join(found) == sent

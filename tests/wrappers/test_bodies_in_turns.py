"""Bodies that come faster than they are taken: everything else has its turn in between, and nothing is lost by it."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial

import aiohttp
import anyio
import anyio.lowlevel
import pytest

from support.bodies import END, Taker, Told, chunk, told, whole
from tailrace.wrappers import bodies
from tailrace.wrappers.bodies import SMALL_BYTES, PostedBody

ROUND_BYTES = 256 * 1024
LARGE = 2 * ROUND_BYTES
"""Larger than what is taken in one round, and no more than aiohttp keeps of a body that nobody reads."""


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "ROUND_BYTES", ROUND_BYTES)


class Rounds:
    """Counts the rounds of the event loop, and what is taken in each."""

    def __init__(self) -> None:
        self.taken = Counter[int]()
        self._number = 0
        self._tick()

    def _tick(self) -> None:
        self._number += 1
        self._next = asyncio.get_running_loop().call_soon(self._tick)

    def note(self, pieces: list[bytes], piece: bytes) -> bool:
        self.taken[self._number] += len(piece)
        pieces.append(piece)
        return True

    def stop(self) -> None:
        self._next.cancel()


async def arrived(body: PostedBody, size: int) -> None:
    while body._response.content.total_bytes < size:  # pyright: ignore[reportPrivateUsage]
        await anyio.lowlevel.checkpoint()


async def read(body: PostedBody, rounds: Rounds, pieces: list[bytes]) -> None:
    async for piece in body:
        rounds.note(pieces, piece)


def numbered(size: int) -> bytes:
    return b"".join(b"%07d " % number for number in range(size // 8))


@pytest.mark.parametrize("takes", [True, False], ids=["taken", "read"])
async def test_of_many_large_bodies_a_round_takes_no_more_than_of_one(takes: bool):
    sent = numbered(LARGE)
    pieces: list[list[bytes]] = [[] for _ in range(6)]
    async with AsyncExitStack() as stack:
        large: list[tuple[Told, PostedBody]] = [await stack.enter_async_context(told()) for _ in pieces]
        for provider, body in large:
            provider.send(b"".join(chunk(sent[at : at + 256]) for at in range(0, LARGE, 256)) + END)
            await arrived(body, LARGE)
        rounds = Rounds()
        async with anyio.create_task_group() as group:
            for (_, body), own in zip(large, pieces, strict=True):
                if takes:
                    body.take = partial(rounds.note, own)
                group.start_soon(read, body, rounds, own)
        rounds.stop()
    assert all(b"".join(own) == sent for own in pieces)
    # A round of ours may begin in the middle of one of the loop's.
    assert max(rounds.taken.values()) <= 2 * ROUND_BYTES + SMALL_BYTES
    assert len(rounds.taken) >= len(pieces) * LARGE // (2 * ROUND_BYTES + SMALL_BYTES)


async def test_what_comes_while_large_bodies_are_taken_need_not_wait_for_their_end():
    count = 16
    pieces: list[bytes] = []
    async with AsyncExitStack() as stack:
        large = [await stack.enter_async_context(told()) for _ in range(count)]
        for provider, body in large:
            provider.send(chunk(numbered(LARGE)) + END)
            await arrived(body, LARGE)
        other, small = await stack.enter_async_context(told())
        rounds = Rounds()
        async with anyio.create_task_group() as group:
            for _, body in large:
                group.start_soon(read, body, rounds, pieces)
            while not pieces:
                await anyio.lowlevel.checkpoint()
            other.send(chunk(b"small") + END)
            assert await whole(small) == b"small"
            assert rounds.taken.total() < count * LARGE
        rounds.stop()
    assert rounds.taken.total() == count * LARGE


async def test_a_reader_that_is_cancelled_between_two_rounds_leaves_the_rest_to_the_next():
    sent = numbered(LARGE)
    async with told() as (provider, body):
        provider.send(chunk(sent) + END)
        await arrived(body, LARGE)
        body.take = taker = Taker(lambda: scope.cancel() is None)
        first = await anext(body)
        with anyio.CancelScope() as scope:
            await anext(body)
        assert scope.cancelled_caught
        body.take = None
        assert first + b"".join(taker.pieces) + await whole(body) == sent


async def test_a_connection_that_breaks_is_an_error_behind_all_that_came_however_many_rounds_it_takes():
    sent = numbered(LARGE)
    async with told() as (provider, body):
        provider.send(chunk(sent))
        await arrived(body, LARGE)
        body.take = taker = Taker()
        provider.close()
        pieces = [await anext(body)]
        with pytest.raises(aiohttp.ClientPayloadError):
            pieces.append(await whole(body))
        assert pieces[0] + b"".join(taker.pieces) == sent

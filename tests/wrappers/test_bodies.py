"""The bodies of answers, read from a real connection: whole, however they are cut up."""

import asyncio
import itertools
import zlib
from contextvars import ContextVar

import aiohttp
import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.bodies import COMPRESSED, END, HEAD, Taker, chunk, posted, told, whole
from tailrace.wrappers import bodies
from tailrace.wrappers.bodies import PostedBody


@pytest.mark.parametrize("is_known", [True, False], ids=["ours", "aiohttp's"])
async def test_a_body_is_whole_however_it_is_cut_up(is_known: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bodies, "_IS_KNOWN", is_known)
    said = [b"data: %d\n\n" % number for number in range(12)]
    wire = HEAD + b"".join(map(chunk, said)) + END

    async def byte_by_byte(writer: asyncio.StreamWriter) -> None:
        for at in range(len(wire)):
            writer.write(wire[at : at + 1])
            await writer.drain()

    async def at_once(writer: asyncio.StreamWriter) -> None:
        writer.write(wire)
        await writer.drain()

    for answer in (byte_by_byte, at_once):
        async with posted(answer) as body:
            assert await whole(body) == b"".join(said)


async def test_a_reader_that_is_slow_holds_up_who_writes_and_loses_nothing():
    parts = 200
    part = bytes(range(256)) * 256
    written = 0

    async def much(writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(HEAD)
        for _ in range(parts):
            writer.write(chunk(part))
            await writer.drain()
            written += 1
        writer.write(END)
        await writer.drain()

    async with posted(much) as body:
        before = -1
        while written > before:  # until nobody takes anything any more
            before = written
            await anyio.sleep(0.2)
        assert before < parts
        assert await whole(body) == part * parts


@pytest.mark.parametrize("is_known", [True, False], ids=["ours", "aiohttp's"])
async def test_very_many_chunks_that_come_before_anybody_reads_are_all_read(
    is_known: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bodies, "_IS_KNOWN", is_known)
    parts = 100_000

    async def much(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(b"x") * parts + END)
        await writer.drain()

    async with posted(much, patience=10) as body:
        assert await whole(body) == b"x" * parts


async def test_a_connection_that_breaks_is_an_error_behind_what_came():
    async def half(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(b"half") + b"100\r\nrest")
        await writer.drain()

    async with posted(half) as body:
        pieces = aiter(body)
        found = await anext(pieces)
        while not found.endswith(b"rest"):
            found += await anext(pieces)
        assert found == b"halfrest"
        with pytest.raises(aiohttp.ClientPayloadError):
            await anext(pieces)


async def test_a_provider_that_says_nothing_is_given_up():
    over = anyio.Event()

    async def silent(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(b"first"))
        await writer.drain()
        await over.wait()

    async with posted(silent, patience=0.1) as body:
        pieces = aiter(body)
        assert await anext(pieces) == b"first"
        with pytest.raises(TimeoutError):
            await anext(pieces)
        over.set()


# --- pieces that are taken where they arrive --------------------------------------------------------------------


async def test_pieces_are_taken_in_order_while_nobody_is_woken():
    async with told() as (provider, body):
        rest = [chunk(b"b"), chunk(b"c"), END]

        def go_on() -> bool:
            provider.send(rest.pop(0))
            return True

        body.take = taker = Taker(go_on)
        provider.send(chunk(b"a"))
        assert await whole(body) == b""
        assert taker.pieces == [b"a", b"b", b"c"]


async def test_pieces_are_taken_in_the_context_of_whoever_waits():
    whose: ContextVar[str] = ContextVar("whose", default="who opened the connection")
    seen: list[str] = []

    async def read(body: PostedBody) -> None:
        whose.set("who waits")
        await whole(body)

    def take() -> bool:
        seen.append(whose.get())
        return True

    async with told() as (provider, body):
        body.take = Taker(take)
        provider.send(chunk(b"a"), chunk(b"b"), END)
        await asyncio.create_task(read(body))  # noqa: TID251 — a task with a context of its own
    assert set(seen) == {"who waits"}


async def test_what_comes_with_one_read_is_taken_together():
    async with told() as (provider, body):
        body.take = taker = Taker()
        provider.send(b"".join(map(chunk, (b"a", b"b", b"c"))) + END)
        assert await whole(body) == b""
        assert taker.pieces == [b"abc"]


async def test_a_taken_body_is_whole_wherever_it_is_split():
    said = [b"data: 1\n\n", b"data: \xe2\x82\xac\n\n", b"data: [DONE]\n\n"]
    wire = b"".join(map(chunk, said)) + END
    for at in range(1, len(wire)):
        async with told() as (provider, body):
            body.take = taker = Taker()
            provider.send(wire[:at], wire[at:])
            read = await whole(body)
            assert b"".join(taker.pieces) + read == b"".join(said)
            assert taker.pieces


async def test_a_body_that_comes_byte_by_byte_is_taken_byte_by_byte():
    said = b"data: 1\n\n"
    wire = [bytes([byte]) for each in said for byte in chunk(bytes([each]))] + [END]
    async with told() as (provider, body):
        body.take = taker = Taker()
        provider.send(*wire)
        assert await whole(body) == b""
        assert b"".join(taker.pieces) == said
        assert len(taker.pieces) > 1


async def test_who_takes_may_end_the_wait_and_go_on_with_the_next():
    async with told() as (provider, body):
        body.take = taker = Taker(lambda: False)
        for piece in (b"a", b"b"):
            provider.send(chunk(piece))
            assert await anext(body) == b""
        provider.send(chunk(b"c"))
        body.take = None
        assert await anext(body) == b"c"
        body.take = taker
        provider.send(chunk(b"d") + END)
        assert await anext(body) == b""
        assert await whole(body) == b""
        assert taker.pieces == [b"a", b"b", b"d"]


@pytest.mark.parametrize("error", [ValueError("no"), OSError("no"), KeyError("no")], ids=repr)
async def test_what_is_raised_by_whoever_takes_ends_the_wait(error: Exception):
    async with told() as (provider, body):

        def fail() -> bool:
            raise error

        body.take = taker = Taker(fail)
        provider.send(chunk(b"a"))
        with pytest.raises(type(error)) as raised:
            await anext(body)
        assert raised.value is error
        body.take = None
        provider.send(chunk(b"b") + END)
        assert await whole(body) == b"b"
        assert taker.pieces == [b"a"]


@pytest.mark.parametrize("how", ["closed", "reset"])
@pytest.mark.parametrize("sent", [[], [b"a"], [b"a", b"b"]], ids=len)
@pytest.mark.parametrize("takes_more", [True, False])
async def test_a_connection_that_breaks_is_an_error_behind_what_was_taken(
    how: str, sent: list[bytes], takes_more: bool
):
    async with told() as (provider, body):
        leave = provider.close if how == "closed" else provider.reset
        left = [*map(chunk, sent)]

        def go_on() -> bool:
            if left:
                provider.send(left.pop(0))
            else:
                leave()
            return takes_more

        body.take = taker = Taker(go_on)
        go_on()
        for _ in sent if not takes_more else ():
            assert await anext(body) == b""
        with pytest.raises(aiohttp.ClientError):
            await anext(body)
        assert taker.pieces == sent
        with pytest.raises(aiohttp.ClientError):  # and so it stays
            await anext(body)


async def test_a_connection_that_breaks_with_the_last_piece_is_an_error_behind_it():
    async with told() as (provider, body):
        body.take = taker = Taker()
        provider.send(chunk(b"half") + b"100\r\nrest")
        provider.close()
        with pytest.raises(aiohttp.ClientPayloadError):
            await whole(body)
        assert b"".join(taker.pieces) == b"halfrest"


@pytest.mark.parametrize("sent", [[], [b"a"]], ids=len)
async def test_a_provider_that_says_nothing_more_is_given_up_where_pieces_are_taken(sent: list[bytes]):
    async with told(patience=0.1) as (provider, body):
        body.take = taker = Taker()
        provider.send(*map(chunk, sent))
        with pytest.raises(TimeoutError):
            await whole(body)
        assert taker.pieces == sent


class Clock:
    """The event loop's, put forward by `later` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self.later = 0.0
        monkeypatch.setattr(self._loop, "time", lambda: self._time() + self.later)

    async def timers(self) -> None:
        """Until those that are due have run."""
        due = anyio.Event()
        self._loop.call_later(0, due.set)
        await due.wait()


async def test_each_piece_that_is_taken_begins_the_wait_anew(monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    async with told(patience=30) as (provider, body):

        def go_on() -> bool:
            clock.later += 20
            provider.send(chunk(b"x") if clock.later < 100 else END)
            return True

        body.take = taker = Taker(go_on)
        go_on()
        assert await whole(body) == b""
        assert len(taker.pieces) == 4


async def test_what_is_done_between_two_waits_does_not_count_where_the_first_was_ended(
    monkeypatch: pytest.MonkeyPatch,
):
    clock = Clock(monkeypatch)
    async with told(patience=30) as (provider, body):
        body.take = Taker(lambda: False)
        provider.send(chunk(b"a"))
        assert await anext(body) == b""
        clock.later = 40
        await clock.timers()
        provider.send(chunk(b"b") + END)
        assert await anext(body) == b""
        assert await whole(body) == b""


@pytest.mark.parametrize("takes_more", [True, False])
async def test_whoever_waits_may_be_cancelled_at_any_moment_and_nothing_is_lost(takes_more: bool):
    pieces = [b"a", b"b", b"c"]
    taken_before: set[int] = set()
    for moment in range(16):  # rounds of the event loop: a piece is there after some
        async with told() as (provider, body):
            body.take = taker = Taker(lambda: takes_more)
            read: list[bytes] = []
            taken = 0

            async def listen(body: PostedBody = body, read: list[bytes] = read) -> None:
                async for piece in body:
                    read.append(piece)  # noqa: PERF401 — as far as it comes

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listen)
                await anyio.wait_all_tasks_blocked()
                provider.send(*map(chunk, pieces))
                for _ in range(moment):
                    await anyio.lowlevel.checkpoint()
                taken = len(taker.pieces)
                tasks.cancel_scope.cancel()
            if takes_more:  # else the wait may be over, and another one have begun
                assert len(taker.pieces) == taken
            taken = len(taker.pieces)
            taken_before.add(taken)
            provider.send(END)
            body.take = None
            read.append(await whole(body))
            assert len(taker.pieces) == taken
            assert b"".join([*taker.pieces, *read]) == b"".join(pieces)
    assert 0 in taken_before
    assert max(taken_before) > 0


@pytest.mark.parametrize("takes_more", [True, False])
@pytest.mark.parametrize("parts", [1, 32])
async def test_a_large_body_is_taken_whole(parts: int, takes_more: bool):
    # Compressed, one read of it is far more than aiohttp keeps: it holds up what it has read, time and again.
    part = bytes(range(256)) * (64 * 1024 // parts)
    packed = zlib.compressobj(wbits=31)
    sent = [packed.compress(part) + packed.flush(zlib.Z_SYNC_FLUSH) for _ in range(parts)]
    async with told(head=COMPRESSED) as (provider, body):
        body.take = taker = Taker(lambda: takes_more)
        provider.send(b"".join(map(chunk, [*sent, packed.flush()])) + END)
        read = 0
        async for piece in body:
            if piece:  # was there before it was waited for
                taker.pieces.append(piece)
                read += 1
        assert b"".join(taker.pieces) == part * parts
        assert len(taker.pieces) > 10
        assert bool(read) is not takes_more


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize(
    "sent", [b"no chunk\r\n", chunk(b"a") + b"zz\r\n"], ids=["at once", "behind a piece"]
)
async def test_what_is_not_http_is_an_error_at_once(takes: bool, sent: bytes):
    async with told() as (provider, body):
        taker = Taker()
        body.take = taker if takes else None
        provider.send(sent)

        async def read() -> None:
            async for piece in body:
                taker.pieces.append(piece)

        with pytest.raises(aiohttp.ClientPayloadError, match="not HTTP"):
            await read()
        assert b"".join(taker.pieces) == (b"a" if chunk(b"a") in sent else b"")


async def test_what_came_before_a_part_that_cannot_be_read_is_taken_and_then_it_is_an_error():
    packed = zlib.compressobj(wbits=31)
    good = packed.compress(b"good") + packed.flush(zlib.Z_SYNC_FLUSH)
    async with told(head=COMPRESSED) as (provider, body):
        body.take = taker = Taker()
        provider.send(chunk(good) + chunk(b"\xff" * 64) + END)
        with pytest.raises(aiohttp.ClientPayloadError):
            await whole(body)
        assert taker.pieces == [b"good"]


async def test_a_body_that_is_read_as_aiohttp_likes_is_read_whole_by_whoever_waits(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(bodies, "_IS_KNOWN", False)
    async with told() as (provider, body):
        body.take = taker = Taker()
        provider.send(chunk(b"a") + chunk(b"b") + END)
        assert await whole(body) == b"ab"
        assert not taker.pieces


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.binary(min_size=1, max_size=4), max_size=6),
    cuts=st.lists(st.integers(0, 80), max_size=8),
    more=st.lists(st.booleans(), min_size=1, max_size=4),
)
async def test_what_is_taken_and_what_is_read_are_the_body_in_order(
    pieces: list[bytes], cuts: list[int], more: list[bool]
):
    wire = b"".join(map(chunk, pieces)) + END
    ends = sorted({0, len(wire), *(min(cut, len(wire)) for cut in cuts)})
    found: list[bytes] = []

    def take(data: bytes) -> bool:
        assert data
        found.append(data)
        return more[len(found) % len(more)]

    async with told() as (provider, body):
        body.take = take
        provider.send(*(wire[begin:end] for begin, end in itertools.pairwise(ends)))
        async for piece in body:
            found.append(piece)  # noqa: PERF401 — in the order in which it comes
    assert b"".join(found) == b"".join(pieces)

"""Response bodies over real connections."""

import asyncio
import itertools
import zlib

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.http_server import (
    CHUNKED,
    END,
    GZIPPED,
    chunk,
    response_body,
    scripted_body,
    sends,
    with_length,
)
from tailrace.wrappers.http import Headers, ReadTimeout, ResponseBody, TransportError

EVENTS = [b"data: 1\n\n", b"data: \xe2\x82\xac\n\n", b"data: [DONE]\n\n"]


async def next_piece(body: ResponseBody) -> bytes:
    while (data := body.read_nowait()) is None:
        await body.arrival()
    return data


async def until_error(body: ResponseBody) -> tuple[bytes, OSError | None]:
    """The received data and the error that ends it."""
    found = b""
    try:
        async for piece in body:
            found += piece
    except OSError as error:
        return found, error
    return found, None


# --- framing -----------------------------------------------------------------------------------------------------


async def test_a_body_is_complete_wherever_it_is_cut():
    wire = b"".join(map(chunk, EVENTS)) + END
    for at in range(1, len(wire)):
        async with scripted_body() as (script, body):
            script.send(wire[:at], wire[at:])
            assert await body.read() == b"".join(EVENTS)
            assert body.read_nowait() == b""


async def test_a_body_is_complete_byte_by_byte():
    wire = b"".join(map(chunk, EVENTS)) + END
    async with scripted_body() as (script, body):
        script.send(*(wire[at : at + 1] for at in range(len(wire))))
        assert await body.read() == b"".join(EVENTS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    pieces=st.lists(st.binary(min_size=1, max_size=4), max_size=6),
    cuts=st.lists(st.integers(0, 80), max_size=8),
)
async def test_pieces_are_the_body_in_order(pieces: list[bytes], cuts: list[int]):
    wire = b"".join(map(chunk, pieces)) + END
    ends = sorted({0, len(wire), *(min(cut, len(wire)) for cut in cuts)})
    async with scripted_body() as (script, body):
        script.send(*(wire[begin:end] for begin, end in itertools.pairwise(ends)))
        assert await body.read() == b"".join(pieces)


async def test_what_arrives_with_one_read_is_one_piece():
    async with scripted_body() as (script, body):
        script.send(b"".join(map(chunk, (b"a", b"b", b"c"))) + END)
        assert await next_piece(body) == b"abc"
        assert await next_piece(body) == b""


async def test_very_many_chunks_that_arrive_before_they_are_read_are_all_read():
    async with response_body(sends(CHUNKED + chunk(b"x") * 100_000 + END)) as body:
        assert await body.read() == b"x" * 100_000


@pytest.mark.parametrize(
    "wire",
    [
        with_length(b"hello"),
        CHUNKED + chunk(b"hel") + b"2;name=value\r\nlo\r\n0\r\nX-Trailer: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\nhello",
        b"HTTP/1.1 200 OK\ncontent-length: 5\n\nhello",
        CHUNKED + b"5 \r\nhello\r\n0\r\n\r\n",
    ],
    ids=[
        "length",
        "chunks with a trailer",
        "until the end",
        "1.0",
        "no encoding",
        "bare line feeds",
        "spaces",
    ],
)
async def test_every_framing_of_a_body_is_read(wire: bytes):
    async with response_body(sends(wire)) as body:
        assert await body.read() == b"hello"


# --- ends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["closed", "reset"])
@pytest.mark.parametrize("before", [[], [b"a"], [b"a", b"b"]], ids=len)
@pytest.mark.parametrize("head", [CHUNKED, with_length(b"")[:-5] + b"9\r\n\r\n"], ids=["chunks", "length"])
async def test_a_connection_that_breaks_is_an_error_after_what_arrived(
    how: str, before: list[bytes], head: bytes
):
    async with scripted_body(head=head) as (script, body):
        found = b""
        for piece in before:
            script.send(chunk(piece) if head is CHUNKED else piece)
            found += await next_piece(body)
        script.close() if how == "closed" else script.reset()
        with pytest.raises(TransportError, match="in the middle of the response"):
            await next_piece(body)
        with pytest.raises(TransportError):  # the state is final
            await next_piece(body)
        assert found == b"".join(before)


async def test_a_connection_that_breaks_with_the_last_piece_is_an_error_after_it():
    async with scripted_body() as (script, body):
        script.send(chunk(b"half") + b"100\r\nrest")
        script.close()
        found = await next_piece(body)
        while found != b"halfrest":
            found += await next_piece(body)
        with pytest.raises(TransportError):
            await next_piece(body)


async def test_a_reset_of_a_body_without_a_length_is_not_its_end():
    async with scripted_body(head=b"HTTP/1.1 200 OK\r\n\r\n") as (script, body):
        script.send(b"half")
        assert await next_piece(body) == b"half"
        script.reset()
        with pytest.raises(TransportError):
            await next_piece(body)


@pytest.mark.parametrize("wire", [b"no chunk\r\n", chunk(b"a") + b"zz\r\n"], ids=["at once", "after a piece"])
async def test_what_is_not_http_is_an_error_at_once(wire: bytes):
    async with scripted_body() as (script, body):
        script.send(wire)
        found, error = await until_error(body)
        assert "not HTTP" in str(error)
        assert found == (b"a" if chunk(b"a") in wire else b"")


@pytest.mark.parametrize(
    "wire",
    [
        CHUNKED + chunk(b"a") + END + b"HTTP/1.1 200 OK\r\n",
        with_length(b"a") + b"more",
        with_length(b"a", "200 OK", "connection: close") + b"more",
    ],
    ids=["a response", "garbage", "on a connection that is closed"],
)
async def test_bytes_after_the_end_are_an_error_after_the_body(wire: bytes):
    async with response_body(sends(wire)) as body:
        assert await next_piece(body) == b"a"
        with pytest.raises(TransportError, match="after the end"):
            await next_piece(body)


async def test_a_line_break_after_the_end_is_no_error():
    async with response_body(sends(with_length(b"a") + b"\r\n")) as body:
        assert await body.read() == b"a"


async def test_trailers_and_extensions_are_bounded():
    for endless in (b"0\r\nx: " + b"y" * 100_000, b"1;" + b"y" * 100_000):
        async with scripted_body() as (script, body):
            script.send(chunk(b"a"))
            assert await next_piece(body) == b"a"
            script.send(endless)
            with pytest.raises(TransportError, match="bytes of headers"):
                await next_piece(body)


# --- read timeouts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [[], [b"a"]], ids=len)
async def test_a_server_that_sends_nothing_more_is_an_error(before: list[bytes]):
    async with scripted_body(read_timeout=0.5) as (script, body):
        script.send(*map(chunk, before))
        for piece in before:
            assert await next_piece(body) == piece
        with pytest.raises(ReadTimeout, match=r"nothing for 0\.5 seconds"):
            await next_piece(body)


async def test_each_read_restarts_the_timeout():
    async with scripted_body(read_timeout=1.5) as (script, body):
        for _ in range(4):
            await anyio.sleep(0.5)
            script.send(chunk(b"x"))
            assert await next_piece(body) == b"x"
        script.send(END)
        assert await body.read() == b""


async def test_the_time_between_two_waits_does_not_count():
    async with scripted_body(read_timeout=0.5) as (script, body):
        script.send(chunk(b"a"))
        assert await next_piece(body) == b"a"
        await anyio.sleep(0.8)
        script.send(chunk(b"b") + END)
        assert await body.read() == b"b"


async def test_a_reader_that_left_does_not_wait():
    async with scripted_body(read_timeout=0.5) as (script, body):
        with anyio.move_on_after(0.01):
            await next_piece(body)
        await anyio.sleep(0.8)
        script.send(chunk(b"b") + END)
        assert await body.read() == b"b"


# --- cancelling and closing --------------------------------------------------------------------------------------


async def test_a_reader_may_be_cancelled_at_any_moment_and_nothing_is_lost():
    pieces = [b"a", b"b", b"c"]
    read_before: set[int] = set()
    for moment in range(16):  # event-loop ticks, in some of which a piece arrives
        async with scripted_body() as (script, body):
            found: list[bytes] = []

            async def listen(body: ResponseBody = body, found: list[bytes] = found) -> None:
                async for piece in body:
                    found.append(piece)  # noqa: PERF401 — data before the error counts

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listen)
                await anyio.wait_all_tasks_blocked()
                script.send(*map(chunk, pieces))
                for _ in range(moment):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            read_before.add(len(found))
            script.send(END)
            assert b"".join([*found, await body.read()]) == b"".join(pieces)
    assert 0 in read_before
    assert max(read_before) > 0


async def test_closing_ends_the_connection_and_drops_what_was_not_read():
    async with scripted_body() as (script, body):
        script.send(chunk(b"a"))
        await body.arrival()
        body.close()
        with pytest.raises(TransportError, match="was closed"):
            body.read_nowait()


# --- backpressure ------------------------------------------------------------------------------------------------


async def test_a_slow_reader_stops_the_server_and_loses_nothing():
    parts = 200
    part = bytes(range(256)) * 256
    written = 0

    async def much(writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(CHUNKED)
        for _ in range(parts):
            writer.write(chunk(part))
            await writer.drain()
            written += 1
        writer.write(END)
        await writer.drain()

    async with response_body(much) as body:
        before = -1
        while written > before:  # until reading has paused
            before = written
            await anyio.sleep(0.2)
        assert before < parts
        assert body.received < len(part) * parts / 4
        assert await body.read() == part * parts


# --- compression -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 32])
async def test_a_large_compressed_body_is_read_in_bounded_pieces(parts: int):
    part = bytes(range(256)) * (64 * 1024 // parts)
    packed = zlib.compressobj(wbits=31)
    pieces = [packed.compress(part) + packed.flush(zlib.Z_SYNC_FLUSH) for _ in range(parts)]
    async with scripted_body(head=GZIPPED) as (script, body):
        script.send(b"".join(map(chunk, [*pieces, packed.flush()])) + END)
        found = [piece async for piece in body]
        assert b"".join(found) == part * parts
        assert max(map(len, found)) <= 32 * 1024


async def test_events_of_a_compressed_body_are_read_as_they_arrive():
    packed = zlib.compressobj(wbits=31)
    async with scripted_body(head=GZIPPED) as (script, body):
        for event in EVENTS:
            script.send(chunk(packed.compress(event) + packed.flush(zlib.Z_SYNC_FLUSH)))
            assert await next_piece(body) == event
        script.send(chunk(packed.flush()) + END)
        assert await body.read() == b""


async def test_a_bomb_is_read_no_further_than_requested():
    packed = zlib.compressobj(9, wbits=31)
    bomb = b"".join([packed.compress(bytes(1024 * 1024)) for _ in range(64)]) + packed.flush()
    async with response_body(sends(GZIPPED + chunk(bomb) + END)) as body:
        for _ in range(100):
            assert 0 < len(await next_piece(body)) <= 32 * 1024


async def test_what_precedes_a_piece_that_cannot_be_decompressed_is_read_and_then_it_is_an_error():
    packed = zlib.compressobj(wbits=31)
    good = packed.compress(b"good") + packed.flush(zlib.Z_SYNC_FLUSH)
    async with scripted_body(head=GZIPPED) as (script, body):
        script.send(chunk(good) + chunk(b"\xff" * 64) + END)
        assert await next_piece(body) == b"good"
        for _ in range(2):
            with pytest.raises(TransportError, match="not valid gzip"):
                await next_piece(body)


async def test_compressed_data_without_its_end_is_an_error():
    packed = zlib.compressobj(wbits=31)
    half = packed.compress(b"half") + packed.flush(zlib.Z_SYNC_FLUSH)
    async with response_body(sends(GZIPPED + chunk(half) + END)) as body:
        assert await next_piece(body) == b"half"
        with pytest.raises(TransportError, match="in the middle of its gzip data"):
            await next_piece(body)


# --- headers -----------------------------------------------------------------------------------------------------


def test_names_of_headers_are_case_insensitive_and_the_first_field_counts():
    headers = Headers([(b"Retry-After", b"1"), (b"retry-after", b"2"), (b"X-Name", b"\xc3\xbc\xff")])
    assert (headers["RETRY-AFTER"], headers.get("none"), headers["x-name"]) == ("1", None, "ü\ufffd")
    assert list(headers) == ["retry-after", "x-name"]
    assert len(headers.fields) == 3

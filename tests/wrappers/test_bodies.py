"""The bodies of answers, read from a real connection: whole, however they are cut up."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import anyio
import pytest

from tailrace.wrappers import bodies
from tailrace.wrappers.bodies import PostedBody

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@asynccontextmanager
async def posted(answer: Answer, patience: float = 30) -> AsyncGenerator[PostedBody]:
    """The body of an answer to a request; the client is aiohttp's, with its read timeout as models have it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            await answer(writer)
        except ConnectionError:
            pass  # the client left
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/") as response,
    ):
        body = PostedBody(response, patience)
        try:
            yield body
        finally:
            body.close()


async def whole(body: PostedBody) -> bytes:
    return b"".join([piece async for piece in body])


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

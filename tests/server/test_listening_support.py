"""The servers of the tests close every connection, whenever it was opened."""

import asyncio
import gc
import socket
import warnings
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from anyio.lowlevel import checkpoint
from fastapi import FastAPI

from support.http_server import raw_server
from support.live_server import serving
from support.proxy import CuttingProxy
from support.upstream import ScriptedUpstream


@asynccontextmanager
async def application() -> AsyncGenerator[int]:
    async with serving(FastAPI()) as url:
        yield int(url.rpartition(":")[2])


@asynccontextmanager
async def upstream() -> AsyncGenerator[int]:
    async with ScriptedUpstream([b"x"]) as running:
        yield int(running.base_url.removesuffix("/v1").rpartition(":")[2])


@asynccontextmanager
async def raw() -> AsyncGenerator[int]:
    async with raw_server(lambda _: checkpoint()) as running:
        yield running.port


@asynccontextmanager
async def proxy() -> AsyncGenerator[int]:
    async with raw() as target, CuttingProxy(f"http://127.0.0.1:{target}") as running:
        yield int(running.url.rpartition(":")[2])


@pytest.mark.parametrize("iterations", range(8))
@pytest.mark.parametrize("server", [application, upstream, raw, proxy])
def test_a_connection_that_arrives_during_the_shutdown_is_closed(
    server: Callable[[], AbstractAsyncContextManager[int]], iterations: int
) -> None:
    async def connect_and_stop() -> None:
        async with server() as port:
            client.connect_ex(("127.0.0.1", port))
            for _ in range(iterations):
                await checkpoint()

    with socket.socket() as client, warnings.catch_warnings(record=True) as caught:
        client.setblocking(False)
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(connect_and_stop())
        gc.collect()
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []

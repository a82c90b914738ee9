"""Refused requests leave nothing in memory, with or without authentication."""

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import grpc.aio
import psutil
import pytest
from a2a.types import a2a_pb2, a2a_pb2_grpc

from support.grpc_agents import grpc_address
from support.processes import Served, served
from tailrace.server.observability.query_secrets import MAX_QUERY_BYTES

MEGABYTE = 2**20
MOST_GROWTH = 50 * MEGABYTE
LARGE = 7_500_000
KEY = {"X-API-Key": "key-of-alice"}


@asynccontextmanager
async def running(log: Path, *options: str) -> AsyncGenerator[tuple[Served, psutil.Process]]:
    given = ("--model", "ollama:none", "--store", "sqlite://", *options)
    with served(log, *given, TAILRACE_CALLER_KEYS="alice:key-of-alice") as server:
        await server.ready()
        yield server, psutil.Process(server.process.pid)


async def settled(process: psutil.Process, before: int) -> int:
    """Return the growth of a process's memory after it has released unused memory."""
    with anyio.move_on_after(10):
        while process.memory_info().rss - before > MOST_GROWTH:  # noqa: ASYNC110 — it is another process
            await anyio.sleep(0.1)
    return process.memory_info().rss - before


async def test_hosts_are_not_remembered(tmp_path: Path) -> None:
    async with running(tmp_path / "log") as (server, process), aiohttp.ClientSession() as http:
        before = process.memory_info().rss
        for number in range(600):
            host = f"{number:0200000d}"
            async with http.get(f"{server.url}/tasks", headers={"Host": host}) as response:
                assert response.status == 401
        assert await settled(process, before) < MOST_GROWTH


async def test_bodies_of_refused_requests_are_freed(tmp_path: Path) -> None:
    body = b'{"message": {"messageId": 5, "role": "ROLE_USER", "parts": [{"text": "%s"}]}}' % (b"a" * LARGE)
    headers = {**KEY, "Content-Type": "application/json"}
    async with running(tmp_path / "log") as (server, process), aiohttp.ClientSession() as http:
        before = process.memory_info().rss
        for _ in range(20):
            async with http.post(
                f"{server.url}/message:send", data=BytesIO(body), headers=headers
            ) as response:
                assert response.status == 400
        assert await settled(process, before) < 2 * MOST_GROWTH


async def test_bodies_of_refused_calls_of_grpc_are_freed(tmp_path: Path) -> None:
    request = a2a_pb2.SendMessageRequest()
    request.message.message_id = "m"
    request.message.parts.add().raw = b"x" * LARGE
    options = [("grpc.max_send_message_length", 2 * LARGE)]
    async with running(tmp_path / "log", "--grpc-port", "0") as (server, process):
        address = await grpc_address(server.url)
        before = process.memory_info().rss
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            stub: Any = a2a_pb2_grpc.A2AServiceStub(channel)  # its methods have no types
            for _ in range(20):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.SendMessage(request)
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert await settled(process, before) < 2 * MOST_GROWTH


_THREADS = """
import threading
import psutil
from tailrace.wrappers.concurrency.worker_thread import limit_unused_memory, release_memory

limit_unused_memory()
large = bytearray(30_000_000)
del large
before = psutil.Process().memory_info().rss
barrier = threading.Barrier(8)


def work():
    barrier.wait()
    blocks = [bytearray(900_000) for _ in range(50)]
    blocks.clear()
    barrier.wait()


threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
release_memory()
print(psutil.Process().memory_info().rss - before)
"""


def test_threads_keep_no_memory_that_large_requests_freed() -> None:
    ran = subprocess.run([sys.executable, "-c", _THREADS], capture_output=True, check=True, text=True)
    assert int(ran.stdout) < MOST_GROWTH


@pytest.mark.parametrize(
    "path", ["/tasks", "/v1/tasks", "/v1/models", "/.well-known/agent-card.json", "/nothing"]
)
async def test_a_long_query_is_refused_before_it_is_parsed(tmp_path: Path, path: str) -> None:
    async with running(tmp_path / "log") as (server, _), aiohttp.ClientSession() as http:
        query = "=&" * MAX_QUERY_BYTES
        async with http.get(f"{server.url}{path}?{query}") as response:
            assert response.status == (404 if path == "/nothing" else 414)
        async with http.get(f"{server.url}{path}?{query[:1000]}", headers=KEY) as response:
            assert response.status in (200, 400, 404)


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS"])
async def test_a_path_with_a_slash_is_not_redirected_to_the_host_of_the_request(
    tmp_path: Path, method: str
) -> None:
    async with running(tmp_path / "log") as (server, _), aiohttp.ClientSession() as http:
        foreign = {"Host": "evil.example"}
        async with http.request(
            method, f"{server.url}/tasks/", headers=foreign, allow_redirects=False
        ) as response:
            assert response.status >= 400
            assert "location" not in response.headers

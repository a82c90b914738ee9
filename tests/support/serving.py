"""A real server for tests: uvicorn on a free loopback port, in the test's own event loop.

It ends as soon as there is nothing left to wait for. Uvicorn by itself looks ten times a second whether it is to end,
and then sleeps as long at least once more; in most tests that is many times what they take themselves.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import uvicorn


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = anyio.Event()
        self.stopping = anyio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)  # the headers of every answer
        await self.stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # What uvicorn does, without its pauses.
        for listening in self.servers:
            listening.close()
        for listener in sockets or ():
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with anyio.move_on_after(self.config.timeout_graceful_shutdown) as patience:
            while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
                await anyio.sleep(0.001)  # neither can be waited on
        if patience.cancelled_caught:
            for task in self.server_state.tasks:
                task.cancel()
        await self.lifespan.shutdown()


@asynccontextmanager
async def serving(app: Any) -> AsyncGenerator[str]:
    """Serve an ASGI application while the block runs; gives its base URL, ``http://127.0.0.1:PORT``."""
    listener = socket.create_server(("127.0.0.1", 0))
    # Else an answer of two writes waits 40 ms for the client's system to say that the first one came.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=5)
    server = _Server(config)
    # Not serve(): that one takes over the signals, which are the test runner's. And a bare task instead of a group:
    # pytest-asyncio ends a fixture in another task than it began it in, which a group does not allow.
    running = asyncio.create_task(server._serve([listener]))  # noqa: TID251  # pyright: ignore[reportPrivateUsage]
    ready = asyncio.create_task(server.ready.wait())  # noqa: TID251
    try:
        await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
            raise RuntimeError("the server ended while it was starting; its log says why")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ready.cancel()
        server.should_exit = True
        server.stopping.set()
        await running
        listener.close()

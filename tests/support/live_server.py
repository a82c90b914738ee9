"""A real server for tests: uvicorn on a free loopback port, in the test's own event loop.

The server shuts down without uvicorn's pauses, which would take longer than most tests.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import uvicorn

from support.server_shutdown import stop_listening


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = anyio.Event()
        self.stopping = anyio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)  # the headers of every response
        await self.stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Uvicorn's shutdown without its pauses.
        for listening in self.servers:
            await stop_listening(listening)
        for listener in sockets or ():
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with anyio.move_on_after(self.config.timeout_graceful_shutdown) as patience:
            while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
                await anyio.sleep(0.001)  # there is no event to wait for
        if patience.cancelled_caught:
            for task in self.server_state.tasks:
                task.cancel()
        await self.lifespan.shutdown()


@asynccontextmanager
async def serving(app: Any, host: str = "127.0.0.1", **options: Any) -> AsyncGenerator[str]:
    """Serve an ASGI application until the block ends. Yield its base URL, ``http://127.0.0.1:PORT``.

    Args:
        app: The application.
        host: The address to listen on.
        options: Options of uvicorn.
    """
    listener = socket.create_server((host, 0))
    # Otherwise, a second write waits 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    options = {"log_level": "warning", "lifespan": "on", "timeout_graceful_shutdown": 5, **options}
    config = uvicorn.Config(app, **options)
    server = _Server(config)
    # `serve` would replace the signal handlers of the test runner. pytest-asyncio starts and finishes a fixture in different
    # asyncio tasks, which a task group does not permit.
    running = asyncio.create_task(server._serve([listener]))  # noqa: TID251  # pyright: ignore[reportPrivateUsage]
    ready = asyncio.create_task(server.ready.wait())  # noqa: TID251
    try:
        await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
            raise RuntimeError("the server ended during startup; see its log")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ready.cancel()
        server.should_exit = True
        server.stopping.set()
        await running
        listener.close()

"""A real server for tests: uvicorn on a free loopback port, in the test's own event loop."""

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

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@asynccontextmanager
async def serving(app: Any) -> AsyncGenerator[str]:
    """Serve an ASGI application while the block runs; gives its base URL, ``http://127.0.0.1:PORT``."""
    listener = socket.create_server(("127.0.0.1", 0))
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
        await running
        listener.close()

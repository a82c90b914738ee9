"""An ASGI application served inside another program: its signals and its logging stay that program's own."""

import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import anyio
import uvicorn
from anyio.abc import TaskStatus
from starlette.applications import Starlette

STOP_TIMEOUT = 1
"""Seconds that responses under way have to end once the application has stopped."""


@asynccontextmanager
async def serving(app: Starlette, listener: socket.socket) -> AsyncGenerator[None]:
    """Serve an application on a listening socket while the block runs.

    On leaving, the application's lifespan ends first, so that streams under way may still say how they end; then
    the server, which closes the socket. Cancelling does the same: neither is cut short, both are bounded.

    Args:
        app: The application; what its lifespan raises at its start is raised here.
        listener: A bound, listening socket; closed at the end.
    """
    stop = anyio.Event()
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            await tasks.start(_serve, app, listener, stop)
            yield
        except Exception as error:
            failure = error  # raised below: the task group would wrap the caller's error in a group
        finally:
            stop.set()
    if failure is not None:
        raise failure


class _Server(uvicorn.Server):
    """A server that reports when it listens, and handles no signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = anyio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


async def _serve(
    app: Starlette, listener: socket.socket, stop: anyio.Event, *, task_status: TaskStatus[None]
) -> None:
    config = uvicorn.Config(
        app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=STOP_TIMEOUT
    )
    server = _Server(config)
    # asyncio sets it on no connection of such a listener; a small write would wait, for 40 ms, until the client's system
    # has said that the one before it came.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    failure: Exception | None = None
    # Shielded: cancelled in the middle, uvicorn would leave its sockets open and the application its work undone.
    with anyio.CancelScope(shield=True), listener:
        async with anyio.create_task_group() as tasks:
            try:
                async with app.router.lifespan_context(app):
                    tasks.start_soon(server.serve, [listener])
                    await server.ready.wait()
                    task_status.started()
                    await stop.wait()
            except Exception as error:
                failure = error
            finally:
                server.should_exit = True
    if failure is not None:
        raise failure

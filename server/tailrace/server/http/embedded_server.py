"""Serves an ASGI application inside another program. Its signal handlers and logging do not change."""

import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import anyio
import uvicorn
from anyio.abc import TaskStatus
from starlette.applications import Starlette

STOP_TIMEOUT = 1
"""Seconds from the end of the application until running responses are aborted."""


@asynccontextmanager
async def serving(app: Starlette, listener: socket.socket) -> AsyncGenerator[None]:
    """Serve an application on a listening socket during the block.

    At the end of the block, also after a cancellation, the lifespan of the application ends first, so that open streams can send
    their last events. Then the server stops. Both steps have a time limit.

    Args:
        app: The application. If its lifespan fails at the start, the error is raised here.
        listener: A bound, listening socket.
    """
    stop = anyio.Event()
    failure: Exception | SystemExit | None = None
    async with anyio.create_task_group() as tasks:
        try:
            await tasks.start(_serve, app, listener, stop)
            yield
        except (Exception, SystemExit) as error:
            failure = error  # the task group would wrap the error in an exception group
        finally:
            stop.set()
    if failure is not None:
        raise failure


class _Server(uvicorn.Server):
    """A uvicorn server that handles no signals, and sets an event when it listens."""

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
    # Without TCP_NODELAY, a small write waits up to 40 ms for the acknowledgement of the previous write.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    failure: Exception | None = None
    # Shielded, so that the application completes its shutdown.
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

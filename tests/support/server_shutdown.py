"""Stopping a server of a test without leaving connections open."""

import asyncio

from anyio.lowlevel import checkpoint

# Iterations of the event loop from accepting a connection to the call of its handler.
_ITERATIONS = 5


async def stop_listening(server: asyncio.Server) -> None:
    """Close the listeners of a server after each accepted connection has reached its handler.

    If the server is closed before, the connection is never closed (CPython 3.11, ``Server._attach``), and its `ResourceWarning`
    fails a later test.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener)  # from here on, no connection is accepted
    for _ in range(_ITERATIONS):
        await checkpoint()
    server.close()

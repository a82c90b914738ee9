"""Stopping a server of a test without leaving connections open."""

import asyncio

from anyio.lowlevel import checkpoint

# Accept, create the transport, call the protocol, start the handler's task: one iteration of the loop each.
_ITERATIONS = 5


async def stop_listening(server: asyncio.Server) -> None:
    """Close the listeners of a server after each accepted connection has reached its handler.

    asyncio accepts a connection in one iteration of the event loop and calls its handler a few iterations later. If the
    server is closed in between, the connection is never closed (CPython 3.11, ``Server._attach``), and its
    `ResourceWarning` fails a later test.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener)  # from here on, no connection is accepted
    for _ in range(_ITERATIONS):
        await checkpoint()
    server.close()

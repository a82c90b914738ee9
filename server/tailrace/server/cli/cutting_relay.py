"""A TCP relay that closes one connection in the middle of a response, for ``tailrace demo --cut``."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Self
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, SocketAttribute, SocketStream

CUT_AFTER = 5_000
"""Number of bytes that are forwarded of the first long response."""

_LOST = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class CuttingRelay(anyio.AsyncContextManagerMixin):
    """Forwards connections to a server, and closes the connection of the first long response.

    Args:
        base_url: The base URL of the server.
        cut_after: The number of bytes of a response after which its connection is closed, once.

    Attributes:
        base_url: The base URL of the relay; empty before the context is entered.
    """

    def __init__(self, base_url: str, cut_after: int = CUT_AFTER) -> None:
        self.base_url = ""
        self._server = urlsplit(base_url)
        self._left: int | None = cut_after  # None after the cut

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        host = self._server.hostname or ""
        listener = await anyio.create_tcp_listener(local_host=host)
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, self._relay)
            port = listener.extra(SocketAttribute.local_port)  # noqa: S610 — not Django's `extra`
            self.base_url = f"http://{host}:{port}{self._server.path}"
            try:
                yield self
            finally:
                group.cancel_scope.cancel()

    async def _relay(self, client: SocketStream) -> None:
        async with client:
            with suppress(OSError):
                async with await anyio.connect_tcp(
                    self._server.hostname or "", self._server.port or 80
                ) as server:
                    async with anyio.create_task_group() as group:
                        group.start_soon(_forward, client, server)
                        await self._forward_response(server, client)
                        group.cancel_scope.cancel()

    async def _forward_response(self, server: ByteReceiveStream, client: ByteSendStream) -> None:
        received = 0
        with suppress(*_LOST):
            while True:
                data = await server.receive()
                if self._left is not None and received + len(data) >= self._left:
                    await client.send(data[: self._left - received])
                    self._left = None
                    return
                received += len(data)
                await client.send(data)


async def _forward(source: ByteReceiveStream, target: ByteSendStream) -> None:
    with suppress(*_LOST):
        while True:
            await target.send(await source.receive())

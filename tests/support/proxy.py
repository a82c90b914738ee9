"""A TCP proxy on loopback that can cut connections after a number of bytes or stop forwarding."""

import asyncio
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import anyio

from support.server_shutdown import stop_listening


class CuttingProxy:
    """Forwards bytes between clients and one server.

    Args:
        target: The server's base URL.

    Attributes:
        url: The proxy's own base URL.
        cuts: The number of connections cut so far.
        passed: The number of bytes forwarded from the server so far.
    """

    def __init__(self, target: str) -> None:
        self.url = ""
        self.cuts = 0
        self.passed = 0
        self.turn_to(target)
        self._budgets: list[int] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps = 0
        self._idle = anyio.Event()
        self._open = anyio.Event()
        self._open.set()
        self._refusing = False
        self._lost: set[asyncio.StreamWriter] = set()

    def cut_after(self, *sizes: int) -> None:
        """Cut all connections after ``sizes[0]`` bytes from the server, then after ``sizes[1]`` further bytes, and so on."""
        self._budgets = list(sizes)

    def turn_to(self, target: str) -> None:
        """Forward new connections to another server."""
        address = urlsplit(target)
        self._target = (address.hostname or "", address.port or 80)

    def cut_now(self) -> None:
        """Cut all connections."""
        self.cuts += 1
        self._cut()

    def hold(self) -> None:
        """Stop forwarding without closing connections, as in a network partition; data is queued."""
        if self._open.is_set():
            self._open = anyio.Event()

    def refuse(self) -> None:
        """Reset all connections, open and new."""
        self.cuts += 1
        self._refusing = True
        self._abort()

    def forget(self) -> None:
        """Permanently stop forwarding on the open connections without closing them, like a middlebox that loses its state."""
        self._lost |= self._writers

    def heal(self) -> None:
        """Forward everything again, including queued data."""
        self._refusing = False
        self._open.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await stop_listening(self._server)
        self.heal()
        self._refusing = True
        self._abort()
        while self._pumps:
            self._idle = anyio.Event()
            await self._idle.wait()
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._pumps += 1
        writers = {writer}
        try:
            if self._refusing:
                return
            server_reader, server_writer = await asyncio.open_connection(*self._target)
            writers.add(server_writer)
            if self._refusing:
                return
            self._writers |= writers
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pump_up, reader, server_writer)
                await self._pump_down(server_reader, writer)
                if writer not in self._lost:
                    tasks.cancel_scope.cancel()
        except OSError:
            pass  # the server is down
        finally:
            self._writers -= writers
            self._lost -= writers
            for each in writers:
                each.transport.abort()
            self._pumps -= 1
            self._idle.set()

    async def _pump_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._open.wait()
                if writer in self._lost:
                    continue
                if writer.is_closing():
                    break
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        writer.transport.abort()

    async def _pump_down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._open.wait()
                if writer in self._lost:
                    continue
                if writer.is_closing():
                    return
                left = self._budgets[0] if self._budgets else len(data)
                writer.write(data[:left])
                self.passed += min(left, len(data))
                await writer.drain()
                if self._budgets:
                    self._budgets[0] -= min(left, len(data))
                    if not self._budgets[0]:
                        self._budgets.pop(0)
                        self.cuts += 1
                        self._cut()
                        return
        except ConnectionError:
            pass

    def _cut(self) -> None:
        """Close gracefully, so that all data that was sent arrives."""
        for writer in self._writers:
            writer.close()

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

"""Webhooks of a caller that never respond exhaust neither the files of the process nor other callers' deliveries."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import SocketAttribute, SocketStream

from support.processes import served
from support.rpc import Rpc, message
from support.webhook_receiver import receiving

TASKS = 260


class Silent:
    """A server at all loopback addresses that accepts connections and never responds.

    Attributes:
        port: Its port.
        connections: The number of open connections.
    """

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Listen during the block."""
        listener = await anyio.create_tcp_listener(local_host="0.0.0.0")
        self.port = listener.listeners[0].extra(SocketAttribute.local_port)
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, self._hold)
            yield
            group.cancel_scope.cancel()

    async def _hold(self, stream: SocketStream) -> None:
        self.connections += 1
        try:
            async with stream:
                while True:
                    await stream.receive()
        except anyio.EndOfStream:
            pass
        finally:
            self.connections -= 1


async def send(rpc: Rpc, caller: str, webhook: str) -> None:
    configuration = {"returnImmediately": True, "taskPushNotificationConfig": {"url": webhook}}
    answer = await rpc.call(
        "SendMessage", {**message("hello"), "configuration": configuration}, {"x-api-key": caller}
    )
    assert "error" not in answer


async def test_silent_webhooks_of_many_hosts_leave_room_for_clients_and_other_callers(tmp_path: Path) -> None:
    """Each held a connection; with 300 of them, the server accepted no client."""
    silent = Silent()
    arguments = ("--model", "ollama:none", "--base-url", "http://127.0.0.1:1/", "--store", "sqlite://")
    environment = {"TAILRACE_CALLER_KEYS": "alice:a,bob:b", "TAILRACE_PUSH_NOTIFICATIONS": "private"}
    async with silent.running(), receiving() as webhook:
        with served(tmp_path / "log", *arguments, open_files="256", **environment) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                for number in range(TASKS):
                    host = f"127.0.{number // 200 + 1}.{number % 200 + 1}"
                    await send(rpc, "a", f"http://{host}:{silent.port}/")
                await send(rpc, "b", webhook.url)
            await webhook.until(
                lambda deliveries: any(each.event.endswith("/task") for each in deliveries), seconds=60
            )
            assert 0 < silent.connections <= 256 // 8
    assert "Too many open files" not in (tmp_path / "log").read_text()

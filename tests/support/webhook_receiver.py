"""A webhook for tests that records notifications."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
from aiohttp import web


class Delivery(NamedTuple):
    """One request to a webhook."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    raw: bytes

    @property
    def event(self) -> str:
        """The name of the notification."""
        return self.headers["X-Tailrace-Event"]

    @property
    def state(self) -> str:
        """The state in the notification, in the terms of its version."""
        update = self.body.get("task") or self.body.get("statusUpdate") or self.body
        return update["status"]["state"]


Answer = Callable[[Delivery], Awaitable[web.StreamResponse]]


async def accept(delivery: Delivery) -> web.StreamResponse:
    """Respond to a notification with success."""
    return web.Response(status=204)


class Receiver:
    """A webhook.

    Attributes:
        url: Its address.
        deliveries: The notifications so far.
        answer: The function that responds to a notification. A test can replace it.
    """

    def __init__(self) -> None:
        self.url = ""
        self.deliveries: list[Delivery] = []
        self.answer: Answer = accept
        self._changed = anyio.Event()

    @property
    def states(self) -> list[str]:
        """The states in the notifications, in order."""
        return [delivery.state for delivery in self.deliveries]

    async def until(self, holds: Callable[[list[Delivery]], bool], seconds: float = 20) -> list[Delivery]:
        """Wait for a condition on the notifications."""
        with anyio.fail_after(seconds):
            while not holds(self.deliveries):
                self._changed = anyio.Event()
                await self._changed.wait()
        return self.deliveries

    async def until_end(self) -> list[Delivery]:
        """Wait for the complete task, which is the last notification in version 1.0."""
        return await self.until(
            lambda deliveries: bool(deliveries) and deliveries[-1].event.endswith("/task")
        )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Record a request and respond as the test requires."""
        assert request.method == "POST"
        headers = {name.title(): value for name, value in request.headers.items()}
        raw = await request.read()
        delivery = Delivery(request.path_qs, headers, json.loads(raw), raw)
        self.deliveries.append(delivery)
        self._changed.set()
        return await self.answer(delivery)


@asynccontextmanager
async def receiving(port: int = 0) -> AsyncGenerator[Receiver]:
    """Run a webhook until the block ends."""
    receiver = Receiver()
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_route("*", "/{tail:.*}", receiver.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        port = runner.addresses[0][1]
        receiver.url = f"http://127.0.0.1:{port}/hook"
        yield receiver
    finally:
        await runner.cleanup()

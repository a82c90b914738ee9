"""An engine with a handler that is a function."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio

from support.engines import begin
from tailrace.server import FunctionHandler, Turn
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import HandlerFunction, Item
from tailrace.server.store.store import Store
from tailrace.streaming import StatusUpdate, TaskState

Updates = AsyncIterator[Item]


@asynccontextmanager
async def engine_with(handler: HandlerFunction, store: Store | None = None) -> AsyncGenerator[Engine]:
    engine = Engine(store or Store("sqlite://"), FunctionHandler(handler))
    engine.writer._retry_delays = (0,)  # pyright: ignore[reportPrivateUsage]
    with anyio.fail_after(10):
        async with engine.running():
            yield engine


async def question(turn: Turn) -> Updates:
    """Ask for input first; then answer and work until cancelled."""
    if turn.number == 1:
        yield StatusUpdate(TaskState.INPUT_REQUIRED)
        return
    for update in begin("x"):
        yield update
    if turn.message.parts[0].text == "work":
        await anyio.sleep_forever()

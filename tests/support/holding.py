"""Context managers for fixtures: pytest-asyncio finishes a fixture in another task than it starts it in."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


@asynccontextmanager
async def in_own_task(manager: AbstractAsyncContextManager[T]) -> AsyncGenerator[T]:
    """Enter and exit a context manager in one task, regardless of the tasks that enter and exit this one."""
    opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()  # noqa: TID251 — on the same loop as the task

    async def hold() -> None:
        async with manager as value:
            opened.set_result(value)
            await leave.wait()

    task = asyncio.create_task(hold())  # noqa: TID251 — a task group has the same restriction in fixtures
    await asyncio.wait((opened, task), return_when=asyncio.FIRST_COMPLETED)
    if not opened.done():
        opened.cancel()
        task.result()
    try:
        yield opened.result()
    finally:
        leave.set()
        await task

"""Context managers for fixtures, which pytest-asyncio starts and finishes in different asyncio tasks."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


@asynccontextmanager
async def in_own_task(manager: AbstractAsyncContextManager[T]) -> AsyncGenerator[T]:
    """Enter and exit a context manager in one asyncio task."""
    value_future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()  # noqa: TID251 — on the same loop as the task

    async def hold() -> None:
        async with manager as value:
            value_future.set_result(value)
            await leave.wait()

    task = asyncio.create_task(hold())  # noqa: TID251 — a task group has the same restriction in fixtures
    await asyncio.wait((value_future, task), return_when=asyncio.FIRST_COMPLETED)
    if not value_future.done():
        value_future.cancel()
        task.result()
    try:
        yield value_future.result()
    finally:
        leave.set()
        await task

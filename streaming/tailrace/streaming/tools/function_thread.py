"""The thread in which a sync function runs as a tool."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import anyio
import anyio.to_thread

from tailrace.wrappers.model import MAY_CANCEL

STOP_WAIT = 5.0
"""Maximum time in seconds for which the stop of a server waits for the result of a function. A thread cannot be stopped."""


async def call_in_thread(function: Callable[[], object]) -> object:
    """Call a function in a thread, and return its result.

    After a cancellation, the function continues to run in its thread, and its result is discarded. There is one exception: if the
    server stops and another process continues the turn, the result is awaited for up to `STOP_WAIT` seconds. Otherwise, the other
    process might have to request an approval to repeat the call.
    """
    future: Future[Any] = Future()

    def run() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    try:
        await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class():
        with anyio.move_on_after(STOP_WAIT, shield=True):
            if future.running() and not await MAY_CANCEL.get()():
                await asyncio.wrap_future(future)
        if not future.done():
            raise
    return future.result()

"""CPU-bound work, which runs in a worker thread if it would block the event loop."""

import asyncio
import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, cast
from weakref import WeakSet

import anyio
import anyio.to_thread
import msgspec
from anyio.lowlevel import RunVar, cancel_shielded_checkpoint
from pydantic import BaseModel

from tailrace.wrappers.messages import History

T = TypeVar("T")

MAX_INLINE_COST = 500
"""Number of values processed in the event loop itself: up to 30 ms at 20 to 60 microseconds each."""

CHARACTERS_OF_VALUE = 1024
"""Characters of a text, and bytes of a file, that take as long as one value: they are copied, escaped and stored."""

RELEASE_AFTER = 1.0
"""Seconds after large work until freed memory is returned to the operating system."""

_BYTES_OF_JSON_VALUE = 64  # on average

# Parameters of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE_BLOCK = 1024 * 1024

# Cost of a call after which the event loop runs other tasks: the steps of one request would add up.
_YIELD_COST = 100

# One worker per event loop. Because of Python's global lock, a second worker would double the loop's waiting time
# without finishing anything earlier.
_LIMITER = RunVar[anyio.CapacityLimiter]("tailrace.worker_thread")

# Event loops with a scheduled release of memory.
_RELEASING = WeakSet[asyncio.AbstractEventLoop]()


def text_cost(text: str | bytes | None) -> int:
    """Return what processing a text or a file may take, for `run_bounded`."""
    return len(text) // CHARACTERS_OF_VALUE if text else 0


def json_cost(value: object) -> int:
    """Return what processing a JSON value, or a model of one, may take, for `run_bounded`: exact up to `MAX_INLINE_COST`."""
    if not value:
        return 0
    cost, waiting = 0, [value]
    while waiting and cost <= MAX_INLINE_COST:
        each = waiting.pop()
        cost += 1
        if isinstance(each, str | bytes):
            cost += text_cost(each)
        elif isinstance(each, dict):
            members = cast("dict[str, object]", each)
            cost += sum(map(text_cost, members))
            waiting.extend(members.values())
        elif isinstance(each, list | tuple):
            waiting.extend(cast("list[object]", each))
        elif isinstance(each, BaseModel):
            waiting.extend(value for value in vars(each).values() if value)
        elif isinstance(each, msgspec.Raw):
            cost += memoryview(each).nbytes // CHARACTERS_OF_VALUE
    return cost


def json_text_cost(text: bytes) -> int:
    """Return what decoding JSON and reading its values may take, for `run_bounded`, by its size."""
    return len(text) // _BYTES_OF_JSON_VALUE


def history_cost(history: History) -> int:
    """Estimate the cost of converting a conversation, in the unit of `MAX_INLINE_COST` and exact up to it."""
    return json_cost(history)


async def run_bounded(cost: int, function: Callable[..., T], *args: object) -> T:
    """Call a function, in a thread if its cost would delay other requests.

    Calls in the thread are serialised; other calls do not wait. After a call of medium cost the event loop runs other
    tasks, so that the steps of one request do not add up.

    Args:
        cost: Number of values (of JSON, parts, messages) that the function processes.
        function: Function that shares no mutable state with the event loop and calls no C function that holds the
            interpreter's lock for long (see `tailrace.wrappers.json_steps`).
        args: The function's arguments.

    Returns:
        The function's result; its exceptions propagate. Cancellation takes effect when the function has returned.
    """
    if cost <= MAX_INLINE_COST:
        result = function(*args)
        if cost > _YIELD_COST:
            await cancel_shielded_checkpoint()
        return result
    try:
        limiter = _LIMITER.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(1)
        _LIMITER.set(limiter)
    try:
        return await anyio.to_thread.run_sync(function, *args, limiter=limiter)
    finally:
        release_memory_later()


def in_event_loop() -> bool:
    """Return whether an event loop runs in this thread. Elsewhere, large work is done in steps that hold no lock for long."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def release_memory_later() -> None:
    """Schedule `release_memory`, because the C library keeps the memory that large requests freed."""
    loop = asyncio.get_running_loop()
    if loop not in _RELEASING:
        _RELEASING.add(loop)
        loop.call_later(RELEASE_AFTER, _release, loop)


def _release(loop: asyncio.AbstractEventLoop) -> None:
    _RELEASING.discard(loop)
    loop.run_in_executor(None, release_memory)


def limit_unused_memory() -> None:
    """Have the C library return large blocks to the operating system when they are freed, where it is glibc.

    By itself it raises the size from which it does so up to that of the largest block that was freed: the heap of each
    thread, of which there are eight for each processor, then keeps up to 64 MB, which `release_memory` cannot return.
    """
    with suppress(OSError, AttributeError):  # another C library than glibc
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
        library.mallopt(_M_TRIM_THRESHOLD, _LARGE_BLOCK)


def release_memory() -> None:
    """Return freed memory to the operating system; only supported by glibc."""
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)

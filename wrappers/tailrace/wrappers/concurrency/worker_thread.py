"""Execution of CPU-bound work in a worker thread, if the work would block the event loop."""

import asyncio
import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar
from weakref import WeakSet

import anyio
import anyio.to_thread
import msgspec
from anyio.lowlevel import RunVar, cancel_shielded_checkpoint
from pydantic import BaseModel

from tailrace.wrappers.messages import History

T = TypeVar("T")

MAX_INLINE_COST = 500
"""Maximum number of values that are processed in the event loop. At 20 to 60 microseconds for each value, this takes up to
30 ms."""

CHARACTERS_OF_VALUE = 1024
"""Number of characters of a text, or bytes of a file, that cost as much as one value."""

RELEASE_AFTER = 1.0
"""Number of seconds between large work and the return of freed memory to the operating system."""

# Types whose objects may be empty. ``not`` is applied only to them, because it can raise an exception for other objects (arrays of
# numpy).
_JSON_TYPES = frozenset({str, bytes, int, float, bool, dict, list, tuple, type(None)})

_TEXTS = frozenset({str, bytes})
_BASE_TYPES = (str, bytes, BaseModel, dict, list, tuple, msgspec.Raw)

_BYTES_OF_JSON_VALUE = 64  # average size

# Parameters of glibc's function ``mallopt``.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE_BLOCK = 1024 * 1024

# After a call with a higher cost, the event loop runs other tasks: several such calls of one request would block it.
_YIELD_COST = 100

# Each event loop has one worker thread. Because of the global interpreter lock, two threads would not complete the work earlier.
_LIMITER = RunVar[anyio.CapacityLimiter]("tailrace.worker_thread")

# Event loops for which a release of memory is scheduled.
_RELEASING = WeakSet[asyncio.AbstractEventLoop]()


def text_cost(text: str | bytes | None) -> int:
    """Return the cost of processing a text or a file, as a number of values for `run_bounded`."""
    return len(text) // CHARACTERS_OF_VALUE if text else 0


def json_cost(value: object) -> int:
    """Return the cost of processing a JSON value or a pydantic model, for `run_bounded`.

    A cost above `MAX_INLINE_COST` is not exact. The keys of dicts may have any type that pydantic or msgspec can encode.
    """
    if type(value) in _JSON_TYPES and not value:
        return 0
    cost = 0
    waiting: list[Any] = [value]
    for each in waiting:  # the list grows
        cost += 1
        kind: type = each.__class__
        if kind not in _JSON_TYPES:
            kind = _base_type(kind)
        if kind in _TEXTS:
            cost += len(each) // CHARACTERS_OF_VALUE
        elif kind is dict:
            for key in each:
                if type(key) in _TEXTS:
                    cost += len(key) // CHARACTERS_OF_VALUE
            waiting += each.values()
        elif kind is list or kind is tuple:
            waiting += each
        elif kind is BaseModel:
            members = each.__dict__.values()
            waiting += [member for member in members if type(member) not in _JSON_TYPES or member]
        elif kind is msgspec.Raw:
            cost += memoryview(each).nbytes // CHARACTERS_OF_VALUE
        if cost > MAX_INLINE_COST:
            break
    return cost


@lru_cache(maxsize=1024)
def _base_type(kind: type) -> type:
    """Return the type as which `json_cost` processes the objects of a class; object for a single value."""
    return next((base for base in _BASE_TYPES if issubclass(kind, base)), object)


def json_text_cost(text: bytes) -> int:
    """Estimate the cost of decoding a JSON text by its size, for `run_bounded`."""
    return len(text) // _BYTES_OF_JSON_VALUE


def history_cost(history: History) -> int:
    """Return the cost of converting a conversation, for `run_bounded`. A cost above `MAX_INLINE_COST` is not exact."""
    return json_cost(history)


async def run_bounded(cost: int, function: Callable[..., T], *args: object) -> T:
    """Call a function in the event loop or, if its cost exceeds `MAX_INLINE_COST`, in a worker thread.

    The thread runs one call at a time. Calls in the event loop do not wait for the thread.

    Args:
        cost: Number of values that the function processes, for example from `json_cost`.
        function: The function. It must not share mutable state with the event loop, or call a C function that holds the global
            interpreter lock for long (see `tailrace.wrappers.incremental_json_encoder`).
        args: The positional arguments of the function.

    Returns:
        The result of the function. An exception of the function is raised here. A cancellation takes effect after the function
        has returned.
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
    """Return True if an event loop runs in this thread.

    In other threads, large work is divided into steps, which hold the global interpreter lock only for a short time.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def release_memory_later() -> None:
    """Schedule `release_memory`. Without this call, the C library would keep the memory of large requests."""
    loop = asyncio.get_running_loop()
    if loop not in _RELEASING:
        _RELEASING.add(loop)
        loop.call_later(RELEASE_AFTER, _release, loop)


def _release(loop: asyncio.AbstractEventLoop) -> None:
    _RELEASING.discard(loop)
    loop.run_in_executor(None, release_memory)


def limit_unused_memory() -> None:
    """Configure glibc to return large freed blocks to the operating system immediately. Do nothing with other C libraries.

    By default, glibc keeps up to 64 MB of freed memory in each of up to eight heaps for each processor. `release_memory` cannot
    return this memory.
    """
    with suppress(OSError, AttributeError):  # the C library is not glibc
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
        library.mallopt(_M_TRIM_THRESHOLD, _LARGE_BLOCK)


def release_memory() -> None:
    """Return freed memory to the operating system. Do nothing with C libraries other than glibc."""
    with suppress(OSError, AttributeError):  # the C library is not glibc
        ctypes.CDLL(None).malloc_trim(0)

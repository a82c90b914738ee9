"""Async context managers without a generator frame."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")

Exit = Callable[
    [type[BaseException] | None, BaseException | None, TracebackType | None], Awaitable[bool | None]
]
"""The exit of an async context manager, with the arguments of ``__aexit__``."""


class AsyncResource(Generic[T]):
    """Async context manager of a resource that a coroutine acquires.

    ``contextlib.asynccontextmanager`` keeps a generator whose frame holds everything that acquisition needed: several
    kilobytes for each open response.

    Args:
        acquire: Called once, on entering; returns the resource and its exit. If it raises, it must have released
            everything.
    """

    __slots__ = ("_acquire", "_exit")

    def __init__(self, acquire: Callable[[], Awaitable[tuple[T, Exit]]]) -> None:
        self._acquire: Callable[[], Awaitable[tuple[T, Exit]]] | None = acquire
        self._exit: Exit | None = None

    async def __aenter__(self) -> T:
        acquire, self._acquire = self._acquire, None
        if acquire is None:
            raise RuntimeError("an AsyncResource can be entered only once")
        value, self._exit = await acquire()
        return value

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._exit(kind, error, trace) if self._exit is not None else None

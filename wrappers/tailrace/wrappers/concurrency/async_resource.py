"""An async context manager that needs less memory than ``contextlib.asynccontextmanager``."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")

Exit = Callable[
    [type[BaseException] | None, BaseException | None, TracebackType | None], Awaitable[bool | None]
]
"""A function that releases the resource, with the arguments and the result of ``__aexit__``."""


class AsyncResource(Generic[T]):
    """Async context manager for a resource that a coroutine function acquires.

    ``contextlib.asynccontextmanager`` would keep the local variables of the acquisition in memory: several kilobytes for each
    open response.

    Args:
        acquire: Coroutine function that is called when the context is entered. It returns the resource, and the function that
            releases it. Before it raises an exception, it must release everything that it has acquired.
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

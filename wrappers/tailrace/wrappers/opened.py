"""Async context managers that hold nothing but what their end needs."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")

Exit = Callable[
    [type[BaseException] | None, BaseException | None, TracebackType | None], Awaitable[bool | None]
]
"""What an async context manager does at the end of its block."""


class Opened(Generic[T]):
    """The async context manager of a coroutine that opens something and says how it is closed.

    ``contextlib.asynccontextmanager`` keeps a generator, whose frame holds all that the opening needed: several kilobytes
    for each answer that is under way.

    Args:
        opening: Called once, when the block is entered; gives what the block is given, and what is done at its end. Where it
            raises, it has closed what it had opened.
    """

    __slots__ = ("_exit", "_opening")

    def __init__(self, opening: Callable[[], Awaitable[tuple[T, Exit]]]) -> None:
        self._opening: Callable[[], Awaitable[tuple[T, Exit]]] | None = opening
        self._exit: Exit | None = None

    async def __aenter__(self) -> T:
        opening, self._opening = self._opening, None
        if opening is None:
            raise RuntimeError("it can be entered once")
        given, self._exit = await opening()
        return given

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._exit(kind, error, trace) if self._exit is not None else None

"""The lock of a conversation, and a block in which a context manager can be entered later."""

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

import anyio


class ConversationLock:
    """The lock of a conversation. The turns of the conversation run in the order in which they wait for the lock.

    An `asyncio.Lock` for each conversation would need one kilobyte of memory.

    Args:
        following: The waiting turns by conversation. A conversation without a running turn has no entry.
        key: The owner and the id of the conversation.
    """

    __slots__ = ("_following", "_key")

    def __init__(self, following: dict[tuple[str, str], list[anyio.Event]], key: tuple[str, str]) -> None:
        self._following = following
        self._key = key

    async def __aenter__(self) -> None:
        following = self._following.get(self._key)
        if following is None:
            # Do not await anything here: otherwise, the writer would run before the turn sends its request to the provider.
            self._following[self._key] = []
            return
        begins = anyio.Event()
        following.append(begins)
        try:
            await begins.wait()
        except BaseException:
            if begins.is_set():
                self._release_next()
            else:
                following.remove(begins)
            raise

    async def __aexit__(self, *_raised: object) -> None:
        self._release_next()

    def _release_next(self) -> None:
        following = self._following[self._key]
        if following:
            following.pop(0).set()
        else:
            del self._following[self._key]


class LazyContext:
    """Exits a context manager at the end of the block if `enter` was called within the block."""

    __slots__ = ("_context", "_is_entered")

    def __init__(self, context: AbstractAsyncContextManager[object]) -> None:
        self._context = context
        self._is_entered = False

    async def enter(self) -> None:
        """Enter the context manager."""
        await self._context.__aenter__()
        self._is_entered = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._context.__aexit__(kind, error, trace) if self._is_entered else None

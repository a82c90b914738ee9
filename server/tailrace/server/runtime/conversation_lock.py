"""The locks of conversations, and `LazyContext`, which enters a context manager later."""

from contextlib import AbstractAsyncContextManager, nullcontext
from types import TracebackType
from typing import Self

import anyio

from tailrace.server.runtime.active_task import ActiveTask


class ConversationLocks:
    """The locks of conversations in this process. The turns of a conversation run in the order in which they wait."""

    def __init__(self) -> None:
        # By owner and id of the conversation. A conversation without a running turn has no entry.
        self._waiting: dict[tuple[str, str], list[anyio.Event]] = {}

    def of(self, active: ActiveTask) -> AbstractAsyncContextManager[object]:
        """Return the lock of the conversation of a task."""
        key = active.owner, active.record.context_id
        if active.holds_conversation_lock and key in self._waiting:
            # The task was taken over from another node, and the turn that has the lock waits for the end of this task. To wait
            # for the lock would be a deadlock.
            return nullcontext()
        return _ConversationLock(self._waiting, key)


class _ConversationLock:
    """The lock of a conversation. An `asyncio.Lock` would need one kilobyte of memory."""

    __slots__ = ("_key", "_waiting")

    def __init__(self, following: dict[tuple[str, str], list[anyio.Event]], key: tuple[str, str]) -> None:
        self._waiting = following
        self._key = key

    async def __aenter__(self) -> None:
        following = self._waiting.get(self._key)
        if following is None:
            # There is no await here, so that the turn sends its request to the provider before the writer runs.
            self._waiting[self._key] = []
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
        following = self._waiting[self._key]
        if following:
            following.pop(0).set()
        else:
            del self._waiting[self._key]


class LazyContext:
    """Exits a context manager at the end of the block if `enter` was called."""

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

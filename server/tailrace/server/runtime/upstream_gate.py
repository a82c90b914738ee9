"""Limits the concurrent calls to the provider, and shares them fairly between callers.

An authenticated caller can have at most three quarters (rounded up) of the concurrent calls and of the waiting calls. Therefore,
slow calls of one caller do not block other callers. When a call ends, the next waiting caller in round-robin order begins a call.
The calls of one caller begin in the order of their arrival. All anonymous callers together count as one caller, to which the
maximum for one caller does not apply.
"""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Any

import anyio

from tailrace.server.runtime.limits import OverloadedError, RateLimitError, user_of
from tailrace.server.runtime.observer import NO_OBSERVER, Observer
from tailrace.wrappers import History
from tailrace.wrappers.concurrency.async_resource import AsyncResource, Exit
from tailrace.wrappers.conversion.history_converter import HistoryConverter
from tailrace.wrappers.model import ChunkBatches, Model
from tailrace.wrappers.request_options import NO_OPTIONS, RequestOptions

OWNER: ContextVar[str] = ContextVar("tailrace.owner", default="")
"""The owner of the task of the current turn; empty outside of turns."""


def share_of(total: int) -> int:
    """Return the maximum for one caller."""
    return total - total // 4


class UpstreamGate:
    """Limits the concurrent calls to the provider, in total and for each caller. Further calls wait.

    Args:
        calls: Maximum number of concurrent calls; 0 for no limit.
        waiting: Maximum number of waiting calls. With 0, a call that cannot begin immediately is rejected.
        observer: Receives the duration of each wait.

    Attributes:
        waiting: The number of waiting calls.
        running_calls: The number of calls in progress.
    """

    def __init__(self, calls: int, waiting: int, observer: Observer = NO_OBSERVER) -> None:
        self.waiting = 0
        self.running_calls = 0
        self._observer = observer
        self._calls = calls
        self._max_waiting = waiting
        self._by_caller: dict[str, int] = {}  # calls in progress
        self._queues: dict[str, deque[anyio.Event]] = {}  # waiting calls, the next caller first

    def check(self, owner: str) -> None:
        """Check that a call to the provider would not be rejected. Called before a task is created.

        Raises:
            OverloadedError: Too many calls wait.
            RateLimitError: Too many calls of the caller wait.
        """
        caller = user_of(owner)
        queue = self._queues.get(caller, ())
        if not queue and self._has_room(caller):
            return
        if self.waiting >= self._max_waiting:
            raise OverloadedError(
                f"{self.running_calls} calls to the model are in progress and {self.waiting} wait, the maximum of this "
                "server; try again later",
                limit="max_upstream_waiting",
                allowed=self._max_waiting,
            )
        if caller and len(queue) >= share_of(self._max_waiting):
            raise RateLimitError(
                f"{len(queue)} of your calls to the model wait, the maximum for one caller; wait until a call has ended",
                limit="max_upstream_waiting",
                allowed=share_of(self._max_waiting),
            )

    @asynccontextmanager
    async def call(self, owner: str) -> AsyncGenerator[None]:
        """Call `enter` at the beginning of the block and `leave` at its end."""
        await self.enter(owner)
        try:
            yield
        finally:
            self.leave(owner)

    async def enter(self, owner: str) -> None:
        """Wait until a call to the provider may begin. When the call ends, `leave` must be called once.

        The wait can be cancelled.

        Raises:
            OverloadedError: Too many calls wait.
            RateLimitError: Too many calls of the caller wait.
        """
        self.check(owner)
        caller = user_of(owner)
        if caller not in self._queues and self._has_room(caller):
            self._begin(caller)
        else:
            await self._wait(caller)

    def leave(self, owner: str) -> None:
        """End a call of an owner, and begin waiting calls."""
        self._end(user_of(owner))

    def _end(self, caller: str) -> None:
        self.running_calls -= 1
        self._by_caller[caller] -= 1
        if not self._by_caller[caller]:
            del self._by_caller[caller]
        while (following := self._next_caller()) is not None:
            queue = self._queues.pop(following)
            waiter = queue.popleft()
            if queue:
                self._queues[following] = queue  # now the last in the order
            self.waiting -= 1
            self._begin(following)
            waiter.set()

    def _has_room(self, caller: str) -> bool:
        if not self._calls:
            return True
        has_share = not caller or self._by_caller.get(caller, 0) < share_of(self._calls)
        return has_share and self.running_calls < self._calls

    def _begin(self, caller: str) -> None:
        self.running_calls += 1
        self._by_caller[caller] = self._by_caller.get(caller, 0) + 1

    def _next_caller(self) -> str | None:
        return next(filter(self._has_room, self._queues), None)

    async def _wait(self, caller: str) -> None:
        waiter = anyio.Event()
        self._queues.setdefault(caller, deque()).append(waiter)
        began = perf_counter()
        self.waiting += 1
        try:
            await waiter.wait()
        except BaseException:
            if waiter.is_set():
                self._end(caller)
            else:
                self._remove(caller, waiter)
            raise
        self._observer.waited_for_call(perf_counter() - began)

    def _remove(self, caller: str, waiter: anyio.Event) -> None:
        queue = self._queues[caller]
        queue.remove(waiter)
        self.waiting -= 1
        if not queue:
            del self._queues[caller]


class GatedModel(Model):
    """A model whose calls wait for an `UpstreamGate`. The model is closed together with this object."""

    def __init__(self, model: Model, gate: UpstreamGate) -> None:
        self.provider = model.provider
        self.name = model.name
        self.accepts_native_tools = model.accepts_native_tools
        self._model = model
        self._gate = gate

    @property
    def converter(self) -> HistoryConverter[Any, Any]:
        """The converter of the model."""
        return self._model.converter

    def stream(
        self, history: History, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches]:
        """Stream like `Model.stream` as soon as the gate permits it. See `UpstreamGate.enter` for the errors."""
        return AsyncResource(partial(self._stream, self._model.stream(history, options)))

    async def continuation(
        self, text: str, history: History, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches] | None:
        """Return the model's request, which waits for the gate; None if the model returns None."""
        request = await self._model.continuation(text, history, options)
        return AsyncResource(partial(self._stream, request)) if request is not None else None

    def stored_id(self, chunks: ChunkBatches) -> str:
        """Return the stored id from the wrapped model."""
        return self._model.stored_id(chunks)

    def attachment(
        self, interrupted: ChunkBatches | str, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches] | None:
        """Return the model's request, which waits for the gate; None if the model returns None."""
        request = self._model.attachment(interrupted, options)
        return AsyncResource(partial(self._stream, request)) if request is not None else None

    async def release(self, stored_response: ChunkBatches | str) -> None:
        """Cancel a response without waiting for the gate."""
        await self._model.release(stored_response)

    async def _stream(self, stream: AbstractAsyncContextManager[ChunkBatches]) -> tuple[ChunkBatches, Exit]:
        owner = OWNER.get()
        await self._gate.enter(owner)
        try:
            return await stream.__aenter__(), partial(self._leave, stream, owner)
        except BaseException:
            self._gate.leave(owner)
            raise

    async def _leave(
        self,
        stream: AbstractAsyncContextManager[ChunkBatches],
        owner: str,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        try:
            return await stream.__aexit__(kind, error, trace)
        finally:
            self._gate.leave(owner)

    async def aclose(self) -> None:
        """Close the model."""
        await self._model.aclose()

"""Reads the updates of a turn while filters check earlier text in the background (`BackgroundStream`)."""

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager

import anyio
from anyio.abc import TaskGroup, TaskStatus

from tailrace.server.runtime.handlers import Item
from tailrace.server.runtime.stream_filter import BackgroundStream
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta


class BackgroundReader:
    """Reads batches in an asyncio task, and runs each filter stream in another asyncio task.

    A batch is read only after the previous batch was filtered. A handler must enter and exit a cancel scope in the same asyncio
    task, so one asyncio task reads all batches.

    Attributes:
        failure: The error that ended a filter stream, or None.
    """

    def __init__(self, batches: AsyncGenerator[Sequence[Item]]) -> None:
        self._batches = batches
        self.failure: Exception | None = None
        self._streams: list[BackgroundStream] = []
        self._group: TaskGroup | None = None
        self._reading = anyio.CancelScope()
        self._requested = anyio.Event()
        self._woken = anyio.Event()
        self._result: tuple[Sequence[Item] | None, BaseException | None] | None = None

    @asynccontextmanager
    async def running(self, group: TaskGroup) -> AsyncGenerator[None]:
        """Run the asyncio tasks in a task group until the block ends. Then cancel them, and wait for their end."""
        ended = anyio.Event()
        await group.start(self._run, ended)
        try:
            yield
        finally:
            self._reading.cancel()
            with anyio.CancelScope(shield=True):
                await ended.wait()

    def start(self, stream: BackgroundStream) -> None:
        """Run a stream in the background."""
        assert self._group is not None  # noqa: S101 — `running` has set the group
        self._streams.append(stream)
        self._group.start_soon(self._work, stream)

    async def batches(self) -> AsyncGenerator[Sequence[Item]]:
        """Yield the batches, and an empty batch whenever a filter stream has text to publish.

        The filter streams are flushed before the end of a text, and before an item that may repeat published texts.
        """
        self._requested.set()
        while True:
            await self._wait()
            if self._result is None:
                yield ()
                continue
            (items, error), self._result = self._result, None
            position = _first_end(items or ())
            if position is not None or items is None:
                if items and position:
                    yield items[:position]
                    items = items[position:]
                while self._flush():
                    await self._wait()
                    yield ()
            if items is not None:
                yield items
                self._requested.set()
            elif error is not None:
                raise error
            else:
                return

    async def _wait(self) -> None:
        await self._woken.wait()
        self._woken = anyio.Event()

    def _flush(self) -> bool:
        for stream in self._streams:
            stream.flush()
        return any(stream.is_pending for stream in self._streams) and self.failure is None

    def _wake(self) -> None:
        self._woken.set()

    async def _run(self, ended: anyio.Event, *, task_status: TaskStatus[None]) -> None:
        try:
            async with anyio.create_task_group() as self._group:
                async with aclosing(self._batches):
                    with self._reading:
                        task_status.started()
                        await self._read()
                        await anyio.sleep_forever()
                self._group.cancel_scope.cancel()
        finally:
            ended.set()

    async def _read(self) -> None:
        while self._result is None or self._result[0] is not None:
            await self._requested.wait()
            self._requested = anyio.Event()
            try:
                self._result = await anext(self._batches), None
            except StopAsyncIteration:
                self._result = None, None
            except BaseException as error:
                if not isinstance(error, Exception | anyio.get_cancelled_exc_class()):
                    raise
                if anyio.current_effective_deadline() == -math.inf:
                    raise  # this asyncio task is cancelled
                self._result = None, error
            self._wake()

    async def _work(self, stream: BackgroundStream) -> None:
        try:
            await stream.run(self._wake)
        except Exception as error:
            self.failure = error
        self._streams.remove(stream)
        self._wake()


def _first_end(items: Sequence[Item]) -> int | None:
    for position, item in enumerate(items):
        if isinstance(item, TextDelta | ArtifactUpdate):
            if item.last:
                return position
        elif not isinstance(item, StatusUpdate) or item.state.terminal or item.state.interrupted:
            return position
    return None

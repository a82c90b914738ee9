"""Crashes of an engine."""

import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anyio

from support.engines import engine_with, read, read_until, start
from tailrace.server.runtime.handlers import Item, Turn
from tailrace.server.runtime.stream_filter import StreamFilter
from tailrace.streaming import Event


def copied_as_after_a_crash(path: Path, to: Path) -> str:
    """Copy a database whose server runs; return the address of the copy."""
    to.mkdir()
    for name in (path.name, f"{path.name}-wal"):
        shutil.copy(path.with_name(name), to / name)
    return f"sqlite:///{to}/{path.name}"


async def across_a_crash(
    folder: Path,
    filters: Sequence[StreamFilter],
    before: Sequence[Item],
    published: int,
    after: Sequence[Item],
) -> list[Event]:
    """Return all events of a task whose turn a crash interrupts.

    Args:
        folder: For the databases.
        filters: The filters.
        before: The updates of the handler before the crash.
        published: The number of events that these updates become with the filters.
        after: The updates of the handler after the crash.
    """

    async def crashed(_: Turn) -> AsyncIterator[Item]:
        for item in before:
            yield item
        await anyio.sleep_forever()

    async def recovered(_: Turn) -> AsyncIterator[Item]:
        for item in after:
            yield item

    path = folder / "tasks.db"
    async with engine_with(crashed, f"sqlite:///{path}", filters=filters) as engine:
        started = await start(engine)
        await read_until(started, published)
        copy = copied_as_after_a_crash(path, folder / "copy")
        await engine.cancel_task(started.task_id, "")
    async with engine_with(recovered, copy, filters=filters, restart_interrupted=True) as engine:
        return await read(await engine.subscribe(started.task_id, after=0))

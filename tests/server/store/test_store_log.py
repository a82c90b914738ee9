"""SQLite's log: its size limit while other programs write to and read from the database without a pause."""

import asyncio
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import Engine, event

from support.store_objects import numbers_of, open_store, write
from tailrace.server.store import sqlite


def beginnings(file: Path) -> int:
    """Return how often the log of a database was restarted, from its header."""
    return int.from_bytes(file.with_name(f"{file.name}-wal").read_bytes()[12:16], "big")


@contextmanager
def waiting_logged() -> Generator[anyio.Event]:
    """Yield an event that is set when writers begin to wait until the log is copied."""
    waits, loop = anyio.Event(), asyncio.get_running_loop()

    def on_statement(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement == "PRAGMA wal_checkpoint(RESTART)":
            loop.call_soon_threadsafe(waits.set)

    event.listen(Engine, "before_cursor_execute", on_statement)
    try:
        yield waits
    finally:
        event.remove(Engine, "before_cursor_execute", on_statement)


@contextmanager
def read_from(file: Path) -> Generator[None]:
    """Hold a read transaction of another connection while the block runs."""
    with closing(sqlite3.connect(file)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM tasks").fetchone()
        yield


def copy_often(monkeypatch: pytest.MonkeyPatch, patience: int) -> None:
    """Copy the log with every row, and treat it as too long."""
    monkeypatch.setattr(sqlite, "COPIED_ROWS", 1)
    monkeypatch.setattr(sqlite, "MAX_LOG_PAGES", 0)
    monkeypatch.setattr(sqlite, "CHECKPOINT_TIMEOUT_MS", patience)


async def test_a_long_log_is_truncated_when_its_readers_have_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "t.db"
    numbers = iter(range(1, 1_000))
    with waiting_logged() as waits:
        async with open_store(f"sqlite:///{file}?timeout=60") as store:

            async def write_on() -> None:
                while not waits.is_set():
                    await store.commit([write("t", next(numbers))])

            await store.commit([write("t", next(numbers))])
            before = beginnings(file)
            async with anyio.create_task_group() as tasks:
                with read_from(file):
                    copy_often(monkeypatch, 60_000)
                    tasks.start_soon(write_on)
                    await waits.wait()
                    assert beginnings(file) == before
            last = next(numbers)
            await store.commit([write("t", last)])
            assert beginnings(file) > before
            assert await numbers_of(store, "t") == list(range(1, last + 1))


async def test_a_long_read_delays_writes_only_briefly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "t.db"
    async with open_store(f"sqlite:///{file}?timeout=60") as store:
        await store.commit([write("t", 1)])
        with read_from(file), waiting_logged() as waits:
            copy_often(monkeypatch, 1)
            last = 1
            while not waits.is_set():
                last += 1
                await store.commit([write("t", last)])
            await store.commit([write("t", last + 1)])
        assert await numbers_of(store, "t") == list(range(1, last + 2))

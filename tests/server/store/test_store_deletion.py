"""Deletion in bounded steps: a long task does not keep the writes of other tasks waiting, and no step is lost."""

import shutil
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from support.store_objects import numbers_of, open_store, task, user_message, write
from tailrace.server.store import retention
from tailrace.server.store import store as stores
from tailrace.server.store.retention import BATCH
from tailrace.server.store.store import Retention, Store, TaskWrite
from tailrace.streaming import Event, TaskState
from tailrace.wrappers import StoreError

MESSAGES, EVENTS = BATCH + 3, 3 * BATCH + 7


@contextmanager
def deletions(table: str, watch: Callable[[int], object] = lambda _: None) -> Generator[list[int]]:
    """Record how many rows each statement deletes from a table while the block runs.

    Args:
        table: The name of the table.
        watch: Called with the number of the statement; an exception ends its transaction.
    """
    counts: list[int] = []

    def remember(_connection: Any, cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith(f"DELETE FROM {table} "):
            counts.append(cursor.rowcount)
            watch(len(counts))

    event.listen(Engine, "after_cursor_execute", remember)
    try:
        yield counts
    finally:
        event.remove(Engine, "after_cursor_execute", remember)


async def fill(store: Store) -> None:
    """Write a long task, and another one."""
    given = write("t", *range(1, EVENTS + 1), state=TaskState.COMPLETED)
    texts = [user_message(str(number)) for number in range(MESSAGES)]
    await store.commit([TaskWrite("t", "me", "c", given.events, given.snapshot, texts)])
    await store.commit([write("u", 1, 2, state=TaskState.COMPLETED)])


async def test_a_long_task_is_deleted_in_bounded_steps(store_url: str) -> None:
    async with open_store(store_url) as store:
        await fill(store)
        with deletions("events") as counts, deletions("messages") as texts:
            assert not await store.delete_task("t", "another")
            assert sum(counts) + sum(texts) == 0
            assert await store.delete_task("t", "me")
        assert (sum(counts), max(counts)) == (EVENTS, BATCH)
        assert (sum(texts), max(texts)) == (MESSAGES, BATCH)
        assert await store.load_task("t", "me") is None
        assert await store.load_conversation("c", "me", 9) == []
        assert not await store.task_id_exists("t")
        assert await numbers_of(store, "u") == [1, 2]


async def test_a_step_deletes_bounded_bytes(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH_BYTES", 10_000)
    sizes = (9_000, 900, 900, 50_000, 1, 5_000, 5_000, 5_000)
    events = tuple(Event(number, b"x" * size, None) for number, size in enumerate(sizes, 1))
    async with open_store(store_url) as store:
        await store.commit([TaskWrite("t", "me", "c", events, task("t", TaskState.COMPLETED))])
        with deletions("events") as counts:
            assert await store.delete_task("t", "me")
        assert counts == [2, 1, 1, 2, 2]


def _fail_at(number: int) -> Callable[[int], None]:
    def watch(at: int) -> None:
        if at == number:
            raise OSError("the process ends")

    return watch


@pytest.mark.parametrize("number", [1, 2, 4])
async def test_the_events_of_a_deleted_task_are_deleted_after_a_crash(store_url: str, number: int) -> None:
    async with open_store(store_url) as store:
        await fill(store)
        with deletions("events", _fail_at(number)), pytest.raises(StoreError):
            await store.delete_task("t", "me")
        assert await store.load_task("t", "me") is None
        assert await store.load_conversation("c", "me", 9) == []
        assert await store.task_id_exists("t")  # no other task gets the id, and with it the events
    async with open_store(store_url, Retention(events=None)) as store:
        assert await store.load_task("t", "me") is None
        with deletions("events") as counts:
            while await store.drop_expired():
                pass
        assert sum(counts) == EVENTS - (number - 1) * BATCH
        assert max(counts) <= BATCH
        assert not await store.task_id_exists("t")
        assert await numbers_of(store, "u") == [1, 2]


async def test_a_task_whose_messages_are_partly_deleted_can_be_deleted_again(store_url: str) -> None:
    async with open_store(store_url) as store:
        await fill(store)
        with deletions("messages", _fail_at(2)), pytest.raises(StoreError):
            await store.delete_task("t", "me")
    async with open_store(store_url) as store:
        assert await store.load_task("t", "me") is not None
        assert await store.delete_task("t", "me")
        assert await store.load_task("t", "me") is None
        assert await store.load_conversation("c", "me", 9) == []


async def test_a_message_beyond_the_bytes_of_a_conversation_is_not_searched(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MAX_CONVERSATION_BYTES", 5_000)
    texts = [f"{number} {'x' * 900}" for number in range(4)]  # twice in each message
    given = [user_message(text) for text in texts]
    async with open_store(store_url) as store:
        await store.commit(
            [TaskWrite("t", "me", "c", write("t", 1).events, task("t", TaskState.WORKING), given)]
        )
        replaced = [await store.replace_message("c", "me", each, None) for each in given]
        assert replaced == [False, False, True, True]
        monkeypatch.undo()
        assert await store.load_conversation("c", "me", 9) == given[:2]


async def test_the_next_start_and_the_end_of_a_read_empty_the_log(tmp_path: Path) -> None:
    path, copy = tmp_path / "t.db", tmp_path / "copy.db"
    marker = b"marigold"
    given = write("t", 1, state=TaskState.COMPLETED)

    def files_with_marker(at: Path) -> list[str]:
        return [each.name for each in tmp_path.glob(f"{at.name}*") if marker in each.read_bytes()]

    async with open_store(f"sqlite:///{path}") as store:
        message = user_message(marker.decode())
        await store.commit([TaskWrite("t", "me", "c", given.events, given.snapshot, [message])])
        assert await store.delete_task("t", "me")
        # The process ends before it empties the log.
        for each in (path, Path(f"{path}-wal")):
            shutil.copy(each, tmp_path / each.name.replace(path.name, copy.name))
    assert files_with_marker(copy) == [f"{copy.name}-wal"]
    async with open_store(f"sqlite:///{copy}") as store:
        with closing(sqlite3.connect(copy)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM tasks").fetchone()
            while await store.drop_expired():
                pass
            assert files_with_marker(copy)
        await store.drop_expired()
        assert files_with_marker(copy) == []

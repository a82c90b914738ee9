"""Cost of a token in the store: independent of the length of the answer, and nothing after it has expired."""

import gc
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event

from support.store_objects import first_kept, numbers_of, open_store, user_message, write
from tailrace.server.store.store import Retention, Store, TaskWrite
from tailrace.streaming import ArtifactUpdate, Event, StatusUpdate, TaskState, TextDelta
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.task_record import TaskRecord

GROUP = 8
"""Events per transaction; SQLite inserts a power of two with one statement."""


@contextmanager
def statements() -> Generator[list[tuple[str, int]]]:
    """Record the statements of all databases while the block runs, each with its number of rows."""
    seen: list[tuple[str, int]] = []

    def remember(
        _connection: Any, _cursor: Any, statement: str, rows: Any, _context: Any, many: bool
    ) -> None:
        if not statement.startswith("PRAGMA"):  # SQLite's own maintenance, in another thread
            seen.append((statement, len(rows) if many else 1))

    event.listen(Engine, "before_cursor_execute", remember)
    inserted.append(lambda statement: seen.append((statement, statement.count("),(") + 1)))
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", remember)
        inserted.pop()


inserted: list[Callable[[str], None]] = []
"""Callbacks for events inserted into SQLite, which bypass SQLAlchemy."""


_OF_EVENTS = ("INSERT INTO events", "INSERT OR IGNORE INTO events", "REPLACE INTO journal", "UPDATE journal")


def trace(driver: Any, _record: object) -> None:
    def count_statement(statement: str) -> None:
        if inserted and statement.startswith(_OF_EVENTS):
            inserted[-1](statement)

    if isinstance(driver, sqlite3.Connection):
        driver.set_trace_callback(count_statement)


@pytest.fixture(autouse=True)
def _traced() -> Generator[None]:
    event.listen(Engine, "connect", trace)
    yield
    event.remove(Engine, "connect", trace)


async def answer(store: Store, tokens: int) -> tuple[str, int, int, int]:
    """Persist an answer; return the task's id, and the statements, rows and bytes of its tokens alone."""
    record = TaskRecord.create(user_message("question"))
    ids = (record.id, "me", record.context_id)
    first = (
        record.submitted(),
        record.apply(StatusUpdate(TaskState.WORKING)),
        record.apply(ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="-"),)), last=False)),
    )
    await store.commit([TaskWrite(*ids, first, record.snapshot(), (user_message("question"),))])
    size = 0
    with statements() as seen:
        for start in range(0, tokens, GROUP):
            writes: list[TaskWrite] = []
            for _ in range(start, min(start + GROUP, tokens)):
                made: Event = record.apply(TextDelta("text", "token "))
                size += len(made.body)
                writes.append(TaskWrite(*ids, (made,)))
            await store.commit(writes)
    last = (record.apply(TextDelta("text", "", last=True)), record.apply(StatusUpdate(TaskState.COMPLETED)))
    await store.commit([TaskWrite(*ids, last, record.snapshot(), (user_message("answer"),))])
    return record.id, len(seen), sum(rows for _, rows in seen), size


async def test_a_token_costs_the_same_in_a_long_answer_as_in_a_short_one(store_url: str) -> None:
    async with open_store(store_url, Retention(events=0)) as store:
        costs: dict[int, tuple[float, float, float]] = {}
        for tokens in (80, 16_000):
            task_id, count, rows, size = await answer(store, tokens)
            costs[tokens] = (count / tokens, rows / tokens, size / tokens)
            stored = await store.load_task(task_id, "me")
            assert stored is not None
            # The complete answer is one part of one artifact.
            [artifact] = stored.task.artifacts
            assert [part.text for part in artifact.parts] == ["-" + "token " * tokens]
            assert stored.number == tokens + 5
        # Only the bytes of the event itself.
        assert costs[80][2] == costs[16_000][2] < 300
        if store_url.startswith("sqlite"):
            # One journal row per transaction, and sometimes one additional row for the events of several transactions.
            assert max(costs[80][0], costs[16_000][0]) < 2 / GROUP
            assert max(costs[80][1], costs[16_000][1]) < 1.2
        else:
            # One statement per transaction, one row per event.
            assert costs[80][:2] == costs[16_000][:2] == (1 / GROUP, 1.0)
        while await store.drop_expired():
            pass
        assert await first_kept(store, task_id) == 16_006


async def test_a_reader_costs_the_same_wherever_it_is_in_the_log(store_url: str) -> None:
    async with open_store(store_url) as store:
        task_id, *_ = await answer(store, 3_000)
        for after in (0, 1_500, 2_990):
            with statements() as seen:
                assert len(await store.load_events(task_id, after, limit=10)) == 10
            assert len(seen) == 1


@pytest.mark.parametrize("tokens", [1, 16_000])
async def test_a_task_that_is_over_is_found_and_dropped_in_a_bounded_number_of_statements(
    store_url: str, tokens: int
) -> None:
    async with open_store(store_url, Retention(events=0)) as store:
        await answer(store, tokens)
        with statements() as seen:
            await store.drop_expired()
        assert len(seen) <= 4


async def test_a_reader_that_has_all_there_is_leaves_nothing_to_the_garbage_collector() -> None:
    async with open_store("sqlite://") as store:
        await store.commit([write("t", 1)])
        assert await numbers_of(store, "t", 1) == []
        gc.collect()
        gc.disable()
        try:
            for _ in range(1_000):  # so that garbage of earlier tests does not matter
                await numbers_of(store, "t", 1)
            assert gc.collect() < 1_000
        finally:
            gc.enable()

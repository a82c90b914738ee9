"""The store: what was committed is there, in order, for its owner alone, and all of a batch or none of it."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tailrace.server.store import Store, TaskWrite
from tailrace.streaming import Event, TaskState
from tailrace.streaming.a2a.models import Message, Part, Role, Task, TaskStatus
from tailrace.wrappers import ConfigurationError, StoreError


def task(task_id: str, state: TaskState = TaskState.WORKING, context_id: str = "c") -> Task:
    status = TaskStatus(state=state, timestamp=datetime(2026, 1, 2, tzinfo=UTC))
    return Task(id=task_id, context_id=context_id, status=status)


def said(text: str) -> Message:
    return Message(message_id=text, role=Role.USER, parts=(Part(text=text),))


def write(task_id: str, *numbers: int, state: TaskState | None = None, owner: str = "me") -> TaskWrite:
    events = tuple(Event(number, b'{"n":%d}' % number, state) for number in numbers)
    return TaskWrite(task_id, owner, "c", events, task(task_id, state) if state else None)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/deep/folder/tasks.db"


async def test_what_was_committed_is_there_after_a_restart(url: str) -> None:
    store = Store(url)
    await store.open()
    await store.commit([write("t", 1, state=TaskState.SUBMITTED)])
    await store.commit([write("t", 2, 3)])
    await store.close()

    store = Store(url)
    await store.open()
    stored = await store.load_task("t", "me")
    assert stored is not None
    assert stored.number == 1
    assert stored.task == task("t", TaskState.SUBMITTED)
    assert [event.number for event in await store.load_events("t", 0)] == [1, 2, 3]
    assert [event.state for event in await store.load_events("t", 0)] == [TaskState.SUBMITTED, None, None]
    assert [event.body for event in await store.load_events("t", 2)] == [b'{"n":3}']
    assert [event.number for event in await store.load_events("t", 0, limit=2)] == [1, 2]
    await store.close()


async def test_a_task_is_brought_up_to_date_in_place(url: str) -> None:
    store = Store(url)
    await store.open()
    await store.commit([write("t", 1, state=TaskState.SUBMITTED), write("u", 1, state=TaskState.SUBMITTED)])
    await store.commit([write("t", 2, state=TaskState.COMPLETED)])
    stored = await store.load_task("t", "me")
    assert stored is not None
    assert (stored.number, stored.task.status.state) == (2, TaskState.COMPLETED)
    assert await store.load_unfinished() == [("u", "me")]
    await store.close()


async def test_only_the_owner_finds_a_task(url: str) -> None:
    store = Store(url)
    await store.open()
    await store.commit([write("t", 1, state=TaskState.SUBMITTED)])
    assert await store.load_task("t", "somebody") is None
    assert await store.load_task("nothing", "me") is None
    await store.close()


async def test_a_conversation_is_kept_in_order_and_apart_from_others(url: str) -> None:
    store = Store(url)
    await store.open()
    await store.commit([TaskWrite("t", "me", "c", (), None, (said("one"), said("two")))])
    await store.commit([TaskWrite("u", "me", "c", (), None, (said("three"),))])
    await store.commit([TaskWrite("v", "you", "c", (), None, (said("yours"),))])
    await store.commit([TaskWrite("w", "me", "other", (), None, (said("elsewhere"),))])
    assert await store.load_conversation("c", "me", 10) == [said("one"), said("two"), said("three")]
    assert await store.load_conversation("c", "me", 2) == [said("two"), said("three")]
    assert await store.load_conversation("c", "you", 10) == [said("yours")]
    await store.close()


async def test_a_batch_that_fails_leaves_nothing_behind_and_the_next_one_works(url: str) -> None:
    store = Store(url)
    await store.open()
    await store.commit([write("t", 1, state=TaskState.SUBMITTED)])
    with pytest.raises(StoreError, match="cannot write"):
        await store.commit([write("t", 2), write("u", 1), write("t", 1)])  # event 1 of t is there already
    assert [event.number for event in await store.load_events("t", 0)] == [1]
    assert await store.load_events("u", 0) == []
    await store.commit([write("t", 2)])
    assert [event.number for event in await store.load_events("t", 0)] == [1, 2]
    await store.close()


async def test_a_store_in_memory_needs_no_file() -> None:
    for url in ("sqlite://", "sqlite:///:memory:"):
        store = Store(url)
        await store.open()
        await store.commit([write("t", 1, state=TaskState.SUBMITTED)])
        assert await store.load_task("t", "me") is not None
        await store.close()


@pytest.mark.parametrize("url", ["nonsense", "mysql://host/db", "postgresql+asyncpg://host/db", ""])
def test_a_url_that_cannot_be_used_is_refused_by_name(url: str) -> None:
    with pytest.raises(ConfigurationError, match="TAILRACE_STORE"):
        Store(url)


async def test_a_file_that_is_no_database_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("this is not a database, it is a text of some length" * 100)
    store = Store(f"sqlite:///{tmp_path}/notes.txt")
    with pytest.raises(StoreError, match="cannot open the store"):
        await store.open()
    await store.close()


async def test_a_store_that_another_server_has_open_is_refused(url: str) -> None:
    first, second = Store(url), Store(url)
    await first.open()
    with pytest.raises(StoreError, match="in use by another process"):
        await second.open()
    await second.close()
    await first.commit([write("t", 1, state=TaskState.SUBMITTED)])
    await first.close()
    await second.open()
    assert await second.load_task("t", "me") is not None
    await second.close()


async def test_a_closed_store_says_so(url: str) -> None:
    store = Store(url)
    with pytest.raises(StoreError, match="closed"):
        await store.commit([write("t", 1)])
    with pytest.raises(StoreError, match="closed"):
        await store.load_task("t", "me")

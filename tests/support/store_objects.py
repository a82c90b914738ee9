"""Small objects for a store, and an open store."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from tailrace.server.store.store import EventsDropped, Retention, Store, TaskWrite
from tailrace.streaming import Event, TaskState
from tailrace.streaming.a2a.models import Message, Part, Role, Task, TaskStatus

LONG_AGO = datetime(2026, 1, 2, tzinfo=UTC)


def task(
    task_id: str, state: TaskState = TaskState.WORKING, context_id: str = "c", updated: datetime = LONG_AGO
) -> Task:
    """A task without content."""
    return Task(id=task_id, context_id=context_id, status=TaskStatus(state=state, timestamp=updated))


def user_message(text: str) -> Message:
    """A message of the caller."""
    return Message(message_id=text, role=Role.USER, parts=(Part(text=text),))


def write(
    task_id: str,
    *numbers: int,
    state: TaskState | None = None,
    owner: str = "me",
    updated: datetime = LONG_AGO,
) -> TaskWrite:
    """A write of events with these numbers, and with the state, if it is not None."""
    events = tuple(Event(number, b'{"n":%d}' % number, state) for number in numbers)
    return TaskWrite(
        task_id, owner, "c", events, task(task_id, state, updated=updated) if state else None, updated=None
    )


async def first_kept(store: Store, task_id: str) -> int:
    """The number of a task's first event in the store; without events, the number after the last one."""
    try:
        await store.load_events(task_id, 0, limit=1)
    except EventsDropped as dropped:
        return dropped.first
    return 1


@asynccontextmanager
async def open_store(url: str, retention: Retention | None = None) -> AsyncGenerator[Store]:
    """Open a store on a database until the block ends."""
    store = Store(url, retention)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def numbers_of(store: Store, task_id: str, after: int = 0) -> list[int]:
    """The numbers of a task's events after the number ``after``."""
    return [event.number for event in await store.load_events(task_id, after)]

"""Where tasks, their events and the conversations are kept.

One interface and one implementation over SQLAlchemy Core. The engine hands over whole batches (see
`tailrace.server.writer`), and a batch is one transaction: either all of it is kept or none.
"""

import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import anyio
import msgspec
from sqlalchemy import (
    Column,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    event,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool

from tailrace.streaming.a2a.models import Message, Task
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.task import Event
from tailrace.wrappers import ConfigurationError, StoreError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

_metadata = MetaData()

tasks = Table(
    "tasks",
    _metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("context_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("updated", DateTime(timezone=True), nullable=False),
    # The task as of event `number`; what happened since stands in `events`.
    Column("number", Integer, nullable=False),
    Column("snapshot", LargeBinary, nullable=False),
    Index("tasks_by_context", "owner", "context_id"),
    Index("tasks_by_state", "state"),
)

events = Table(
    "events",
    _metadata,
    Column("task_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    Column("state", Text),
    sqlite_with_rowid=False,
)

messages = Table(
    "messages",
    _metadata,
    Column("position", Integer, primary_key=True, autoincrement=True),
    Column("owner", Text, nullable=False),
    Column("context_id", Text, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("messages_by_context", "owner", "context_id", "position"),
)


class TaskWrite(msgspec.Struct, frozen=True):
    """Something to be kept of one task: events, and what changed with the last of them.

    Attributes:
        task_id: The task.
        owner: Whose it is.
        context_id: The conversation.
        events: New events, in order.
        snapshot: The task as of the last of ``events``, where its state in the store is to be brought up to
            date (at the bounds of a turn); else None.
        said: Messages that join the conversation with these events.
    """

    task_id: str
    owner: str
    context_id: str
    events: Sequence[Event]
    snapshot: Task | None = None
    said: Sequence[Message] = ()


class StoredTask(msgspec.Struct, frozen=True):
    """A task as it was last brought up to date.

    Attributes:
        task: The task as of event ``number``.
        number: That event's number.
    """

    task: Task
    number: int


class Store:
    """Tasks, events and conversations in a SQL database.

    Args:
        url: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, or ``sqlite://`` for memory only.

    Raises:
        ConfigurationError: The URL is not one of a supported database.
    """

    def __init__(self, url: str) -> None:
        self._url = _async_url(url)
        self._engine: AsyncEngine | None = None
        self._writer: AsyncConnection | None = None
        self._lock: IO[bytes] | None = None
        # A database in memory has one connection, which one transaction at a time may use.
        self._alone = None if self._url.database else anyio.Lock()

    async def open(self) -> None:
        """Open the database and make the tables that are missing.

        Raises:
            StoreError: It cannot be opened, or another process has it open.
        """
        options: dict[str, Any] = {"poolclass": StaticPool} if self._alone else {}
        self._engine = create_async_engine(self._url, **options)
        event.listen(self._engine.sync_engine, "connect", _set_pragmas)
        async with _translate_errors("open the store"):
            if self._url.database:
                Path(self._url.database).parent.mkdir(parents=True, exist_ok=True)
                self._lock = _lock(f"{self._url.database}.lock")
            async with self._engine.begin() as connection:
                await connection.run_sync(_metadata.create_all)
            self._writer = await self._engine.connect()

    async def close(self) -> None:
        """Close all connections."""
        if self._writer is not None:
            await self._writer.close()
            self._writer = None
        if self._engine is not None:
            await self._engine.dispose()
            self._engine = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def commit(self, writes: Sequence[TaskWrite]) -> None:
        """Keep a batch of writes in one transaction; when this returns they are durable.

        Only one call at a time is allowed: the writer is the only one who writes.

        Raises:
            StoreError: Nothing of the batch was kept.
        """
        connection = self._writer
        if connection is None:
            raise StoreError("the store is closed")
        new_events = [
            {"task_id": write.task_id, "number": item.number, "body": item.body, "state": item.state}
            for write in writes
            for item in write.events
        ]
        said = [
            {
                "owner": write.owner,
                "context_id": write.context_id,
                "task_id": write.task_id,
                "body": message.to_json(),
            }
            for write in writes
            for message in write.said
        ]
        async with _translate_errors("write to the store"):
            async with self._alone or nullcontext(), connection.begin():
                if new_events:
                    await connection.execute(insert(events), new_events)
                if said:
                    await connection.execute(insert(messages), said)
                for write in writes:
                    if write.snapshot is not None:
                        await self._put_task(connection, write, write.snapshot)

    async def load_task(self, task_id: str, owner: str) -> StoredTask | None:
        """The task as last brought up to date; None when there is none of that id for that owner."""
        query = select(tasks.c.snapshot, tasks.c.number).where(tasks.c.id == task_id, tasks.c.owner == owner)
        rows = await self._read(query)
        if not rows:
            return None
        return StoredTask(Task.model_validate_json(rows[0].snapshot), rows[0].number)

    async def load_events(
        self, task_id: str, after: int, limit: int = 1000, max_bytes: int | None = None
    ) -> list[Event]:
        """The events after number ``after``, oldest first. The caller checks the owner.

        Args:
            task_id: The task.
            after: The number of the last event that is known.
            limit: How many events at most.
            max_bytes: How many bytes of bodies at most, though always one event; None for no bound.
        """
        wanted = (events.c.task_id == task_id, events.c.number > after)
        if max_bytes is not None:
            sizes = select(func.length(events.c.body)).where(*wanted).order_by(events.c.number).limit(limit)
            totals = itertools.accumulate(row[0] for row in await self._read(sizes))
            limit = max(1, sum(total <= max_bytes for total in totals))
        query = (
            select(events.c.number, events.c.body, events.c.state)
            .where(*wanted)
            .order_by(events.c.number)
            .limit(limit)
        )
        return [
            Event(row.number, row.body, TaskState(row.state) if row.state else None)
            for row in await self._read(query)
        ]

    async def load_conversation(self, context_id: str, owner: str, limit: int) -> list[Message]:
        """The newest ``limit`` messages of a conversation, oldest first."""
        query = (
            select(messages.c.body)
            .where(messages.c.owner == owner, messages.c.context_id == context_id)
            .order_by(messages.c.position.desc())
            .limit(limit)
        )
        return [Message.model_validate_json(row.body) for row in reversed(await self._read(query))]

    async def load_unfinished(self) -> list[tuple[str, str]]:
        """Id and owner of every task that is neither over nor waiting for its caller."""
        states = [state for state in TaskState if not (state.terminal or state.interrupted)]
        rows = await self._read(select(tasks.c.id, tasks.c.owner).where(tasks.c.state.in_(states)))
        return [(row.id, row.owner) for row in rows]

    async def _put_task(self, connection: AsyncConnection, write: TaskWrite, task: Task) -> None:
        values: dict[str, Any] = {
            "state": task.status.state,
            "updated": task.status.timestamp or datetime.now().astimezone(),
            "number": write.events[-1].number,
            "snapshot": task.to_json(),
        }
        changed = await connection.execute(update(tasks).where(tasks.c.id == write.task_id).values(values))
        if not changed.rowcount:
            key = {"id": write.task_id, "owner": write.owner, "context_id": write.context_id}
            await connection.execute(insert(tasks).values({**key, **values}))

    async def _read(self, query: Any) -> Sequence[Any]:
        if self._engine is None or self._writer is None:
            raise StoreError("the store is closed")
        async with _translate_errors("read from the store"):
            if self._alone is not None:
                async with self._alone, self._writer.begin():
                    return (await self._writer.execute(query)).all()
            async with self._engine.connect() as connection:
                return (await connection.execute(query)).all()


def _async_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigurationError(f"TAILRACE_STORE: {url!r} is not a database URL: {error}") from None
    if parsed.get_backend_name() != "sqlite":
        raise ConfigurationError(
            f"TAILRACE_STORE: the database {parsed.get_backend_name()!r} is not supported; use sqlite:///FILE"
        )
    if parsed.database == ":memory:":
        parsed = parsed.set(database=None)
    return parsed.set(drivername="sqlite+aiosqlite")


def _set_pragmas(connection: Any, _record: object) -> None:
    """Readers beside one writer, and a commit that survives the end of the process (not of the machine)."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA busy_timeout=5000")
    cursor.close()


def _lock(path: str) -> IO[bytes] | None:
    """Hold a file so that no other process can; it is let go when this one ends, however it ends.

    Two servers on one file would each take the other's running tasks for interrupted ones, and give the same
    numbers to different events.
    """
    if fcntl is None:
        return None
    file = Path(path).open("wb")  # held until the store is closed
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise StoreError(
            f"the store is in use by another process, which holds {path}: one server a database"
        ) from None
    return file


@asynccontextmanager
async def _translate_errors(what: str) -> AsyncGenerator[None]:
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        cause = getattr(error, "orig", None) or error
        temporary = isinstance(error, OperationalError | OSError)
        raise StoreError(f"cannot {what}: {cause}", temporary=temporary) from error

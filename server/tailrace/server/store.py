"""Where tasks, their events and the conversations are kept.

One interface and one implementation over SQLAlchemy Core; what SQLite and PostgreSQL do differently stands in
`tailrace.server.stores`. The engine hands over whole batches (see `tailrace.server.writer`), and a batch is one
transaction: either all of it is kept or none.
"""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from tailrace.server.stores.database import Database, parse_url
from tailrace.server.stores.push_config_rows import open_push_configs, put_push_config, read_push_config
from tailrace.server.stores.records import (
    EventsDropped,
    NotOurs,
    PushConfig,
    Retention,
    SendKey,
    StoredTask,
    TaskFilter,
    TaskPage,
    TaskPosition,
    TasksRefused,
    TaskWrite,
)
from tailrace.server.stores.retention import drop_expired
from tailrace.server.stores.schema import claims, events, messages, push_configs, send_keys, tasks
from tailrace.server.stores.sqlite import SqliteDatabase
from tailrace.server.stores.task_rows import has_more, holds_all, keep_tasks, rows_of
from tailrace.streaming.a2a.models import Message, Task
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.task import Event
from tailrace.wrappers import ConfigurationError, StoreError

__all__ = [
    "EventsDropped",
    "NotOurs",
    "PushConfig",
    "Retention",
    "SendKey",
    "Store",
    "StoredTask",
    "TaskFilter",
    "TaskPage",
    "TaskPosition",
    "TaskWrite",
    "TasksRefused",
]


class Store:
    """Tasks, events and conversations in a SQL database.

    Every method raises StoreError when the database does not work or the store is not open. Cancelling a method that
    writes gives up waiting: what it was to do is done wholly or not at all.

    Args:
        url: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite://`` for memory only, or
            ``postgresql://USER:PASSWORD@HOST/DATABASE``.
        retention: How long what is kept of tasks that are over.
        database: Used in the place of the URL's, where that is not used as usual.

    Raises:
        ConfigurationError: The URL is not one of a supported database, or its driver is missing.
    """

    def __init__(
        self, url: str, retention: Retention | None = None, *, database: Database | None = None
    ) -> None:
        self._database = database or _database(url)
        self._retention = retention or Retention()
        self._in_doubt = False

    async def open(self) -> None:
        """Open the database, and make or bring up to date its tables.

        Raises:
            StoreError: It cannot be opened, is damaged, is of a newer version, or another process has it open.
        """
        await self._database.open()

    async def close(self) -> None:
        """Close all connections."""
        await self._database.close()

    async def check(self) -> None:
        """Look whether the database answers.

        Raises:
            StoreError: It does not.
        """
        await self._read(select(1))

    async def try_writing(self) -> None:
        """Write something, and take it back in the same transaction: nobody ever sees it.

        Raises:
            StoreError: The database keeps nothing that it is given now, or this server may not write.
        """
        trial = {"owner": "", "name": f"trial:{uuid4().hex}"}
        this = (claims.c.owner == trial["owner"], claims.c.name == trial["name"])

        def work(connection: Connection) -> None:
            connection.execute(insert(claims).values(**trial, node=""))
            connection.execute(delete(claims).where(*this))

        await self._database.write(work)

    async def commit(self, writes: Sequence[TaskWrite]) -> None:
        """Keep a batch of writes in one transaction; when this returns they are durable.

        Raises:
            StoreError: Nothing of the batch was kept.
        """
        try:
            await self._write(writes)
        except StoreError as error:
            # A connection that is lost while a transaction is committed leaves it open whether it was: it is when the
            # next try finds the very same events there.
            was_in_doubt, self._in_doubt = self._in_doubt, error.temporary
            if error.temporary or not was_in_doubt:
                raise
            if not await self._database.read(lambda connection: holds_all(connection, writes)):
                raise
        else:
            self._in_doubt = False

    async def _write(self, writes: Sequence[TaskWrite]) -> None:
        further = list(filter(has_more, writes))
        if further:
            tasks = {write.task_id for write in further}
            await self._database.append(
                rows_of(writes), lambda connection: keep_tasks(connection, further), tasks=tasks
            )
        else:
            await self._database.append(rows_of(writes))

    async def drop_expired(self) -> bool:
        """Drop a small batch of what is kept no longer; says whether there may be more.

        A task that is over keeps its snapshot, in which all its events are. Nothing is dropped of tasks that are not
        over, and nothing that a webhook is to be told of yet.
        """
        now = datetime.now(UTC)
        return await self._database.write(lambda connection: drop_expired(connection, self._retention, now))

    async def load_task(self, task_id: str, owner: str) -> StoredTask | None:
        """The task as last brought up to date; None when there is none of that id for that owner."""
        query = select(tasks.c.snapshot, tasks.c.number, tasks.c.node)
        rows = await self._read(query.where(tasks.c.id == task_id, tasks.c.owner == owner))
        if not rows:
            return None
        return StoredTask(Task.model_validate_json(rows[0].snapshot), rows[0].number, rows[0].node)

    async def holds_task(self, task_id: str) -> bool:
        """Whether there is a task of that id, whoever owns it."""
        return bool(await self._read(select(tasks.c.id).where(tasks.c.id == task_id)))

    async def load_events(
        self, task_id: str, after: int, limit: int = 1000, max_bytes: int | None = None
    ) -> list[Event]:
        """The events after number ``after``, oldest first and without a gap. The caller checks the owner.

        Args:
            task_id: The task.
            after: The number of the last event that is known.
            limit: How many events at most.
            max_bytes: How many bytes of bodies at most, though always one event; None for no bound.

        Raises:
            EventsDropped: The next of them was dropped, as the task is over for long: its snapshot holds it.
        """
        tail = read_events([row[1:] for row in self._database.tail(task_id) if row[1] > after])
        return await self._database.read(
            lambda connection: _load_events(connection, task_id, after, limit, max_bytes, tail)
        )

    async def first_kept(self, task_id: str) -> int:
        """The number of the first event of a task that is there; one more than its last when none is.

        A reader can go on after any number from the one before this on.
        """
        return await self._database.read(lambda connection: _first_kept(connection, task_id, 0))

    async def load_conversation(self, context_id: str, owner: str, limit: int) -> list[Message]:
        """The newest ``limit`` messages of a conversation, oldest first."""
        query = (
            select(messages.c.body)
            .where(messages.c.owner == owner, messages.c.context_id == context_id)
            .order_by(messages.c.position.desc())
            .limit(limit)
        )
        return [Message.model_validate_json(row.body) for row in reversed(await self._read(query))]

    async def load_said(self, task_id: str, owner: str) -> list[Message]:
        """What was said in a task and is in its conversation, oldest first."""
        query = (
            select(messages.c.body)
            .where(messages.c.task_id == task_id, messages.c.owner == owner)
            .order_by(messages.c.position)
        )
        return [Message.model_validate_json(row.body) for row in await self._read(query)]

    async def load_send_key(self, owner: str, key: str) -> SendKey | None:
        """What became of a message that the owner named so; None when there is none, or none any more."""
        query = select(send_keys.c.fingerprint, send_keys.c.task_id)
        rows = await self._read(query.where(send_keys.c.owner == owner, send_keys.c.key == key))
        return SendKey(key, rows[0].fingerprint, rows[0].task_id) if rows else None

    async def list_tasks(
        self, owner: str, wanted: TaskFilter, *, after: TaskPosition | None, limit: int
    ) -> tuple[list[tuple[TaskPosition, Task]], int]:
        """Tasks of an owner, the one with the newest status first, as they were last brought up to date.

        Args:
            owner: Whose.
            wanted: Which.
            after: Go on behind this one.
            limit: How many at most.

        Returns:
            The tasks with their positions, and how many there are in all, before and behind ``after``.
        """
        conditions = [tasks.c.owner == owner]
        if wanted.context_id:
            conditions.append(tasks.c.context_id == wanted.context_id)
        if wanted.state is not None:
            conditions.append(tasks.c.state == wanted.state)
        if wanted.since is not None:
            conditions.append(tasks.c.updated >= wanted.since)
        total = await self._read(select(func.count()).select_from(tasks).where(*conditions))
        if after is not None:
            conditions.append(
                (tasks.c.updated < after.updated)
                | ((tasks.c.updated == after.updated) & (tasks.c.id < after.id))
            )
        query = (
            select(tasks.c.id, tasks.c.updated, tasks.c.snapshot)
            .where(*conditions)
            .order_by(tasks.c.updated.desc(), tasks.c.id.desc())
            .limit(limit)
        )
        found = [
            (TaskPosition(row.updated, row.id), Task.model_validate_json(row.snapshot))
            for row in await self._read(query)
        ]
        return found, total[0][0]

    async def load_unfinished(self) -> list[tuple[str, str]]:
        """Id and owner of every task that is neither over nor waiting for its caller."""
        states = [state for state in TaskState if not (state.terminal or state.interrupted)]
        rows = await self._read(select(tasks.c.id, tasks.c.owner).where(tasks.c.state.in_(states)))
        return [(row.id, row.owner) for row in rows]

    async def delete_task(self, task_id: str, owner: str) -> bool:
        """Forget a task with its events, its webhooks and what was said in it; says whether there was one.

        The caller sees to it that nothing of it is still to be written.
        """
        return await self._database.write(
            lambda connection: _delete_task(connection, task_id, owner), tasks=(task_id,)
        )

    # --- webhooks -----------------------------------------------------------------------------------------------

    async def put_push_config(self, config: PushConfig) -> None:
        """Keep a webhook, in the place of the one of the same ids, if there is one."""
        await self._database.write(lambda connection: put_push_config(connection, config))

    async def load_push_configs(self, task_id: str, owner: str) -> list[PushConfig]:
        """The webhooks of a task of that owner, in the order of their ids."""
        query = (
            select(push_configs)
            .where(push_configs.c.task_id == task_id, push_configs.c.owner == owner)
            .order_by(push_configs.c.id)
        )
        return [read_push_config(row) for row in await self._read(query)]

    async def load_open_push_configs(self) -> list[tuple[PushConfig, bool]]:
        """Every webhook that has or may yet have something to be told of, and whether it has so for certain."""
        return [(read_push_config(row), bool(row.behind)) for row in await self._read(open_push_configs())]

    async def delete_push_config(self, task_id: str, config_id: str) -> None:
        """Forget a webhook; nothing happens when there is none. The caller checks the owner."""
        where = (push_configs.c.task_id == task_id, push_configs.c.id == config_id)
        await self._database.write(lambda connection: connection.execute(delete(push_configs).where(*where)))

    async def mark_delivered(self, task_id: str, config_id: str, number: int) -> None:
        """Keep that a webhook was told of an event; nothing happens when the webhook is gone."""
        where = (push_configs.c.task_id == task_id, push_configs.c.id == config_id)
        change = update(push_configs).where(*where).values(delivered=number)
        await self._database.write(lambda connection: connection.execute(change))

    async def load_status_numbers(self, task_id: str, after: int, limit: int) -> list[tuple[int, TaskState]]:
        """The numbers of the events after number ``after`` that changed the task's status, and to what."""
        query = (
            select(events.c.number, events.c.state)
            .where(events.c.task_id == task_id, events.c.number > after, events.c.state.is_not(None))
            .order_by(events.c.number)
            .limit(limit)
        )
        return [(row.number, TaskState(row.state)) for row in await self._read(query)]

    async def _read(self, query: Any) -> Sequence[Any]:
        return await self._database.read(lambda connection: connection.execute(query).all())


def _database(url: str) -> Database:
    parsed = parse_url(url)
    match parsed.get_backend_name():
        case "sqlite":
            return SqliteDatabase(parsed)
        case "postgresql" | "postgres":
            # Here, since it brings SQLAlchemy's asyncio layer with it, which nobody else needs.
            from tailrace.server.stores.postgresql import PostgresqlDatabase

            return PostgresqlDatabase(parsed)
        case other:
            raise ConfigurationError(
                f"TAILRACE_STORE: the database {other!r} is not supported; use sqlite:///FILE or "
                "postgresql://USER:PASSWORD@HOST/DATABASE"
            )


# --- transactions -----------------------------------------------------------------------------------------------


def _load_events(
    connection: Connection,
    task_id: str,
    after: int,
    limit: int,
    max_bytes: int | None,
    tail: Sequence[Event],
) -> list[Event]:
    wanted = (events.c.task_id == task_id, events.c.number > after)
    most = limit
    if max_bytes is not None:
        sizes = select(func.length(events.c.body)).where(*wanted).order_by(events.c.number).limit(limit)
        totals = itertools.accumulate(connection.scalars(sizes))
        most = max(1, sum(total <= max_bytes for total in totals))
    query = (
        select(events.c.number, events.c.body, events.c.state)
        .where(*wanted)
        .order_by(events.c.number)
        .limit(most)
    )
    while True:
        rows = connection.execute(query).all()
        if rows and rows[0].number == after + 1:
            return _with_tail(read_events(rows), tail, limit, max_bytes)
        if tail and tail[0].number == after + 1:
            return _with_tail([], tail, limit, max_bytes)
        # Dropped, not there yet, or come in the meantime: one statement tells, as it sees one state of things.
        first = _first_kept(connection, task_id, after)
        if first > after + 1:
            raise EventsDropped(first)
        if first <= after or not connection.scalar(select(func.count()).where(*wanted)):
            return []


def _with_tail(found: list[Event], tail: Sequence[Event], limit: int, max_bytes: int | None) -> list[Event]:
    """Events that were found in the table, with those of the tail that follow on them, as far as there is room."""
    size = sum(len(event.body) for event in found)
    for event in tail:
        if found and event.number <= found[-1].number:
            continue  # moved into the table by now
        size += len(event.body)
        follows = not found or event.number == found[-1].number + 1
        if not follows or len(found) >= limit or (found and max_bytes is not None and size > max_bytes):
            break
        found.append(event)
    return found


def read_events(rows: Sequence[Any]) -> list[Event]:
    """Events of rows of their table."""
    return [Event(number, body, TaskState(state) if state else None) for number, body, state in rows]


def _first_kept_query() -> Any:
    task_id, after = (
        bindparam("task_id", type_=tasks.c.id.type),
        bindparam("after", type_=events.c.number.type),
    )
    kept = select(func.min(events.c.number)).where(events.c.task_id == task_id, events.c.number > after)
    last = select(tasks.c.number).where(tasks.c.id == task_id)
    return select(func.coalesce(kept.scalar_subquery(), last.scalar_subquery() + 1, after + 1))


# Made once: such a query is a cycle of objects, and every reader asks.
_FIRST_KEPT = _first_kept_query()


def _first_kept(connection: Connection, task_id: str, after: int) -> int:
    """The number of a task's first event behind ``after`` that is there; else what would be the next one's."""
    return connection.execute(_FIRST_KEPT, {"task_id": task_id, "after": after}).scalar_one()


def _delete_task(connection: Connection, task_id: str, owner: str) -> bool:
    gone = connection.execute(delete(tasks).where(tasks.c.id == task_id, tasks.c.owner == owner))
    if gone.rowcount:
        for table in (events, messages, push_configs, send_keys):
            connection.execute(delete(table).where(table.c.task_id == task_id))
    return bool(gone.rowcount)

"""Persists tasks, events and conversations.

All databases share one implementation, which uses SQLAlchemy Core. The modules `sqlite` and `postgresql` contain the differences
between databases.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import anyio
from sqlalchemy import ColumnElement, Connection, delete, func, select, update

from tailrace.server.store.completion_store import CompletionStore
from tailrace.server.store.conversation_list import ConversationList
from tailrace.server.store.database import Database, parse_url
from tailrace.server.store.event_rows import count_within, load_events, read_events
from tailrace.server.store.push_config_rows import PushConfigRows, open_push_configs
from tailrace.server.store.records import (
    INCOMPLETE_STATES,
    AttemptState,
    ConversationFilter,
    EventsDropped,
    ListPosition,
    NotOwnedError,
    PushConfig,
    Retention,
    SendKey,
    StoredCompletion,
    StoredPage,
    StoredTask,
    TaskFilter,
    TaskPage,
    TasksNotWrittenError,
    TaskWrite,
    UsageRecord,
)
from tailrace.server.store.retention import pending_deletion
from tailrace.server.store.schema import deletions, events, messages, push_configs, send_keys, tasks
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.server.store.secret_rows import installation_secret
from tailrace.server.store.sqlite import Durability, SqliteDatabase
from tailrace.server.store.task_rows import has_running_turn, put_unlisted_task
from tailrace.server.store.usage_store import UsageStore
from tailrace.server.store.writer import StoreWrites
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import A2AModel, Message, Task
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.concurrency.worker_thread import json_text_cost, run_bounded

__all__ = [
    "INCOMPLETE_STATES",
    "AttemptState",
    "ConversationFilter",
    "Durability",
    "EventsDropped",
    "ListPosition",
    "NotOwnedError",
    "PushConfig",
    "Retention",
    "SendKey",
    "Store",
    "StoredCompletion",
    "StoredTask",
    "TaskFilter",
    "TaskPage",
    "TaskWrite",
    "TasksNotWrittenError",
    "UsageRecord",
]

M = TypeVar("M", bound=A2AModel)

_UNENDED = [
    state.value
    for state in TaskState
    if not (state.terminal or state.interrupted) or state is TaskState.AUTH_REQUIRED
]

MAX_SEARCHED = 1000
"""Number of the newest messages of a conversation that are searched for a message to replace."""

MAX_PAGE_BYTES = 4 * 1024 * 1024
"""Maximum bytes of the stored tasks of one page."""

MAX_CONVERSATION_BYTES = 32 * 1024 * 1024
"""Maximum bytes of the messages that are loaded for a conversation or a task. The newest messages are loaded."""


class Store(StoreWrites):
    """Tasks, events and conversations in a SQL database.

    Every method raises StoreError if the database is not available, or if the store is not open. If a method that writes is
    cancelled, the write is still committed or rolled back completely.

    Args:
        url: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite://`` for memory only, or
            ``postgresql://USER:PASSWORD@HOST/DATABASE``.
        retention: The retention of events, tasks and usage; None for the defaults of `Retention`.
        durability: The failures that a commit on SQLite survives; see `Durability`.
        database: A database to use instead of the database of the URL.

    Attributes:
        completions: The stored chat completions.
        conversations: The list of the conversations of each owner.
        usage: The usage ledger.

    Raises:
        ConfigurationError: The database of the URL is not supported, or its driver is missing.
    """

    def __init__(
        self,
        url: str,
        retention: Retention | None = None,
        *,
        durability: Durability = "process",
        database: Database | None = None,
    ) -> None:
        super().__init__(database or _database(url, durability), retention or Retention())
        self.completions = CompletionStore(self._database)
        self.conversations = ConversationList(self._database)
        self.usage = UsageStore(self._database)

    @property
    def is_durable(self) -> bool:
        """Return whether the content of the store is kept after the process ends."""
        return self._database.is_durable

    @property
    def keys(self) -> SecretKeys:
        """Return the keys of the installation."""
        return self._keys

    def use_keys(self, keys: SecretKeys) -> None:
        """Set the keys of the installation, before `open`.

        If no secret is configured, `open` loads the stored secret into them.
        """
        self._keys = keys
        self._webhook_rows = PushConfigRows(keys)

    async def open(self) -> None:
        """Open the database, create or migrate its tables, and load the secret of the installation.

        Raises:
            StoreError: The database cannot be opened, is damaged, has a newer version, or is in use by another process.
        """
        await self._database.open()
        try:
            self._has_deletions = await self._database.read(pending_deletion) is not None
            if self._keys.is_configured:
                await anyio.to_thread.run_sync(self._webhook_rows.load)
            else:
                self._keys.use_stored(await self._database.write(installation_secret))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._database.close()
            raise

    async def close(self) -> None:
        """Close all connections."""
        await self._database.close()

    async def check(self) -> None:
        """Check that the database replies.

        Raises:
            StoreError: The database does not reply.
        """
        await self._read(select(1))

    async def load_task(self, task_id: str, owner: str, *other_ids: str) -> StoredTask | None:
        """Return the latest snapshot of a task; None if this owner has no such task.

        Args:
            task_id: The id of the task.
            owner: The owner.
            other_ids: Alternative ids of the task, which are tried in this order.
        """
        ids = (task_id, *other_ids)
        query = select(tasks.c.id, tasks.c.snapshot, tasks.c.number, tasks.c.node)
        rows = await self._read(query.where(tasks.c.id.in_(ids), tasks.c.owner == owner))
        if not rows:
            return None
        row = min(rows, key=lambda row: ids.index(row.id))
        [task] = await _parsed([row.snapshot], Task)
        return StoredTask(task, row.number, row.node)

    async def task_id_exists(self, task_id: str) -> bool:
        """Return whether any task, even a deleted one with remaining events, has this id."""
        exists = select(tasks.c.id).where(tasks.c.id == task_id)
        return bool(
            await self._read(exists.union(select(deletions.c.task_id).where(deletions.c.task_id == task_id)))
        )

    async def load_events(
        self, task_id: str, after: int, limit: int = 1000, max_bytes: int | None = None
    ) -> list[Event]:
        """Return the consecutive events after number ``after``, oldest first. The calling code must check the owner.

        Args:
            task_id: The task.
            after: The number of the last known event.
            limit: The maximum number of events.
            max_bytes: The maximum bytes of the bodies; None for no limit. The first event is returned even if it is larger.

        Raises:
            EventsDropped: The next event was deleted after the end of the task.
        """
        tail = read_events([row[1:] for row in self._database.tail(task_id) if row[1] > after])
        return await self._database.read(
            lambda connection: load_events(connection, task_id, after, limit, max_bytes, tail)
        )

    async def load_conversation(self, context_id: str, owner: str, limit: int) -> list[Message]:
        """Return the newest ``limit`` messages of a conversation within `MAX_CONVERSATION_BYTES`, oldest first."""
        conditions = (messages.c.owner == owner, messages.c.context_id == context_id)
        rows = await self._newest_rows(messages.c.body, conditions=conditions, limit=limit)
        return await _parsed([row.body for row in rows], Message)

    async def load_history(
        self, context_id: str, owner: str, limit: int
    ) -> tuple[list[Message], frozenset[str]]:
        """Return messages like `load_conversation`, and the ids of their tasks that have a running turn."""
        running = select(tasks.c.id).where(
            tasks.c.owner == owner, tasks.c.context_id == context_id, has_running_turn()
        )
        conditions = (messages.c.owner == owner, messages.c.context_id == context_id)
        runs = messages.c.task_id.in_(running).label("runs")
        rows = await self._newest_rows(
            messages.c.body, messages.c.task_id, runs, conditions=conditions, limit=limit
        )
        found = await _parsed([row.body for row in rows], Message)
        return found, frozenset(row.task_id for row in rows if row.runs)

    async def load_task_messages(self, task_id: str, owner: str, limit: int | None = None) -> list[Message]:
        """Return the newest ``limit`` messages of a task (all if None) within `MAX_CONVERSATION_BYTES`, oldest first."""
        conditions = (messages.c.task_id == task_id, messages.c.owner == owner)
        rows = await self._newest_rows(messages.c.body, conditions=conditions, limit=limit)
        return await _parsed([row.body for row in rows], Message)

    async def load_send_key(self, owner: str, key: str) -> SendKey | None:
        """Return the stored idempotency key of an owner's message; None if there is none."""
        query = select(send_keys.c.fingerprint, send_keys.c.task_id, send_keys.c.turn)
        rows = await self._read(query.where(send_keys.c.owner == owner, send_keys.c.key == key))
        return SendKey(key, *rows[0]) if rows else None

    async def list_tasks(
        self, owner: str, task_filter: TaskFilter, *, after: ListPosition | None, limit: int
    ) -> StoredPage:
        """Return the latest snapshots of the tasks of an owner, newest status first.

        Args:
            owner: The owner.
            task_filter: The filter.
            after: The position after which the page begins; None for the first page.
            limit: The maximum number of tasks. A page also ends after `MAX_PAGE_BYTES`, but has at least one task.

        Returns:
            The tasks with their positions, and the number of matching tasks on all pages.
        """
        conditions = [tasks.c.owner == owner, tasks.c.listed.is_(True)]
        if task_filter.context_id:
            conditions.append(tasks.c.context_id == task_filter.context_id)
        if task_filter.state is not None:
            conditions.append(tasks.c.state == task_filter.state)
        if task_filter.since is not None:
            conditions.append(tasks.c.updated >= task_filter.since)
        count = select(func.count()).select_from(tasks).where(*conditions)
        if after is not None:
            conditions.append(
                (tasks.c.updated < after.updated)
                | ((tasks.c.updated == after.updated) & (tasks.c.id < after.id))
            )
        order = (tasks.c.updated.desc(), tasks.c.id.desc())
        size = func.length(tasks.c.snapshot).label("size")
        sizes = select(tasks.c.id, tasks.c.updated, size).where(*conditions).order_by(*order).limit(limit + 1)

        def work(connection: Connection) -> tuple[int, Sequence[Any], bool, dict[str, bytes]]:
            total = connection.scalar(count) or 0
            rows = connection.execute(sizes).all()
            page = rows[: min(limit, count_within(MAX_PAGE_BYTES, [row.size for row in rows]))]
            query = select(tasks.c.id, tasks.c.snapshot).where(tasks.c.id.in_([row.id for row in page]))
            snapshots = {row.id: row.snapshot for row in connection.execute(query)}
            return total, page, len(rows) > len(page), snapshots

        total, rows, has_more, snapshots = await self._database.read(work)
        positions = [ListPosition(row.updated, row.id) for row in rows if row.id in snapshots]
        found = await _parsed([snapshots[position.id] for position in positions], Task)
        return StoredPage(list(zip(positions, found, strict=True)), total, has_more=has_more)

    async def load_unfinished(self) -> list[tuple[str, str]]:
        """Return the id and owner of every task with a running or interrupted turn, ordered by the time of the status."""
        query = select(tasks.c.id, tasks.c.owner).where(has_running_turn()).order_by(tasks.c.updated)
        rows = await self._read(query)
        return [(row.id, row.owner) for row in rows]

    async def load_unended(self, context_id: str, owner: str, prefix: str = "") -> list[Task]:
        """Return the tasks of a conversation that have not ended and do not wait for input, ordered by the time of the status.

        Args:
            context_id: The conversation.
            owner: The owner.
            prefix: If not empty, conversations with an id that begins with this text are included.
        """
        of_context = tasks.c.context_id == context_id
        if prefix:
            of_context |= func.substr(tasks.c.context_id, 1, len(prefix)) == prefix
        query = select(tasks.c.snapshot).where(
            tasks.c.owner == owner, of_context, tasks.c.state.in_(_UNENDED)
        )
        return await _parsed(
            [row.snapshot for row in await self._read(query.order_by(tasks.c.updated))], Task
        )

    async def list_conversation_tasks(self, context_id: str, owner: str, limit: int) -> list[str]:
        """Return the ids of at most ``limit`` tasks of a conversation of this owner."""
        query = select(tasks.c.id).where(tasks.c.owner == owner, tasks.c.context_id == context_id)
        return [row.id for row in await self._read(query.limit(limit))]

    async def put_unlisted_task(self, task: Task, owner: str, *, may_create: bool = True) -> bool:
        """Insert or replace an ended task without events. Lists of tasks do not contain this task.

        Args:
            task: The task. Its status has a timestamp.
            owner: The owner.
            may_create: True to insert the task if it does not exist.

        Returns:
            False if the id belongs to a task of another owner or to a listed task, or if the task does not exist and ``may_create``
            is False.
        """
        values = {"snapshot": task.to_json(), "updated": task.status.timestamp}
        row = {"id": task.id, "owner": owner, "context_id": task.context_id, "state": task.status.state}
        return await self._database.write(
            lambda connection: put_unlisted_task(connection, {**row, **values}, may_create=may_create)
        )

    async def replace_message(
        self, context_id: str, owner: str, current: Message, message: Message | None
    ) -> bool:
        """Replace the message ``current`` of a conversation, or delete it if ``message`` is None.

        The newest `MAX_SEARCHED` messages within `MAX_CONVERSATION_BYTES` are searched.

        Returns:
            False if no message equals ``current``.
        """
        body = message.to_json() if message is not None else None
        conditions = (messages.c.owner == owner, messages.c.context_id == context_id)
        columns = (messages.c.position, messages.c.body)
        rows = await self._newest_rows(*columns, conditions=conditions, limit=MAX_SEARCHED)
        cost = sum(4 + json_text_cost(row.body) for row in rows)
        found = await run_bounded(cost, _row_of, rows, current)
        if found is None:
            return False
        change = delete(messages) if body is None else update(messages).values(body=body)
        change = change.where(messages.c.position == found.position, messages.c.body == found.body)
        return await self._database.write(lambda connection: bool(connection.execute(change).rowcount))

    # --- webhooks -----------------------------------------------------------------------------------------------

    async def put_push_config(self, config: PushConfig) -> None:
        """Store a webhook, or replace the webhook with the same ids."""
        await self._database.write(lambda connection: self._webhook_rows.put(connection, config))

    async def load_push_configs(self, task_id: str, owner: str) -> list[PushConfig]:
        """Return the webhooks of a task of this owner, ordered by id, without webhooks that cannot be decrypted."""
        query = (
            select(push_configs)
            .where(push_configs.c.task_id == task_id, push_configs.c.owner == owner)
            .order_by(push_configs.c.id)
        )
        return self._webhook_rows.read_all(await self._read(query))

    async def has_push_config(self, task_id: str, config_id: str) -> bool:
        """Return whether a webhook exists."""
        conditions = (push_configs.c.task_id == task_id, push_configs.c.id == config_id)
        return bool(await self._read(select(push_configs.c.id).where(*conditions)))

    async def load_open_push_configs(self) -> list[tuple[PushConfig, bool]]:
        """Return all webhooks that may have notifications to deliver, each with whether it has undelivered events."""
        return self._webhook_rows.read_open(await self._read(open_push_configs()))

    async def delete_push_config(self, task_id: str, config_id: str) -> None:
        """Delete a webhook, if it exists. The calling code must check the owner."""
        conditions = (push_configs.c.task_id == task_id, push_configs.c.id == config_id)
        await self._database.write(
            lambda connection: connection.execute(delete(push_configs).where(*conditions))
        )

    async def mark_delivered(self, task_id: str, config_id: str, number: int) -> None:
        """Store the number of the last delivered event of a webhook. Do nothing if the webhook was deleted."""
        conditions = (push_configs.c.task_id == task_id, push_configs.c.id == config_id)
        change = update(push_configs).where(*conditions).values(delivered=number)
        await self._database.write(lambda connection: connection.execute(change))

    async def load_status_numbers(self, task_id: str, after: int, limit: int) -> list[tuple[int, TaskState]]:
        """Return the numbers of the events after ``after`` that changed the status of the task, with the new states."""
        query = (
            select(events.c.number, events.c.state)
            .where(events.c.task_id == task_id, events.c.number > after, events.c.state.is_not(None))
            .order_by(events.c.number)
            .limit(limit)
        )
        return [(row.number, TaskState(row.state)) for row in await self._read(query)]

    async def _newest_rows(
        self, *columns: ColumnElement[Any], conditions: Sequence[ColumnElement[bool]], limit: int | None
    ) -> list[Any]:
        """Return columns of the newest messages within `MAX_CONVERSATION_BYTES`, but of at least one message, oldest first.

        The sizes are read first, because PostgreSQL's driver loads all rows of a result.
        """
        position = messages.c.position
        sizes = select(position, func.length(messages.c.body).label("size")).where(*conditions)
        sizes = sizes.order_by(position.desc()).limit(limit)

        def work(connection: Connection) -> list[Any]:
            rows = connection.execute(sizes).all()
            rows = rows[: count_within(MAX_CONVERSATION_BYTES, [row.size for row in rows])]
            if not rows:
                return []
            newest = position.between(rows[-1].position, rows[0].position)
            return [*connection.execute(select(*columns).where(*conditions, newest).order_by(position)).all()]

        return await self._database.read(work)

    async def _read(self, query: Any) -> Sequence[Any]:
        return await self._database.read(lambda connection: connection.execute(query).all())


async def _parsed(rows: Sequence[bytes], model: type[M]) -> list[M]:
    """Parse rows, in a thread if there are many or large rows."""
    cost = sum(4 + json_text_cost(row) for row in rows)
    return await run_bounded(cost, lambda: [model.from_json(row) for row in rows])


def _row_of(rows: Sequence[Any], message: Message) -> Any:
    """Return the newest row that contains a message; None if there is none."""
    return next((row for row in reversed(rows) if Message.from_json(row.body) == message), None)


def _database(url: str, durability: Durability) -> Database:
    parsed = parse_url(url)
    match parsed.get_backend_name():
        case "sqlite":
            return SqliteDatabase(parsed, durability)
        case "postgresql" | "postgres":
            # Imported here, because it imports SQLAlchemy's asyncio layer, which SQLite does not need.
            from tailrace.server.store.postgresql import PostgresqlDatabase

            return PostgresqlDatabase(parsed)
        case other:
            raise ConfigurationError(
                f"TAILRACE_STORE: the database {other!r} is not supported; use sqlite:///FILE or "
                "postgresql://USER:PASSWORD@HOST/DATABASE"
            )

"""The store of a node: PostgreSQL, and the streams of the broker for most events.

A write that has more than events (a snapshot, messages, webhooks, an idempotency key or usage) is first written to PostgreSQL
with its events. Then the events of all writes are added to the streams of the tasks. If the node dies between these two steps,
every subscriber reads the events from PostgreSQL. While the broker is not available, all events are written to PostgreSQL.
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

import anyio
from sqlalchemy import Connection, func, select, text
from sqlalchemy.dialects.postgresql import insert

from tailrace.server.cluster.broker_connection import BrokerError
from tailrace.server.cluster.event_streams import WORKING_TTL, Addition, Outcome, TaskStreams
from tailrace.server.cluster.node import Node, NodeDatabase
from tailrace.server.cluster.ownership import TaskOwnership, conversation_claim, owned_ids, release_claim
from tailrace.server.store.database import parse_url
from tailrace.server.store.event_rows import insert_events, read_events, rows_after
from tailrace.server.store.retention import drop_deleted, drop_expired, pending_deletion
from tailrace.server.store.schema import claims, events, tasks
from tailrace.server.store.store import (
    EventsDropped,
    NotOwnedError,
    PushConfig,
    Retention,
    Store,
    TasksNotWrittenError,
    TaskWrite,
)
from tailrace.server.store.task_rows import Bodies, write_tasks
from tailrace.server.store.writer import is_large_batch, rows_of, writes_beyond_events
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.wrappers import StoreError

ENTRIES = 500
"""Maximum number of entries of a stream in one read."""

_DROPS_ALONE = text(
    "SELECT pg_try_advisory_xact_lock(hashtextextended('tailrace-drops:' || current_schema(), 0))"
)


class ClusterStore(Store):
    """A store that nodes share.

    Args:
        url: The URL of the PostgreSQL database.
        node: This node.
        streams: The events of tasks in the broker.
        retention: As for `Store`.
        stream_ttl: Seconds from the end of a task until its stream, with its events, expires.

    Attributes:
        database: The PostgreSQL database.
        ownership: The ownership of tasks.
        streams: The events of tasks in the broker.

    Raises:
        ConfigurationError: As for `Store`.
    """

    def __init__(
        self,
        url: str,
        node: Node,
        streams: TaskStreams,
        retention: Retention | None = None,
        *,
        stream_ttl: float = 3600.0,
    ) -> None:
        self.database = NodeDatabase(parse_url(url), node)
        super().__init__(url, retention, database=self.database)
        self._node = node
        self.ownership = TaskOwnership(self.database, node, self._webhook_rows)
        self.streams = streams
        self._stream_ttl = max(1, round(stream_ttl))
        # For each task whose turn this node runs, whether this node has added to the task's stream.
        self._own_tasks: dict[str, bool] = {}
        # The results of earlier attempts to write the current batch.
        self._persisted: list[TaskWrite] = []
        self._taken_over_tasks: set[str] = set()
        # Tasks of an earlier id of this node, without persisted events. Their writes are refused.
        self._abandoned: set[str] = set()

    # --- writing ------------------------------------------------------------------------------------------------

    async def commit(self, writes: Sequence[TaskWrite]) -> None:
        """Persist writes like `Store.commit`.

        Raises:
            TasksNotWrittenError: The writes of some tasks were not persisted, because other nodes have taken over these tasks, or
                because PostgreSQL failed temporarily (``temporary``).
            StoreError: It is unknown whether any write was persisted.
        """
        if not self._node.may_write:
            raise StoreError(
                f"this node could not write a heartbeat within {self._node.ttl:g} s, so it may not write"
            )
        database_ids = {write.task_id for write in writes_beyond_events(writes)}
        database_ids |= {write.task_id for write in writes if write.task_id not in self._own_tasks}
        refused: dict[str, StoreError] = {}
        database_writes = [write for write in writes if write.task_id in database_ids]
        additions = _additions(
            [write for write in writes if write.task_id not in database_ids], self._own_tasks
        )
        if database_writes:
            failure: list[StoreError] = []
            async with anyio.create_task_group() as group:
                if additions:
                    group.start_soon(self._add, additions, refused)
                try:
                    await self._write_to_database(database_writes)
                except StoreError as error:
                    failure.append(error)
            if failure and additions and failure[0].temporary:
                raise TasksNotWrittenError(dict.fromkeys(database_ids, failure[0]), temporary=True)
            if failure:
                raise failure[0]
            for task_id in self._taken_over_tasks:
                refused[task_id] = NotOwnedError("another node has taken over the task")
            self._abandoned -= self._taken_over_tasks
            await self._add(self._stream_additions(database_writes), refused, are_persisted=True)
        else:
            await self._add(additions, refused)
        for write in database_writes:
            if write.snapshot is not None and not _is_running(write.snapshot.status.state):
                self._own_tasks.pop(write.task_id, None)
        self._persisted.clear()
        self._taken_over_tasks.clear()
        if refused:
            for task_id in refused:
                self._own_tasks.pop(task_id, None)
            raise TasksNotWrittenError(refused)

    async def _write_to_database(self, writes: list[TaskWrite]) -> None:
        """Write a batch in one transaction. Skip writes that an earlier attempt has persisted."""
        persisted = set(map(id, self._persisted))
        missing = [write for write in writes if id(write) not in persisted]
        if missing:
            await super().commit(missing)
            self._persisted += missing

    async def _write(self, writes: Sequence[TaskWrite]) -> None:
        bodies = await self._encoded(writes, is_large=is_large_batch(writes))
        await self._database.write(lambda connection: self._persist(connection, writes, bodies))

    def _persist(self, connection: Connection, writes: Sequence[TaskWrite], bodies: Bodies) -> None:
        node = self._node.id
        created = {write.task_id for write in writes if write.events and write.events[0].number == 1}
        known = {write.task_id for write in writes if write.task_id} - created
        self._taken_over_tasks = (known - owned_ids(connection, known, node)) | (created & self._abandoned)
        writes = [write for write in writes if write.task_id not in self._taken_over_tasks]
        insert_events(connection, rows_of(writes))
        write_tasks(connection, writes, bodies, self._webhook_rows, node)
        for write in writes:
            if not write.holds_conversation_lock:
                continue
            if write.task_id in created and write.events:
                conversation = {"owner": write.owner, "name": conversation_claim(write.context_id)}
                values = {**conversation, "node": node, "task_id": write.task_id}
                connection.execute(insert(claims).values(values).on_conflict_do_nothing())
            if write.snapshot is not None and not _is_running(write.snapshot.status.state):
                release_claim(connection, write.owner, conversation_claim(write.context_id), node)

    def _stream_additions(self, writes: list[TaskWrite]) -> list[Addition]:
        additions = _additions(
            [write for write in writes if write.task_id not in self._taken_over_tasks], self._own_tasks
        )
        for write in writes:
            if write.task_id and write.task_id not in self._taken_over_tasks:
                self._own_tasks.setdefault(write.task_id, False)
        ended = {
            write.task_id: write.snapshot.status.state.terminal
            for write in writes
            if write.snapshot is not None
        }
        return [
            Addition(
                each.task_id,
                each.events,
                each.is_first,
                self._stream_ttl if ended.get(each.task_id) else WORKING_TTL,
            )
            for each in additions
        ]

    async def _add(
        self, additions: list[Addition], refused: dict[str, StoreError], *, are_persisted: bool = False
    ) -> None:
        """Add events to streams, or to PostgreSQL while the broker is not available.

        Args:
            additions: The events to add.
            refused: Receives an error for each task, by its id, that another node has taken over.
            are_persisted: True if PostgreSQL already has the events.
        """
        if not additions:
            return
        unpersisted = [] if are_persisted else additions
        missing: list[Addition] = []
        if self.streams.broker.is_usable:
            try:
                outcomes = await self.streams.add(self._node.id, additions)
            except BrokerError as error:
                self.streams.broker.fail(error)
            else:
                contested: list[Addition] = []
                for each, outcome in zip(additions, outcomes, strict=True):
                    self._own_tasks[each.task_id] = True
                    if outcome is Outcome.REFUSED:
                        # Another node took the task over, or the last entry is forged.
                        contested.append(each)
                    elif outcome is Outcome.MISSING:
                        missing.append(each)
                if are_persisted:
                    for task_id in await self._taken_over(contested):
                        refused[task_id] = NotOwnedError("another node has taken over the task")
                else:
                    unpersisted = contested + missing
        if unpersisted:
            await self._add_to_database(unpersisted, refused)
        for each in missing:  # the broker has lost its data; the next addition starts a new stream
            self._own_tasks[each.task_id] = False

    async def _add_to_database(self, additions: list[Addition], refused: dict[str, StoreError]) -> None:
        rows = [
            {"task_id": each.task_id, "number": event.number, "body": event.body, "state": event.state}
            for each in additions
            for event in each.events
        ]
        node = self._node.id

        def work(connection: Connection) -> set[str]:
            ids = {each.task_id for each in additions}
            foreign = ids - owned_ids(connection, ids, node)
            mine = [row for row in rows if row["task_id"] not in foreign]
            if mine:
                # The reply to an earlier, successful attempt may have been lost.
                connection.execute(insert(events).on_conflict_do_nothing(), mine)
            return foreign

        for task_id in await self._database.write(work):
            refused[task_id] = NotOwnedError("another node has taken over the task")

    async def _taken_over(self, additions: list[Addition]) -> list[str]:
        """Return the ids of the tasks that other nodes have taken over."""
        if not additions:
            return []
        of_others = tasks.c.id.in_([each.task_id for each in additions]) & (tasks.c.node != self._node.id)
        return [row.id for row in await self._read(select(tasks.c.id).where(of_others))]

    def record_fence(self, task_id: str) -> None:
        """Record that this node has fenced the stream of a task (`TaskStreams.fence`)."""
        self._own_tasks[task_id] = True

    def forget_own_tasks(self, unpersisted: Collection[str] = ()) -> None:
        """Forget the tasks of this node, because it has a new id.

        Args:
            unpersisted: Tasks without persisted events, whose later writes are refused.
        """
        self._own_tasks.clear()
        self._abandoned.update(unpersisted)

    async def delete_task(self, task_id: str, owner: str) -> bool:
        """Delete a task like `Store.delete_task`, and delete its stream."""
        is_deleted = await super().delete_task(task_id, owner)
        if is_deleted:
            await self.streams.remove(task_id)
        return is_deleted

    async def drop_expired(self) -> bool:
        """Delete expired rows like `Store.drop_expired`, and the stream of a deleted task."""
        now = datetime.now(UTC)
        deleted = await self._database.read(pending_deletion)  # the deleting node may have ended
        if deleted is not None:
            await self.streams.remove(deleted)
            await self._database.write(lambda connection: drop_deleted(connection, deleted))
            return True

        def work(connection: Connection) -> bool:
            alone = bool(connection.scalar(_DROPS_ALONE))
            return alone and drop_expired(connection, self._retention, now)

        return await self._database.write(work)

    # --- reading ------------------------------------------------------------------------------------------------

    async def load_events(
        self, task_id: str, after: int, limit: int = 1000, max_bytes: int | None = None
    ) -> list[Event]:
        """Return events like `Store.load_events`, from the stream or from PostgreSQL.

        Raises:
            EventsDropped: Neither the stream nor PostgreSQL has the next event.
            StoreError: The stream or PostgreSQL may have the next event, but cannot be read.
        """
        failure: BrokerError | None = None
        first = 0
        for attempt in range(2):
            # If events are added between the two reads, PostgreSQL may have event 6 when only the stream has event 5.
            try:
                found = await self._read_stream(task_id, after, limit, max_bytes)
            except BrokerError as error:
                failure, found = error, []
            if found and found[0].number == after + 1:
                return found
            rows, first, ended_at = await self._read_rows(task_id, after, limit, max_bytes)
            if rows:
                return rows
            first = min((number for number in (first, found[0].number if found else 0) if number), default=0)
            if failure is not None and (ended_at is None or (first and not self._has_expired(ended_at))):
                raise failure  # the stream may have the events
            if not first:
                return []
            if attempt:
                break
        raise EventsDropped(first)

    def _has_expired(self, ended_at: datetime) -> bool:
        """Return True if the stream of a task that ended at this time has expired."""
        return datetime.now(UTC) - ended_at > timedelta(seconds=self._stream_ttl)

    async def _read_stream(self, task_id: str, after: int, limit: int, max_bytes: int | None) -> list[Event]:
        """Return consecutive events from a stream after a number."""
        if not self.streams.broker.is_usable:
            raise BrokerError("the broker (TAILRACE_EVENTS) does not work at present")
        found: list[Event] = []
        size = 0
        last = after
        while len(found) < limit:
            page = await self.streams.read(task_id, last, min(ENTRIES, 1 + limit - len(found)))
            for event in page.events:
                if found and event.number != last + 1:
                    return found
                size += len(event.body)
                if found and (len(found) == limit or (max_bytes is not None and size > max_bytes)):
                    return found
                found.append(event)
                last = event.number
            if not page.events:
                break
        return found

    async def _read_rows(
        self, task_id: str, after: int, limit: int, max_bytes: int | None
    ) -> tuple[list[Event], int, datetime | None]:
        """Return consecutive events from PostgreSQL after a number.

        Returns:
            Three values:

            1. the consecutive events after ``after``, which may be none;

            2. the number of the first event after ``after`` in PostgreSQL. If there is none, the number after the last event of
               the stored snapshot, or 0 if the snapshot has no event after ``after``;

            3. the time at which the task ended; None if the task has not ended; the year 1 if there is no such task.
        """

        def work(connection: Connection) -> tuple[list[Event], int, datetime | None]:
            rows = rows_after(connection, task_id, after, limit, max_bytes)
            dense = [row for at, row in enumerate(rows) if row.number == after + 1 + at]
            task = connection.execute(
                select(tasks.c.number, tasks.c.state, tasks.c.updated).where(tasks.c.id == task_id)
            ).first()
            first = rows[0].number if rows else 0
            if task is None:
                return read_events(dense), first, datetime.min.replace(tzinfo=UTC)
            if not first and task.number > after:
                first = task.number + 1  # events up to this number are in the stream, or were deleted
            return read_events(dense), first, task.updated if TaskState(task.state).terminal else None

        return await self._database.read(work)

    async def last_numbers(self, task_ids: Sequence[str]) -> dict[str, int]:
        """Return the number of the last event of each task in PostgreSQL."""
        newest = select(func.max(events.c.number)).where(events.c.task_id == tasks.c.id).scalar_subquery()
        number = func.greatest(tasks.c.number, func.coalesce(newest, 0)).label("last")
        query = select(tasks.c.id, number).where(tasks.c.id.in_(task_ids))
        return {row.id: row.last for row in await self._read(query)}

    async def load_unfinished(self) -> list[tuple[str, str]]:
        """Return an empty list: `TaskOwnership.take_over` returns the unfinished tasks of dead nodes."""
        return []

    # --- webhooks -----------------------------------------------------------------------------------------------

    async def put_push_config(self, config: PushConfig) -> None:
        """Store a webhook like `Store.put_push_config`."""
        node = self._node.id
        await self._database.write(lambda connection: self._webhook_rows.put(connection, config, node))

    async def load_open_push_configs(self) -> list[tuple[PushConfig, bool]]:
        """Return an empty list: `TaskOwnership.take_over_webhooks` returns the webhooks of dead nodes."""
        return []


def _is_running(state: TaskState) -> bool:
    return not (state.terminal or state.interrupted)


def _additions(writes: Sequence[TaskWrite], owned: dict[str, bool]) -> list[Addition]:
    """Return one addition for each task, with the events of its writes."""
    by_task: dict[str, list[Event]] = {}
    for write in writes:
        if write.events:
            by_task.setdefault(write.task_id, []).extend(write.events)
    return [
        Addition(task_id, of_task, not owned.get(task_id, False), 0) for task_id, of_task in by_task.items()
    ]

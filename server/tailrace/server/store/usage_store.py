"""The usage ledger: the usage of each attempt.

The row of an attempt is inserted in the transaction of the next event of its task.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Executable, case, delete, func, select, update

from tailrace.server.store.database import Database
from tailrace.server.store.records import INCOMPLETE_STATES, AttemptState, TaskWrite, UsageRecord
from tailrace.server.store.schema import ledger

MILLISECONDS_PER_DAY = 86_400_000

GROUPS = ("day", "caller", "agent", "provider", "model", "state")
"""The columns by which usage can be grouped."""

_DAY = (ledger.c.ended - ledger.c.ended % MILLISECONDS_PER_DAY).label("day")
_SUMS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "cost")


class UsageFilter(msgspec.Struct, frozen=True):
    """A filter of attempts.

    Attributes:
        start: The start of the period, in milliseconds since 1970. An attempt belongs to the period in which it ends.
        end: The end of the period (exclusive), in milliseconds since 1970.
        caller: The caller; None for all.
        agent: The agent; None for all.
        model: The requested model; None for all.
    """

    start: int
    end: int
    caller: str | None = None
    agent: str | None = None
    model: str | None = None


class UsageSum(msgspec.Struct, frozen=True):
    """The usage of a group of attempts.

    Attributes:
        group: The values of the group, in the order of ``group_by``. A day is a date in UTC.
        attempts: The number of attempts.
        incomplete_attempts: The number of attempts that may have used more tokens than were reported.
        unpriced_attempts: The number of attempts with tokens but without a known price.
        input_tokens: The sum of the input tokens.
        cached_tokens: The sum of the cached input tokens.
        output_tokens: The sum of the output tokens.
        reasoning_tokens: The sum of the reasoning tokens.
        cost: The sum of the costs, in 1e-9 US dollars.
    """

    group: tuple[str, ...]
    attempts: int
    incomplete_attempts: int
    unpriced_attempts: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost: int


class SpentUsage(msgspec.Struct, frozen=True):
    """The usage of a model in a period.

    Attributes:
        provider: The provider.
        model: The requested model.
        tokens: The sum of the reported input and output tokens.
        missing_tokens: An estimate of the unreported output tokens of incomplete attempts: the number of chunks minus the
            reported output tokens.
        cost: The sum of the known costs, in 1e-9 US dollars.
    """

    provider: str
    model: str
    tokens: int
    missing_tokens: int
    cost: int


class UsageStore:
    """Reads the usage ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def sums(self, usage_filter: UsageFilter, group_by: Sequence[str], limit: int) -> list[UsageSum]:
        """Return the usage of each group, ordered by the values of the group.

        Attempts in the state `AttemptState.ATTACHED` are ignored: the usage of the next attempt includes them.

        Args:
            usage_filter: The filter.
            group_by: Columns of `GROUPS`; empty for one sum. If no attempt matches the filter, the result is empty in both cases.
            limit: The number of groups that the caller accepts. One more is returned if it exists, so that the caller can detect
                the excess.

        Raises:
            StoreError: The read failed.
        """
        keys: list[ColumnElement[Any]] = [_DAY if name == "day" else ledger.c[name] for name in group_by]
        query = select(*keys, *_aggregates()).where(*_conditions(usage_filter))
        query = query.group_by(*keys).order_by(*keys).limit(limit + 1)
        count = len(keys)

        def work(connection: Connection) -> list[UsageSum]:
            return [
                UsageSum(tuple(map(_text, row[:count])), *map(int, row[count:]))
                for row in connection.execute(query)
                if row[count]
            ]

        return await self._database.read(work)

    async def spent(self, caller: str | None, start: int, end: int) -> list[SpentUsage]:
        """Return the usage of each model in a period.

        Args:
            caller: The caller; None for all.
            start: The start, in milliseconds since 1970.
            end: The end (exclusive), in milliseconds since 1970.

        Raises:
            StoreError: The read failed.
        """
        keys = (ledger.c.provider, ledger.c.model)
        missing = case(
            (
                ledger.c.state.in_(INCOMPLETE_STATES) & (ledger.c.chunks > ledger.c.output_tokens),
                ledger.c.chunks - ledger.c.output_tokens,
            ),
            else_=0,
        )
        sums = (ledger.c.input_tokens + ledger.c.output_tokens, missing, func.coalesce(ledger.c.cost, 0))
        columns: list[ColumnElement[Any]] = [*keys, *map(func.sum, sums)]
        query = select(*columns).where(
            ledger.c.ended >= start, ledger.c.ended < end, ledger.c.state != AttemptState.ATTACHED
        )
        query = query.group_by(*keys)
        if caller is not None:
            query = query.where(ledger.c.caller == caller)

        def work(connection: Connection) -> list[SpentUsage]:
            rows = [list[Any](row) for row in connection.execute(query)]
            return [SpentUsage(row[0], row[1], *map(int, row[2:])) for row in rows]

        return await self._database.read(work)

    async def last_attempt(self, task_id: str, turn: int) -> UsageRecord | None:
        """Return the last attempt of a turn; None if there is none.

        Raises:
            StoreError: The read failed.
        """
        columns = [ledger.c[name] for name in UsageRecord.__struct_fields__]
        query = select(*columns).where(ledger.c.task_id == task_id, ledger.c.turn == turn)
        query = query.order_by(ledger.c.attempt.desc()).limit(1)

        def work(connection: Connection) -> UsageRecord | None:
            for row in connection.execute(query):
                record = UsageRecord(*list[Any](row))
                return msgspec.structs.replace(record, state=AttemptState(record.state))
            return None

        return await self._database.read(work)


def insert_usage(connection: Connection, writes: Iterable[TaskWrite]) -> None:
    """Insert the attempts of writes. If an attempt is already stored, only its state is changed."""
    rows = [
        {"task_id": write.task_id or None, **msgspec.structs.asdict(record)}
        for write in writes
        for record in write.usage
    ]
    if rows:
        connection.execute(_insert(connection.dialect.name), rows)


def forget_tasks(connection: Connection, task_ids: Sequence[str]) -> None:
    """Remove the ids of deleted tasks from the ledger. The usage remains."""
    connection.execute(update(ledger).where(ledger.c.task_id.in_(task_ids)).values(task_id=None))


def drop_usage(connection: Connection, before: datetime, limit: int) -> bool:
    """Delete a batch of the attempts that ended before a time, and return whether there may be more."""
    oldest = select(ledger.c.position).where(ledger.c.ended < milliseconds(before)).limit(limit)
    positions = connection.scalars(oldest).all()
    if positions:
        connection.execute(delete(ledger).where(ledger.c.position.in_(positions)))
    return len(positions) == limit


def milliseconds(time: datetime) -> int:
    """Convert a time to milliseconds since 1970."""
    return int(time.timestamp() * 1000)


def _aggregates() -> list[ColumnElement[Any]]:
    is_unpriced = ledger.c.cost.is_(None) & (ledger.c.input_tokens + ledger.c.output_tokens > 0)
    return [
        func.count(),
        _count_if(ledger.c.state.in_(INCOMPLETE_STATES)),
        _count_if(is_unpriced),
        *(func.coalesce(func.sum(ledger.c[name]), 0) for name in _SUMS),
    ]


def _count_if(condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


def _conditions(usage_filter: UsageFilter) -> list[ColumnElement[bool]]:
    conditions = [
        ledger.c.ended >= usage_filter.start,
        ledger.c.ended < usage_filter.end,
        ledger.c.state != AttemptState.ATTACHED,
    ]
    for name in ("caller", "agent", "model"):
        value = getattr(usage_filter, name)
        if value is not None:
            conditions.append(ledger.c[name] == value)
    return conditions


def _text(value: Any) -> str:
    """Convert a value of a group to text. A day becomes a date."""
    if isinstance(value, str):
        return value
    return str(date.fromordinal(_EPOCH + int(value) // MILLISECONDS_PER_DAY))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC).toordinal()


@cache
def _insert(dialect: str) -> Executable:
    """Return an INSERT. If the attempt is already stored, it changes the state, and nothing else."""
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as insert_into
    else:
        from sqlalchemy.dialects.postgresql import insert as insert_into
    insert = insert_into(ledger).inline()
    return insert.on_conflict_do_update(
        index_elements=["task_id", "turn", "attempt"], set_={"state": insert.excluded.state}
    )

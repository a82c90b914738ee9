"""The tables, as the newest migration leaves them, and the types of their columns.

A change here needs a migration beside it (``migrations/versions``), and `HEAD` is its number. An existing database is
brought here by migrations, a new one made here at once; a test compares the two.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    text,
    true,
)

HEAD = "0005"
"""The newest migration: the version of a database that this code reads and writes."""

metadata = MetaData()


class Name(TypeDecorator[str]):
    """Text that names something: compared and put in order by its code points, as Python does.

    PostgreSQL would go by a language's rules, and takes no NUL, which callers may well put into an id.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        """The type of the database."""
        return dialect.type_descriptor(Text(collation="C") if dialect.name == "postgresql" else Text())

    def bind_processor(self, dialect: Dialect) -> Any:
        """Nothing where nothing is to be done: an event has such a name, and there are many events."""
        return super().bind_processor(dialect) if dialect.name == "postgresql" else None

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """As `bind_processor`."""
        return super().result_processor(dialect, coltype) if dialect.name == "postgresql" else None

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """What the database is given."""
        if value is None or not ("\0" in value or "\\" in value):
            return value
        return value.replace("\\", "\\\\").replace("\0", "\\0")

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """What was given to the database."""
        if value is None or "\\" not in value:
            return value
        return "\\".join(part.replace("\\0", "\0") for part in value.split("\\\\"))


class Time(TypeDecorator[datetime]):
    """A time, of whatever zone, as UTC: SQLite keeps no zone, and compares what is written."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """What the database is given."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """What was given to the database, in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# SQLite counts up by itself in columns of this very name only.
Position = BigInteger().with_variant(Integer, "sqlite")

tasks = Table(
    "tasks",
    metadata,
    Column("id", Name, primary_key=True),
    Column("owner", Name, nullable=False),
    Column("context_id", Name, nullable=False),
    Column("state", Text, nullable=False),
    Column("updated", Time, nullable=False),
    # The task as of event `number`; what happened since stands in `events`.
    Column("number", Integer, nullable=False),
    Column("snapshot", LargeBinary, nullable=False),
    # Not all of its events were dropped yet.
    Column("events_kept", Boolean, nullable=False, server_default=true()),
    # The node that writes it, where several servers share the database; none once the task is over.
    Column("node", Name),
    Index("tasks_by_context", "owner", "context_id"),
    Index("tasks_by_time", "owner", "updated", "id"),
    Index("tasks_by_state_and_time", "state", "updated"),
)

# Which tasks have events to be dropped, among any number of others. SQLite takes it when its condition is written as
# the query's is, and prefers it for the number of columns that the query names, though the first is always the same.
tasks_with_events = Index(
    "tasks_with_events",
    tasks.c.events_kept,
    tasks.c.state,
    tasks.c.updated,
    sqlite_where=text("events_kept = 1"),
)

events = Table(
    "events",
    metadata,
    Column("task_id", Name, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    Column("state", Text),
    sqlite_with_rowid=False,
)

# SQLite's newest events, before they are rows of their own (`tailrace.server.stores.journal`); empty elsewhere.
journal = Table(
    "journal",
    metadata,
    Column("position", Position, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
)

# Webhooks look for the changes of status alone, among any number of other events.
status_events = Index(
    "status_events",
    events.c.task_id,
    events.c.number,
    sqlite_where=events.c.state.is_not(None),
)


def know_postgresql() -> None:
    """Give the indexes PostgreSQL's conditions: to name them above would import all that SQLAlchemy has for it."""
    for index, condition in (
        (tasks_with_events, text("events_kept")),
        (status_events, events.c.state.is_not(None)),
    ):
        index.dialect_options["postgresql"]["where"] = condition


messages = Table(
    "messages",
    metadata,
    Column("position", Position, primary_key=True, autoincrement=True),
    Column("owner", Name, nullable=False),
    Column("context_id", Name, nullable=False),
    Column("task_id", Name, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("messages_by_context", "owner", "context_id", "position"),
    Index("messages_by_task", "task_id"),
)

push_configs = Table(
    "push_configs",
    metadata,
    Column("task_id", Name, primary_key=True),
    Column("id", Name, primary_key=True),
    Column("owner", Name, nullable=False),
    Column("dialect", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    # The number of the last event that its webhook was told of.
    Column("delivered", Integer, nullable=False),
    # The node that tells it.
    Column("node", Name),
)

# What callers named their messages by, and the tasks that those made or went on with.
send_keys = Table(
    "send_keys",
    metadata,
    Column("owner", Name, primary_key=True),
    Column("key", Name, primary_key=True),
    Column("task_id", Name, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Index("send_keys_by_task", "task_id"),
)

# The servers that share the database (`tailrace.server.cluster`); one that is not here any more is dead.
nodes = Table("nodes", metadata, Column("id", Name, primary_key=True), Column("beat", Time, nullable=False))

# What a node does that no other may do at the same time, by whose it is: the turns of a conversation, for example.
claims = Table(
    "claims",
    metadata,
    Column("owner", Name, primary_key=True),
    Column("name", Name, primary_key=True),
    Column("node", Name, nullable=False),
)

# Which migration the database is at. Apart from the others: migrations make them, and this one is alembic's own.
versions = Table("tailrace_version", MetaData(), Column("version_num", String(32), primary_key=True))

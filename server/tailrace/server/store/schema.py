"""The tables as of the newest migration, and the types of their columns.

A change needs a migration (``migrations/versions``), whose number is `HEAD`. Existing databases are migrated, new ones are
created from this module; a test compares the two.
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

HEAD = "0012"
"""The newest migration: the version of a database that this code reads and writes."""

metadata = MetaData()


class Name(TypeDecorator[str]):
    """A name, compared and ordered by its code points, as in Python.

    PostgreSQL would use the rules of a language, and rejects NUL, which callers' ids may contain.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        """Return the type of the database."""
        return dialect.type_descriptor(Text(collation="C") if dialect.name == "postgresql" else Text())

    def bind_processor(self, dialect: Dialect) -> Any:
        """Return None where no conversion is needed: every event has such a name."""
        return super().bind_processor(dialect) if dialect.name == "postgresql" else None

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return None where no conversion is needed."""
        return super().result_processor(dialect, coltype) if dialect.name == "postgresql" else None

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Convert a value for the database."""
        if value is None or not ("\0" in value or "\\" in value):
            return value
        return value.replace("\\", "\\\\").replace("\0", "\\0")

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """Convert a value from the database."""
        if value is None or "\\" not in value:
            return value
        return "\\".join(part.replace("\\0", "\0") for part in value.split("\\\\"))


class Time(TypeDecorator[datetime]):
    """A time of any zone as UTC: SQLite stores no zone, and compares the text."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert a value for the database."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert a value from the database, in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# SQLite increments automatically only columns of this type name.
Position = BigInteger().with_variant(Integer, "sqlite")

tasks = Table(
    "tasks",
    metadata,
    Column("id", Name, primary_key=True),
    Column("owner", Name, nullable=False),
    Column("context_id", Name, nullable=False),
    Column("state", Text, nullable=False),
    Column("updated", Time, nullable=False),
    # The snapshot is as of event `number`; `events` has the newer ones.
    Column("number", Integer, nullable=False),
    Column("snapshot", LargeBinary, nullable=False),
    # Some of its events have not been dropped.
    Column("events_kept", Boolean, nullable=False, server_default=true()),
    # The node that writes it, if several servers share the database; NULL for a task that has ended.
    Column("node", Name),
    # Lists of tasks have it. Their indexes have this column too: SQLite would read a complete snapshot to reach it.
    Column("listed", Boolean, nullable=False, server_default=true()),
    Index("tasks_by_context", "owner", "context_id", "listed"),
    Index("tasks_by_time", "owner", "listed", "updated", "id"),
    Index("tasks_by_state_and_time", "state", "updated"),
)

# Finds the tasks with events to drop. SQLite uses it if its condition is written as the query's is, and prefers it for the
# number of columns that the query names, though the first is always the same.
tasks_with_events = Index(
    "tasks_with_events",
    tasks.c.events_kept,
    tasks.c.state,
    tasks.c.updated,
    sqlite_where=text("events_kept = 1"),
)

# Not WITHOUT ROWID: SQLite would read complete rows, of megabytes, to compare keys.
events = Table(
    "events",
    metadata,
    Column("task_id", Name, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    Column("state", Text),
)

# SQLite's newest events, before they move to their table (`tailrace.server.store.sqlite.Journal`); empty with PostgreSQL.
journal = Table(
    "journal",
    metadata,
    Column("position", Position, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
)

# Finds the changes of status, for webhooks, among the other events.
status_events = Index(
    "status_events",
    events.c.task_id,
    events.c.number,
    sqlite_where=events.c.state.is_not(None),
)


def add_postgresql_types() -> None:
    """Give the indexes PostgreSQL's conditions: in the definitions above they would import SQLAlchemy's dialect."""
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
    # The number of the last event that its webhook received.
    Column("delivered", Integer, nullable=False),
    # The node that delivers its notifications.
    Column("node", Name),
)

# The idempotency keys of messages, and the tasks that the messages created or continued.
send_keys = Table(
    "send_keys",
    metadata,
    Column("owner", Name, primary_key=True),
    Column("key", Name, primary_key=True),
    Column("task_id", Name, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Index("send_keys_by_task", "task_id"),
)

# The stored chat completions: turns of tasks that clients of the OpenAI-compatible API list, in the order of their requests.
completions = Table(
    "completions",
    metadata,
    Column("position", Position, primary_key=True, autoincrement=True),
    Column("owner", Name, nullable=False),
    Column("task_id", Name, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("model", Name, nullable=False),
    Index("completions_by_owner", "owner", "position"),
    Index("completions_by_turn", "task_id", "turn", unique=True),
)

completion_metadata = Table(
    "completion_metadata",
    metadata,
    Column("task_id", Name, primary_key=True),
    Column("turn", Integer, primary_key=True, autoincrement=False),
    Column("name", Name, primary_key=True),
    Column("value", Name, nullable=False),
)

TABLES_OF_TASKS = (messages, push_configs, send_keys, completions, completion_metadata)
"""The tables whose rows belong to a task, beside its own and its events: they are deleted with it."""

# The tasks that callers deleted, until their events are deleted too, in bounded steps.
deletions = Table("deletions", metadata, Column("task_id", Name, primary_key=True))

# The attempts of model calls, for bills and budgets. A row outlives its task: then it has no task id, so that nothing identifies
# the content.
ledger = Table(
    "ledger",
    metadata,
    Column("position", Position, primary_key=True, autoincrement=True),
    Column("task_id", Name),
    Column("turn", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("caller", Name, nullable=False),
    Column("agent", Name, nullable=False),
    Column("provider", Name, nullable=False),
    Column("model", Name, nullable=False),
    Column("reported_model", Name, nullable=False),
    Column("state", Text, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("chunks", BigInteger, nullable=False),
    # In 1e-9 US dollars; NULL if the price is unknown.
    Column("cost", BigInteger),
    # In milliseconds since 1970.
    Column("started", BigInteger, nullable=False),
    Column("ended", BigInteger, nullable=False),
    # Rows of deleted tasks have no task id, so they do not conflict.
    Index("ledger_by_attempt", "task_id", "turn", "attempt", unique=True),
    Index("ledger_by_caller", "caller", "ended"),
    Index("ledger_by_time", "ended"),
)

# The servers that share the database (`tailrace.server.cluster`); one without a row is dead.
nodes = Table("nodes", metadata, Column("id", Name, primary_key=True), Column("beat", Time, nullable=False))

# Exclusive work of a node, by owner: the turns of a conversation, for example.
claims = Table(
    "claims",
    metadata,
    Column("owner", Name, primary_key=True),
    Column("name", Name, primary_key=True),
    Column("node", Name, nullable=False),
    # The task whose turn holds a conversation; NULL for other claims.
    Column("task_id", Name),
)

# The secret of the installation (`tailrace.server.store.secret_keys`), where none is configured.
secrets = Table(
    "secrets",
    metadata,
    Column("name", Name, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

# The migration of the database. Not among the tables above: alembic manages it.
versions = Table("tailrace_version", MetaData(), Column("version_num", String(32), primary_key=True))

"""The tables after the newest migration, and the types of their columns.

A change requires a migration (``migrations/versions``) and a new `HEAD`. New databases are created from this module.
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

HEAD = "0015"
"""The number of the newest migration."""

metadata = MetaData()


class Name(TypeDecorator[str]):
    """A string column. Strings are compared and ordered by their code points, as in Python.

    NUL, which PostgreSQL rejects, is escaped.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        """Return the type of the database."""
        return dialect.type_descriptor(Text(collation="C") if dialect.name == "postgresql" else Text())

    def bind_processor(self, dialect: Dialect) -> Any:
        """Return None for SQLite, which needs no conversion."""
        return super().bind_processor(dialect) if dialect.name == "postgresql" else None

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return None for SQLite, which needs no conversion."""
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
    """A time column. Times are stored in UTC, because SQLite stores no time zone, and compares times as text."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert a value for the database."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert a value from the database to a time in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# SQLite increments a column automatically only if its type is INTEGER.
Position = BigInteger().with_variant(Integer, "sqlite")

tasks = Table(
    "tasks",
    metadata,
    Column("id", Name, primary_key=True),
    Column("owner", Name, nullable=False),
    Column("context_id", Name, nullable=False),
    Column("state", Text, nullable=False),
    Column("updated", Time, nullable=False),
    # The snapshot is the task as of event `number`. The table `events` may have newer events.
    Column("number", Integer, nullable=False),
    Column("snapshot", LargeBinary, nullable=False),
    # False after retention has deleted the events.
    Column("events_kept", Boolean, nullable=False, server_default=true()),
    # The node that writes the task, if several servers share the database; NULL for an ended task.
    Column("node", Name),
    # True if lists of tasks contain the task. Indexes have this column, because SQLite would otherwise read the large snapshot,
    # which precedes the column in the row.
    Column("listed", Boolean, nullable=False, server_default=true()),
    Index("tasks_by_context", "owner", "context_id", "listed"),
    Index("tasks_by_time", "owner", "listed", "updated", "id"),
    Index("tasks_by_state_and_time", "state", "updated"),
)

# Finds the tasks with events to delete. SQLite prefers this index because of its first column.
tasks_with_events = Index(
    "tasks_with_events",
    tasks.c.events_kept,
    tasks.c.state,
    tasks.c.updated,
    sqlite_where=text("events_kept = 1"),
)

# The table is not WITHOUT ROWID: SQLite would then read complete rows, which may have megabytes, to compare keys.
events = Table(
    "events",
    metadata,
    Column("task_id", Name, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    Column("state", Text),
)

# The newest events on SQLite, before they are moved to `events` (see `tailrace.server.store.event_journal`). Empty on PostgreSQL.
journal = Table(
    "journal",
    metadata,
    Column("position", Position, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
)

# Finds the events that change the status, for webhooks.
status_events = Index(
    "status_events",
    events.c.task_id,
    events.c.number,
    sqlite_where=events.c.state.is_not(None),
)


def add_postgresql_types() -> None:
    """Set the conditions of the indexes for PostgreSQL.

    In the definitions above, they would import SQLAlchemy's dialect for PostgreSQL.
    """
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
    # The number of the last event that was delivered, or whose delivery failed finally.
    Column("delivered", Integer, nullable=False),
    # The node that delivers the notifications.
    Column("node", Name),
)

# The idempotency keys of messages.
send_keys = Table(
    "send_keys",
    metadata,
    Column("owner", Name, primary_key=True),
    Column("key", Name, primary_key=True),
    Column("task_id", Name, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("turn", Integer, nullable=False, server_default="0"),
    Index("send_keys_by_task", "task_id"),
)

# The stored chat completions, in the order of their requests.
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

# The listed tasks of each conversation, in the order of their creation.
conversation_tasks = Table(
    "conversation_tasks",
    metadata,
    Column("position", Position, primary_key=True, autoincrement=True),
    Column("task_id", Name, nullable=False),
    Column("owner", Name, nullable=False),
    Column("context_id", Name, nullable=False),
    # The beginning of the caller's first message, and its form for searches (`search_text_of`).
    Column("title", Name, nullable=False),
    Column("search_text", Name, nullable=False),
    # If the message began a branch: its id, and the conversation and the message before which the branch begins; otherwise NULL.
    Column("message_id", Name),
    Column("origin_context_id", Name),
    Column("origin_message_id", Name),
    Index("conversation_tasks_by_task", "task_id", unique=True),
    Index("conversation_tasks_by_context", "owner", "context_id", "position"),
)

# The conversations that have listed tasks.
conversations = Table(
    "conversations",
    metadata,
    Column("owner", Name, primary_key=True),
    Column("context_id", Name, primary_key=True),
    # The first of the conversations that branches connect.
    Column("root", Name, nullable=False),
    # The oldest task of the conversation. Its row in `conversation_tasks` has the default title.
    Column("first_task", Name, nullable=False),
    # The time of the caller's first message.
    Column("created", Time, nullable=False),
    # The time of the caller's newest message.
    Column("updated", Time, nullable=False),
    # The title that the caller chose; NULL for the default title.
    Column("title", Name),
    # The title, chosen or default, in the form for searches.
    Column("search_text", Name, nullable=False),
    Index("conversations_by_time", "owner", "updated", "context_id"),
    Index("conversations_by_root", "owner", "root", "updated", "context_id"),
    Index("conversations_by_first_task", "first_task"),
)

TABLES_OF_TASKS = (
    messages,
    push_configs,
    send_keys,
    completions,
    completion_metadata,
    conversation_tasks,
)
"""The tables with rows that belong to a task, except `tasks` and `events`."""

# The ids of tasks that callers deleted. A row exists until all events of its task are deleted.
deletions = Table("deletions", metadata, Column("task_id", Name, primary_key=True))

# The attempts of model calls, for billing and budgets. The rows of a deleted task remain, without its id.
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
    # Rows of deleted tasks do not conflict: NULL does not equal NULL.
    Index("ledger_by_attempt", "task_id", "turn", "attempt", unique=True),
    Index("ledger_by_caller", "caller", "ended"),
    Index("ledger_by_time", "ended"),
)

# The servers that share the database (`tailrace.server.cluster`). A server without a row is dead.
nodes = Table("nodes", metadata, Column("id", Name, primary_key=True), Column("beat", Time, nullable=False))

# Locks of nodes, by owner and name; for example the lock of a conversation.
claims = Table(
    "claims",
    metadata,
    Column("owner", Name, primary_key=True),
    Column("name", Name, primary_key=True),
    Column("node", Name, nullable=False),
    # The task with the turn that holds the lock of a conversation; NULL for other locks.
    Column("task_id", Name),
)

# The secret of the installation (`tailrace.server.store.secret_keys`), if none is configured.
secrets = Table(
    "secrets",
    metadata,
    Column("name", Name, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

# The version of the database. Managed by alembic.
versions = Table("tailrace_version", MetaData(), Column("version_num", String(32), primary_key=True))

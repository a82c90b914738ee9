"""The tables of the first version. The oldest databases have these tables, but no version."""

import sqlalchemy as sa
from alembic import op

from tailrace.server.store.schema import Name, Position, Time

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the missing tables."""
    op.create_table(
        "tasks",
        sa.Column("id", Name, primary_key=True),
        sa.Column("owner", Name, nullable=False),
        sa.Column("context_id", Name, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("updated", Time, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("snapshot", sa.LargeBinary, nullable=False),
        if_not_exists=True,
    )
    op.create_index("tasks_by_context", "tasks", ["owner", "context_id"], if_not_exists=True)
    op.create_index("tasks_by_time", "tasks", ["owner", "updated", "id"], if_not_exists=True)
    op.create_index("tasks_by_state", "tasks", ["state"], if_not_exists=True)
    op.create_table(
        "events",
        sa.Column("task_id", Name, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("state", sa.Text),
        sqlite_with_rowid=False,
        if_not_exists=True,
    )
    changes_status = sa.column("state").is_not(None)
    op.create_index(
        "status_events",
        "events",
        ["task_id", "number"],
        sqlite_where=changes_status,
        postgresql_where=changes_status,
        if_not_exists=True,
    )
    op.create_table(
        "messages",
        sa.Column("position", Position, primary_key=True, autoincrement=True),
        sa.Column("owner", Name, nullable=False),
        sa.Column("context_id", Name, nullable=False),
        sa.Column("task_id", Name, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        if_not_exists=True,
    )
    op.create_index(
        "messages_by_context", "messages", ["owner", "context_id", "position"], if_not_exists=True
    )
    op.create_table(
        "push_configs",
        sa.Column("task_id", Name, primary_key=True),
        sa.Column("id", Name, primary_key=True),
        sa.Column("owner", Name, nullable=False),
        sa.Column("dialect", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("delivered", sa.Integer, nullable=False),
        if_not_exists=True,
    )

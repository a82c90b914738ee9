"""Columns and indexes with which expired rows are found without reading complete tables."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column ``events_kept``, an index of tasks by state and time, and an index of messages by task."""
    op.add_column("tasks", sa.Column("events_kept", sa.Boolean, nullable=False, server_default=sa.true()))
    op.create_index(
        "tasks_with_events",
        "tasks",
        ["events_kept", "state", "updated"],
        sqlite_where=sa.text("events_kept = 1"),
        postgresql_where=sa.text("events_kept"),
    )
    op.drop_index("tasks_by_state", "tasks")
    op.create_index("tasks_by_state_and_time", "tasks", ["state", "updated"])
    op.create_index("messages_by_task", "messages", ["task_id"])

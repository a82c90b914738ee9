"""Tasks that lists of tasks do not contain: the records of the Conversations API."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the column, and add it to the indexes for lists."""
    op.add_column("tasks", sa.Column("listed", sa.Boolean, nullable=False, server_default=sa.true()))
    op.drop_index("tasks_by_context", "tasks")
    op.create_index("tasks_by_context", "tasks", ["owner", "context_id", "listed"])
    op.drop_index("tasks_by_time", "tasks")
    op.create_index("tasks_by_time", "tasks", ["owner", "listed", "updated", "id"])

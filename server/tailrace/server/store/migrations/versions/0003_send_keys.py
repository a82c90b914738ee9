"""Idempotency keys of messages: a repeated message returns the task that it created."""

import sqlalchemy as sa
from alembic import op

from tailrace.server.store.schema import Name

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the table of the keys."""
    op.create_table(
        "send_keys",
        sa.Column("owner", Name, primary_key=True),
        sa.Column("key", Name, primary_key=True),
        sa.Column("task_id", Name, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
    )
    op.create_index("send_keys_by_task", "send_keys", ["task_id"])

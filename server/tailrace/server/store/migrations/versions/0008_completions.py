"""Stored chat completions with their metadata."""

import sqlalchemy as sa
from alembic import op

from tailrace.server.store.schema import Name, Position

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the tables of completions and of their metadata."""
    op.create_table(
        "completions",
        sa.Column("position", Position, primary_key=True, autoincrement=True),
        sa.Column("owner", Name, nullable=False),
        sa.Column("task_id", Name, nullable=False),
        sa.Column("turn", sa.Integer, nullable=False),
        sa.Column("model", Name, nullable=False),
    )
    op.create_index("completions_by_owner", "completions", ["owner", "position"])
    op.create_index("completions_by_turn", "completions", ["task_id", "turn"], unique=True)
    op.create_table(
        "completion_metadata",
        sa.Column("task_id", Name, primary_key=True),
        sa.Column("turn", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", Name, primary_key=True),
        sa.Column("value", Name, nullable=False),
    )

"""Deleted tasks whose events are not deleted yet."""

import sqlalchemy as sa
from alembic import op

from tailrace.server.store.schema import Name

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the table of deletions."""
    op.create_table("deletions", sa.Column("task_id", Name, primary_key=True))

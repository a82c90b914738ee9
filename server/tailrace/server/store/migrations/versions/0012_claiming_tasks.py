"""The task whose turn holds the lock of a conversation. A lock is a row of the table ``claims``."""

import sqlalchemy as sa
from alembic import op

from tailrace.server.store.schema import Name

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the column."""
    op.add_column("claims", sa.Column("task_id", Name))

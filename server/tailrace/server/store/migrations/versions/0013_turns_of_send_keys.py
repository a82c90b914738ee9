"""The turn of an idempotency key."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the column. Existing keys get the turn 0: unknown."""
    op.add_column("send_keys", sa.Column("turn", sa.Integer, nullable=False, server_default="0"))

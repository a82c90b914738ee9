"""The turn of an idempotency key, so that a repeated message of an earlier turn gets the response of this turn."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the column. Zero is the turn of all keys that exist."""
    op.add_column("send_keys", sa.Column("turn", sa.Integer, nullable=False, server_default="0"))

"""The turn of an idempotency key. If a message is repeated, the server returns the response of this turn."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the column. Existing keys get the turn 0, which means that the turn is unknown."""
    op.add_column("send_keys", sa.Column("turn", sa.Integer, nullable=False, server_default="0"))

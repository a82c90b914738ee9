"""The event journal."""

import sqlalchemy as sa
from alembic import op

from tailrace.server.store.schema import Position

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the journal."""
    op.create_table(
        "journal",
        sa.Column("position", Position, primary_key=True, autoincrement=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )

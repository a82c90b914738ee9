"""The usage ledger."""

import sqlalchemy as sa
from alembic import op

from tailrace.server.store.schema import Name, Position

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the table, with its indexes."""
    op.create_table(
        "ledger",
        sa.Column("position", Position, primary_key=True, autoincrement=True),
        sa.Column("task_id", Name),
        sa.Column("turn", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("caller", Name, nullable=False),
        sa.Column("agent", Name, nullable=False),
        sa.Column("provider", Name, nullable=False),
        sa.Column("model", Name, nullable=False),
        sa.Column("reported_model", Name, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger, nullable=False),
        sa.Column("chunks", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.BigInteger),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger, nullable=False),
    )
    op.create_index("ledger_by_attempt", "ledger", ["task_id", "turn", "attempt"], unique=True)
    op.create_index("ledger_by_caller", "ledger", ["caller", "ended"])
    op.create_index("ledger_by_time", "ledger", ["ended"])

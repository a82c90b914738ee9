"""Nodes and their claims."""

import sqlalchemy as sa
from alembic import op

from tailrace.server.store.schema import Name, Time

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the tables of nodes and claims, and the node to tasks and webhooks."""
    op.create_table(
        "nodes",
        sa.Column("id", Name, primary_key=True),
        sa.Column("beat", Time, nullable=False),
    )
    op.create_table(
        "claims",
        sa.Column("owner", Name, primary_key=True),
        sa.Column("name", Name, primary_key=True),
        sa.Column("node", Name, nullable=False),
    )
    op.add_column("tasks", sa.Column("node", Name))
    op.add_column("push_configs", sa.Column("node", Name))

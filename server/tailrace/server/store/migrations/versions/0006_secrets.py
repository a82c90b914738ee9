"""The generated secret of an installation."""

import sqlalchemy as sa
from alembic import op

from tailrace.server.store.schema import Name

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the table; the store creates the secret when it is opened."""
    op.create_table(
        "secrets",
        sa.Column("name", Name, primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
    )

"""The texts for searches of titles have no accents and vowel signs."""

import unicodedata
from typing import Any

import sqlalchemy as sa
from alembic import op

from tailrace.server.store.schema import Name, Position

revision = "0015"
down_revision = "0014"

_BATCH = 500

_tasks = sa.table("conversation_tasks", sa.column("position", Position), sa.column("search_text", Name))
_conversations = sa.table(
    "conversations", sa.column("owner", Name), sa.column("context_id", Name), sa.column("search_text", Name)
)


def upgrade() -> None:
    """Change the texts for searches."""
    _change(_tasks, "position")
    _change(_conversations, "owner", "context_id")


def _change(table: sa.TableClause, *names: str) -> None:
    connection = op.get_bind()
    key = [table.c[name] for name in names]
    query = sa.select(*key, table.c.search_text).order_by(*key).limit(_BATCH)
    change = sa.update(table).where(*(column == sa.bindparam(f"of_{column.name}") for column in key))
    change = change.values(search_text=sa.bindparam("text"))
    page = connection.execute(query).all()
    while page:
        changes: list[dict[str, Any]] = []
        for *values, text in page:
            ids = {f"of_{name}": value for name, value in zip(names, values, strict=True)}
            if not text.isascii():
                changes.append({**ids, "text": _simple(text)})
        if changes:
            connection.execute(change, changes)
        page = connection.execute(query.where(sa.tuple_(*key) > tuple(page[-1][:-1]))).all()


def _simple(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    unmarked = "".join(character for character in decomposed if unicodedata.category(character) != "Mn")
    return unicodedata.normalize("NFC", unmarked.replace("\u0131", "i"))

"""The list of conversations, with their titles."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

import sqlalchemy as sa
from alembic import op

from tailrace.server.store.schema import Name, Position, Time

revision = "0014"
down_revision = "0013"

_EXTENSION = "urn:tailrace:ext:stream:v1"
_WORD = re.compile(r"[^\s\0-\x1f\x7f]{1,60}")
_BATCH = 500
_NOTHING: dict[str, Any] = {}
_NO_BRANCH: dict[str, str | None] = dict.fromkeys(("message_id", "origin_context_id", "origin_message_id"))
_MAX_PASSES = 64  # a pass doubles the depth of the branches whose roots are found

_tasks = sa.table(
    "tasks",
    sa.column("id", Name),
    sa.column("owner", Name),
    sa.column("context_id", Name),
    sa.column("updated", Time),
    sa.column("listed", sa.Boolean),
    sa.column("snapshot", sa.LargeBinary),
)
_messages = sa.table(
    "messages",
    sa.column("position", Position),
    sa.column("task_id", Name),
    sa.column("body", sa.LargeBinary),
)


def upgrade() -> None:
    """Add the tables, and fill them with the listed tasks."""
    tasks = op.create_table(
        "conversation_tasks",
        sa.Column("position", Position, primary_key=True, autoincrement=True),
        sa.Column("task_id", Name, nullable=False),
        sa.Column("owner", Name, nullable=False),
        sa.Column("context_id", Name, nullable=False),
        sa.Column("title", Name, nullable=False),
        sa.Column("search_text", Name, nullable=False),
        sa.Column("message_id", Name),
        sa.Column("origin_context_id", Name),
        sa.Column("origin_message_id", Name),
    )
    conversations = op.create_table(
        "conversations",
        sa.Column("owner", Name, primary_key=True),
        sa.Column("context_id", Name, primary_key=True),
        sa.Column("root", Name, nullable=False),
        sa.Column("first_task", Name, nullable=False),
        sa.Column("created", Time, nullable=False),
        sa.Column("updated", Time, nullable=False),
        sa.Column("title", Name),
        sa.Column("search_text", Name, nullable=False),
    )
    _fill_tasks(op.get_bind(), tasks)
    op.create_index("conversation_tasks_by_task", "conversation_tasks", ["task_id"], unique=True)
    op.create_index(
        "conversation_tasks_by_context", "conversation_tasks", ["owner", "context_id", "position"]
    )
    _fill_conversations(op.get_bind(), tasks, conversations)
    op.create_index("conversations_by_time", "conversations", ["owner", "updated", "context_id"])
    op.create_index("conversations_by_root", "conversations", ["owner", "root", "updated", "context_id"])
    op.create_index("conversations_by_first_task", "conversations", ["first_task"])


def _fill_tasks(connection: sa.Connection, tasks: sa.Table) -> None:
    """Add the listed tasks in the order of their times, which is mostly the order of their creation."""
    for page in _listed(connection):
        rows: list[dict[str, Any]] = []
        for row in page:
            branch, title = _described(connection, row.id)
            ids = {"task_id": row.id, "owner": row.owner, "context_id": row.context_id}
            rows.append({**ids, "title": title, "search_text": title.casefold(), **branch})
        connection.execute(sa.insert(tasks), rows)


def _fill_conversations(connection: sa.Connection, tasks: sa.Table, conversations: sa.Table) -> None:
    """Add the conversations of the tasks."""
    other = tasks.alias()
    of_conversation = (other.c.owner == tasks.c.owner, other.c.context_id == tasks.c.context_id)
    oldest = sa.select(sa.func.min(other.c.position)).where(*of_conversation)
    # Without the join, SQLite would search all tasks of the owner.
    joined = other.join(_tasks, _tasks.c.id == other.c.task_id)
    updated = sa.select(sa.func.max(_tasks.c.updated)).select_from(joined).where(*of_conversation)
    created = sa.select(_tasks.c.updated).where(_tasks.c.id == tasks.c.task_id)
    first = sa.select(
        tasks.c.owner,
        tasks.c.context_id,
        sa.func.coalesce(tasks.c.origin_context_id, tasks.c.context_id),
        tasks.c.task_id,
        created.scalar_subquery(),
        updated.scalar_subquery(),
        tasks.c.search_text,
    ).where(tasks.c.position == oldest.scalar_subquery())
    columns = ("owner", "context_id", "root", "first_task", "created", "updated", "search_text")
    connection.execute(sa.insert(conversations).from_select(columns, first))
    # Each pass replaces the root of a conversation with the root of that root.
    above = conversations.alias()
    root = sa.select(above.c.root).where(
        above.c.owner == conversations.c.owner, above.c.context_id == conversations.c.root
    )
    change = sa.update(conversations).where(root.scalar_subquery() != conversations.c.root)
    change = change.values(root=root.scalar_subquery())
    for _ in range(_MAX_PASSES):
        if not connection.execute(change).rowcount:
            break


def _listed(connection: sa.Connection) -> Iterator[Sequence[Any]]:
    """Yield pages of the listed tasks of each owner in the order of their times."""
    owner, updated, task_id = _tasks.c.owner, _tasks.c.updated, _tasks.c.id
    query = sa.select(task_id, owner, _tasks.c.context_id, updated).order_by(updated, task_id).limit(_BATCH)
    name = connection.scalar(sa.select(sa.func.min(owner)))
    while name is not None:
        # In this form, SQLite reads the tasks in the order of the index `tasks_by_time`.
        of_owner = query.where(owner == name, _tasks.c.listed == sa.true())
        page = connection.execute(of_owner).all()
        while page:
            yield page
            last = page[-1]
            later = of_owner.where(updated >= last.updated, sa.or_(updated > last.updated, task_id > last.id))
            page = connection.execute(later).all()
        name = connection.scalar(sa.select(sa.func.min(owner)).where(owner > name))


def _described(connection: sa.Connection, task_id: str) -> tuple[dict[str, str | None], str]:
    """Return the columns of the branch that a task began, and the default title of its conversation."""
    body = connection.scalar(_SNAPSHOT, {"task": task_id})
    history: list[dict[str, Any]] = json.loads(body).get("history", []) if body else []
    own = next(filter(_is_callers, history), _NOTHING)
    branch = _extension(own).get("branch")
    match branch:
        case {"contextId": str(context_id), "messageId": str(message_id)}:
            columns: dict[str, str | None] = {
                "message_id": own["messageId"],
                "origin_context_id": context_id,
                "origin_message_id": message_id,
            }
            return columns, _title_of(own)
        case _:
            return _NO_BRANCH, _first_title(connection, task_id) or _title_of(own)


def _first_title(connection: sa.Connection, task_id: str) -> str:
    """Return the title of the first message of a task that has one."""
    last = -1
    while True:
        row = connection.execute(_NEXT_MESSAGE, {"task": task_id, "after": last}).first()
        if row is None:
            return ""
        message: dict[str, Any] = json.loads(row.body)
        title = _title_of(message) if _is_callers(message) else ""
        if title:
            return title
        last = row.position


# Created once, because building such a statement takes longer than running it.
_SNAPSHOT = sa.select(_tasks.c.snapshot).where(_tasks.c.id == sa.bindparam("task"))
_NEXT_MESSAGE = (
    sa.select(_messages.c.position, _messages.c.body)
    .where(_messages.c.task_id == sa.bindparam("task"), _messages.c.position > sa.bindparam("after"))
    .order_by(_messages.c.position)
    .limit(1)
)


def _is_callers(message: dict[str, Any]) -> bool:
    return message.get("role") == "ROLE_USER" and _extension(message).get("by") != "agent"


def _extension(message: dict[str, Any]) -> dict[str, Any]:
    fields = message.get("metadata", {}).get(_EXTENSION)
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}


def _title_of(message: dict[str, Any]) -> str:
    parts: list[dict[str, Any]] = message.get("parts", [])
    title = _words([part["text"] for part in parts if part.get("text")])
    if title:
        return title
    file = next((part for part in parts if "raw" in part or "url" in part), _NOTHING)
    return _words([file.get("filename", "")])


def _words(texts: list[str]) -> str:
    """Return the first 60 characters of texts, with one space between their words."""
    title = ""
    for text in texts:
        end = -1
        for word in _WORD.finditer(text):
            title += word[0] if word.start() == end or not title else f" {word[0]}"
            end = word.end()
            if len(title) >= 60:
                return title[:60].rstrip()
    return title

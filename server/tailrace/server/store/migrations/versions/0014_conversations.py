"""The list of conversations, with their titles."""

import json
import re
from collections.abc import Iterator
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
    """Add the tables, and fill them with the listed tasks. One task is in memory at a time."""
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
        sa.Column("updated", Time, nullable=False),
        sa.Column("title", Name),
        sa.Column("search_text", Name, nullable=False),
    )
    _fill(op.get_bind(), tasks, conversations)
    op.create_index("conversation_tasks_by_task", "conversation_tasks", ["task_id"], unique=True)
    op.create_index(
        "conversation_tasks_by_context", "conversation_tasks", ["owner", "context_id", "position"]
    )
    op.create_index("conversations_by_time", "conversations", ["owner", "updated", "context_id"])
    op.create_index("conversations_by_root", "conversations", ["owner", "root", "updated", "context_id"])
    op.create_index("conversations_by_first_task", "conversations", ["first_task"])


def _fill(connection: sa.Connection, tasks: sa.Table, conversations: sa.Table) -> None:
    for row in _listed(connection):
        # The times of the tasks of a conversation show the order of the tasks, except for tasks that waited for their caller.
        branch, title = _described(connection, row.id)
        named = {"owner": row.owner, "context_id": row.context_id}
        connection.execute(
            sa.insert(tasks).values(
                **named, **branch, task_id=row.id, title=title, search_text=title.casefold()
            )
        )
        this = (conversations.c.owner == row.owner, conversations.c.context_id == row.context_id)
        change = sa.update(conversations).where(*this).values(updated=row.updated)
        if connection.execute(change).rowcount:
            continue
        origin = branch.get("origin_context_id", row.context_id)
        root = connection.scalar(
            sa.select(conversations.c.root).where(
                conversations.c.owner == row.owner, conversations.c.context_id == origin
            )
        )
        connection.execute(
            sa.insert(conversations).values(
                **named,
                root=root or origin,
                first_task=row.id,
                updated=row.updated,
                search_text=title.casefold(),
            )
        )


def _listed(connection: sa.Connection) -> Iterator[Any]:
    """Yield the listed tasks of each owner in the order of their times."""
    key = (_tasks.c.owner, _tasks.c.updated, _tasks.c.id)
    query = sa.select(_tasks.c.id, _tasks.c.owner, _tasks.c.context_id, _tasks.c.updated)
    query = query.where(_tasks.c.listed).order_by(*key).limit(_BATCH)
    page = connection.execute(query).all()
    while page:
        yield from page
        last = page[-1]
        later = sa.or_(
            _tasks.c.owner > last.owner,
            sa.and_(_tasks.c.owner == last.owner, _tasks.c.updated > last.updated),
            sa.and_(_tasks.c.owner == last.owner, _tasks.c.updated == last.updated, _tasks.c.id > last.id),
        )
        page = connection.execute(query.where(later)).all()


def _described(connection: sa.Connection, task_id: str) -> tuple[dict[str, str], str]:
    """Return the columns of the branch that a task began, and the default title of its conversation."""
    body = connection.scalar(sa.select(_tasks.c.snapshot).where(_tasks.c.id == task_id))
    history: list[dict[str, Any]] = json.loads(body).get("history", []) if body else []
    own = next(filter(_is_callers, history), _NOTHING)
    branch = _extension(own).get("branch")
    match branch:
        case {"contextId": str(context_id), "messageId": str(message_id)}:
            columns = {
                "message_id": own["messageId"],
                "origin_context_id": context_id,
                "origin_message_id": message_id,
            }
            return columns, _title_of(own)
        case _:
            return {}, _first_title(connection, task_id) or _title_of(own)


def _first_title(connection: sa.Connection, task_id: str) -> str:
    """Of the messages of a task, return the title of the first one that has a title.

    This may be an earlier message that the client sent with the first message of the conversation.
    """
    position, of_task = _messages.c.position, _messages.c.task_id == task_id
    for row in connection.execute(sa.select(position).where(of_task).order_by(position)).all():
        body = connection.scalar(sa.select(_messages.c.body).where(position == row.position))
        message: dict[str, Any] = json.loads(body) if body else {}
        title = _title_of(message) if _is_callers(message) else ""
        if title:
            return title
    return ""


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

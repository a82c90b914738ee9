"""Writes the rows of conversations, in the transaction of a batch or a deletion.

A conversation is in lists as long as it has listed tasks. Its default title is the beginning of the first message of the oldest
of these tasks. Each listed task has a row with this text, because an older task may be deleted.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Executable,
    ScalarSelect,
    bindparam,
    case,
    delete,
    exists,
    func,
    select,
    update,
)
from sqlalchemy.engine import Connection

from tailrace.server.store.records import StoredBranch, TaskWrite
from tailrace.server.store.schema import Name, conversation_tasks, conversations
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.streaming.conversion.message_conversion import is_callers

MAX_DEFAULT_TITLE = 60
"""Maximum number of characters of a default title."""

_WORD = re.compile(rf"[^\s\0-\x1f\x7f]{{1,{MAX_DEFAULT_TITLE}}}")

# NUL is removed, and the dotless i of Turkish is searched as i.
_SIMPLE = str.maketrans({"\0": None, "\u0131": "i"})


def title_of(texts: Iterable[str], limit: int = MAX_DEFAULT_TITLE) -> str:
    """Return the first words of texts, with one space between them.

    Control characters count as spaces. The rest of the texts is not read.
    """
    title = ""
    for text in texts:
        end = -1
        for word in _WORD.finditer(text):
            # A word that is longer than one match continues without a space.
            title += word[0] if word.start() == end or not title else f" {word[0]}"
            end = word.end()
            if len(title) >= limit:
                return title[:limit].rstrip()
    return title


def search_text_of(title: str) -> str:
    """Return the form of a title for searches: without the differences of case, marks, and compatibility characters.

    Marks are accents, and the vowel signs of Hebrew and Arabic, for example (category Mn of Unicode).
    NUL is removed: SQLite would search only the text before it, and PostgreSQL rejects it.
    """
    if title.isascii():  # ASCII characters have no decomposition, and none of them is a mark
        return title.lower().replace("\0", "")
    decomposed = unicodedata.normalize("NFKD", title).casefold()
    unmarked = "".join(character for character in decomposed if unicodedata.category(character) != "Mn")
    return unicodedata.normalize("NFC", unmarked.translate(_SIMPLE))


def add_to_conversations(connection: Connection, writes: Sequence[TaskWrite]) -> None:
    """Add new tasks to their conversations, and record the times of callers' messages."""
    new: list[dict[str, Any]] = []
    changed: dict[tuple[str, str], dict[str, Any]] = {}
    for write in writes:
        if write.received is None or not write.is_listed:
            continue
        key = write.owner, write.context_id
        task = _task_row(write, write.received)
        if not write.events or write.events[0].number == 1:
            new.append(task)
        row = {
            "of_owner": write.owner,
            "id": write.context_id,
            "task": write.task_id,
            "origin": task["origin_context_id"] or write.context_id,
            "text": task["search_text"],
        }
        changed.setdefault(key, row)["time"] = datetime.now(UTC)
    if not changed:
        return
    add_task, put_conversation = _statements(connection.dialect.name)
    if new:
        connection.execute(add_task, new)
    # In different orders, two nodes of a cluster could wait for each other's locks.
    connection.execute(put_conversation, [changed[key] for key in sorted(changed)])


def lock_conversations_of(connection: Connection, task_ids: Collection[str]) -> list[str]:
    """Lock the conversations that begin with one of these tasks, and return the ids of their first tasks.

    `replace_first_tasks` must follow.
    """
    query = select(conversations.c.first_task).where(conversations.c.first_task.in_(task_ids))
    # Without the lock, another node could add a task between the statements of `replace_first_tasks`.
    locked = query.order_by(conversations.c.owner, conversations.c.context_id).with_for_update()
    return list(connection.scalars(locked))


def replace_first_tasks(connection: Connection, deleted: Collection[str]) -> None:
    """Replace the deleted first tasks of conversations with the next tasks. Delete conversations without tasks.

    Args:
        connection: The connection, in a transaction.
        deleted: The result of `lock_conversations_of`.
    """
    if not deleted:
        return
    affected = conversations.c.first_task.in_(deleted)
    of_conversation = (
        conversation_tasks.c.owner == conversations.c.owner,
        conversation_tasks.c.context_id == conversations.c.context_id,
    )
    connection.execute(delete(conversations).where(affected, ~exists().where(*of_conversation)))

    def of_oldest(column: ColumnElement[str]) -> ScalarSelect[str]:
        query = select(column).where(*of_conversation).order_by(conversation_tasks.c.position)
        return query.limit(1).scalar_subquery()

    text = of_oldest(conversation_tasks.c.search_text)
    values = {
        "first_task": of_oldest(conversation_tasks.c.task_id),
        "search_text": case((conversations.c.title.is_(None), text), else_=conversations.c.search_text),
    }
    connection.execute(update(conversations).where(affected).values(values))


def _task_row(write: TaskWrite, received: Message) -> dict[str, Any]:
    branch = _branch_of(received)
    # A branch has a title of its own, so the messages that it copies are ignored.
    messages = (received,) if branch is not None else (*write.messages, received)
    titles = (_title_of_message(message) for message in messages if is_callers(message))
    title = next((each for each in titles if each), "")
    return {
        "task_id": write.task_id,
        "owner": write.owner,
        "context_id": write.context_id,
        "title": title,
        "search_text": search_text_of(title),
        "message_id": branch and branch.message_id,
        "origin_context_id": branch and branch.origin_context_id,
        "origin_message_id": branch and branch.origin_message_id,
    }


def _title_of_message(message: Message) -> str:
    title = title_of(part.text for part in message.parts if part.text)
    if title:
        return title
    file = next((part for part in message.parts if part.kind in ("raw", "url")), None)
    return title_of([file.filename]) if file is not None else ""


def _branch_of(message: Message) -> StoredBranch | None:
    match extension_metadata(message.metadata).get("branch"):
        case {"contextId": str(context_id), "messageId": str(message_id)}:
            return StoredBranch(message.message_id, context_id, message_id)
        case _:
            return None


@cache
def _statements(dialect: str) -> tuple[Executable, Executable]:
    """Return the statements that add a task, and put a conversation."""
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as insert_into
    else:
        from sqlalchemy.dialects.postgresql import insert as insert_into
    other = conversations.alias()
    origin = bindparam("origin", type_=Name())
    root = select(other.c.root).where(other.c.owner == bindparam("of_owner"), other.c.context_id == origin)
    put = insert_into(conversations).values(
        owner=bindparam("of_owner"),
        context_id=bindparam("id"),
        root=func.coalesce(root.scalar_subquery(), origin),
        first_task=bindparam("task"),
        created=bindparam("time"),
        updated=bindparam("time"),
        search_text=bindparam("text"),
    )
    put = put.on_conflict_do_update(
        index_elements=[conversations.c.owner, conversations.c.context_id],
        set_={"updated": put.excluded.updated},
    )
    return insert_into(conversation_tasks).inline().on_conflict_do_nothing(), put

"""The list of the conversations of an owner.

The tables are written by `tailrace.server.store.conversation_rows`.
"""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Executable, Subquery, func, select, update

from tailrace.server.store.conversation_rows import search_text_of
from tailrace.server.store.database import Database
from tailrace.server.store.records import (
    ConversationFilter,
    ConversationPage,
    ListPosition,
    StoredBranch,
    StoredConversation,
)
from tailrace.server.store.schema import conversation_tasks, conversations


class ConversationList:
    """Lists and renames the conversations of all owners."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, owner: str, conversation_filter: ConversationFilter, *, after: ListPosition | None, limit: int
    ) -> ConversationPage:
        """Return the conversations of an owner that have listed tasks, the newest first.

        Args:
            owner: The owner.
            conversation_filter: The filter.
            after: The position after which the page begins; None for the first page.
            limit: The maximum number of conversations.

        Raises:
            StoreError: The read failed.
        """
        conditions = _conditions(owner, conversation_filter)
        updated, context_id = conversations.c.updated, conversations.c.context_id
        if after is not None:
            conditions += [
                # SQLite begins its search with the first condition, which the second one implies.
                updated <= after.updated,
                (updated < after.updated) | (context_id < after.id),
            ]
        order = updated.desc(), context_id.desc()
        # Without the subquery, PostgreSQL may join and sort all conversations of the owner.
        found = select(conversations).where(*conditions).order_by(*order).limit(limit + 1).subquery()
        query = _with_titles(found)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return ConversationPage([_conversation(row) for row in rows[:limit]], len(rows) > limit)

    async def rename(self, context_id: str, owner: str, title: str) -> StoredConversation | None:
        """Set the title of a conversation.

        Args:
            context_id: The conversation.
            owner: The owner.
            title: The title; empty for the default title.

        Returns:
            The conversation; None if this owner has no such conversation in the list.

        Raises:
            StoreError: The transaction was rolled back.
        """
        this = (conversations.c.owner == owner, conversations.c.context_id == context_id)
        default = select(conversation_tasks.c.search_text).where(
            conversation_tasks.c.task_id == conversations.c.first_task
        )
        values = {
            "title": title or None,
            "search_text": search_text_of(title) if title else default.scalar_subquery(),
        }
        change = update(conversations).where(*this).values(values)
        query = _with_titles(select(conversations).where(*this).subquery())

        def work(connection: Connection) -> StoredConversation | None:
            connection.execute(change)
            row = connection.execute(query).first()
            return _conversation(row) if row is not None else None

        return await self._database.write(work)


def _with_titles(found: Subquery) -> Executable:
    """Return the query for conversations with their default titles and branches, the newest first."""
    query = select(
        found.c.context_id,
        found.c.created,
        found.c.updated,
        func.coalesce(found.c.title, conversation_tasks.c.title).label("title"),
        conversation_tasks.c.message_id,
        conversation_tasks.c.origin_context_id,
        conversation_tasks.c.origin_message_id,
    )
    query = query.join(conversation_tasks, conversation_tasks.c.task_id == found.c.first_task)
    return query.order_by(found.c.updated.desc(), found.c.context_id.desc())


def _conditions(owner: str, conversation_filter: ConversationFilter) -> list[ColumnElement[bool]]:
    conditions = [conversations.c.owner == owner]
    if conversation_filter.related_to:
        other = conversations.alias()
        root = select(other.c.root).where(
            other.c.owner == owner, other.c.context_id == conversation_filter.related_to
        )
        conditions.append(conversations.c.root == root.scalar_subquery())
    if conversation_filter.text:
        text = search_text_of(conversation_filter.text)
        conditions.append(conversations.c.search_text.contains(text, autoescape=True))
    return conditions


def _conversation(row: Any) -> StoredConversation:
    branch = None
    if row.message_id is not None:
        branch = StoredBranch(row.message_id, row.origin_context_id, row.origin_message_id)
    return StoredConversation(row.context_id, row.title, row.created, row.updated, branch)

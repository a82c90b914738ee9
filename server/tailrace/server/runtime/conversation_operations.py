"""The extension's operations on the list of a caller's conversations."""

from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.page_tokens import page_token, read_page_token
from tailrace.server.store.records import ConversationFilter, ListPosition, StoredConversation
from tailrace.streaming.a2a.requests import (
    BranchOrigin,
    ConversationBranch,
    ListConversationsRequest,
    ListConversationsResponse,
    ListedConversation,
    RenameConversationRequest,
)


async def list_conversations(
    engine: Engine, request: ListConversationsRequest, caller: Caller
) -> ListConversationsResponse:
    """Return a page of the caller's conversations.

    Raises:
        InvalidParamsError: The page token is invalid.
        StoreError: The store cannot be read.
    """
    wanted = ConversationFilter(request.query, request.related_to)
    after = read_page_token(request.page_token, wanted) if request.page_token else None
    page = await engine.conversations.page(caller.owner, wanted, after=after, limit=request.page_size)
    token = ""
    if page.has_more:
        last = page.conversations[-1]
        token = page_token(ListPosition(last.updated, last.context_id), wanted)
    return ListConversationsResponse(
        conversations=tuple(map(_listed, page.conversations)), next_page_token=token
    )


async def rename_conversation(
    engine: Engine, request: RenameConversationRequest, caller: Caller
) -> ListedConversation:
    """Set or remove the caller's title of a conversation (see `ConversationEdits.rename`).

    Raises:
        A2AError: The caller has no such conversation, or an input filter blocks the title.
        StoreError: The store is not available.
    """
    renamed = await engine.edits.rename(request.context_id, request.title, caller.owner, caller.receiver)
    return _listed(renamed)


def _listed(conversation: StoredConversation) -> ListedConversation:
    stored = conversation.branch
    branch = stored and ConversationBranch.model_validate(
        {
            "message_id": stored.message_id,
            "from": BranchOrigin(context_id=stored.origin_context_id, message_id=stored.origin_message_id),
        }
    )
    return ListedConversation(
        context_id=conversation.context_id,
        title=conversation.title,
        create_time=conversation.created,
        update_time=conversation.updated,
        branch=branch,
    )

"""Storage of the messages of conversations for an executor, because the SDK stores only tasks."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from tailrace.streaming.a2a.models import Message


class Conversations(Protocol):
    """Interface of a storage for conversations, for example `tailrace.server.sdk.TaskStore`."""

    async def load_conversation(self, context_id: str, owner: str, limit: int) -> Sequence[Message]:
        """Return the newest ``limit`` messages of an owner's conversation, oldest first."""
        ...

    async def remember(self, context_id: str, owner: str, task_id: str, messages: Sequence[Message]) -> None:
        """Add messages to a conversation, in order."""
        ...


class RecentConversations:
    """Storage in memory for the most recently used conversations.

    Args:
        max_conversations: Maximum number of conversations.
        max_messages: Maximum number of messages of a conversation.
    """

    def __init__(self, *, max_conversations: int = 1000, max_messages: int = 1000) -> None:
        self._max_conversations = max_conversations
        self._max_messages = max_messages
        self._messages: OrderedDict[tuple[str, str], list[Message]] = OrderedDict()

    async def load_conversation(self, context_id: str, owner: str, limit: int) -> Sequence[Message]:
        """Return the newest messages; none if the conversation is not stored."""
        messages = self._messages.get((owner, context_id), [])
        return messages[-limit:] if limit else []

    async def remember(self, context_id: str, owner: str, task_id: str, messages: Sequence[Message]) -> None:
        """Add messages, and remove the least recently used conversation if there are too many."""
        key = (owner, context_id)
        self._messages[key] = [*self._messages.pop(key, []), *messages][-self._max_messages :]
        while len(self._messages) > self._max_conversations:
            self._messages.popitem(last=False)

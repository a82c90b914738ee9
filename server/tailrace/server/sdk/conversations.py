"""The messages of conversations, for an executor: the SDK stores single tasks only."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from tailrace.streaming.a2a.models import Message


class Conversations(Protocol):
    """Keeps the messages of conversations. `tailrace.server.sdk.TaskStore` does so in its database."""

    async def load_conversation(self, context_id: str, owner: str, limit: int) -> Sequence[Message]:
        """The newest ``limit`` messages of an owner's conversation, oldest first."""
        ...

    async def remember(self, context_id: str, owner: str, task_id: str, messages: Sequence[Message]) -> None:
        """Add messages to a conversation, in order."""
        ...


class RecentConversations:
    """Conversations in memory: the most recently used ones, and the newest messages of each.

    Args:
        max_conversations: How many conversations are kept.
        max_messages: How many messages of each.
    """

    def __init__(self, *, max_conversations: int = 1000, max_messages: int = 1000) -> None:
        self._max_conversations = max_conversations
        self._max_messages = max_messages
        self._messages: OrderedDict[tuple[str, str], list[Message]] = OrderedDict()

    async def load_conversation(self, context_id: str, owner: str, limit: int) -> Sequence[Message]:
        """The newest messages; none of a conversation that is not known, or not any more."""
        messages = self._messages.get((owner, context_id), [])
        return messages[-limit:] if limit else []

    async def remember(self, context_id: str, owner: str, task_id: str, messages: Sequence[Message]) -> None:
        """Add messages; the conversation that was left alone the longest makes room."""
        key = (owner, context_id)
        self._messages[key] = [*self._messages.pop(key, []), *messages][-self._max_messages :]
        while len(self._messages) > self._max_conversations:
            self._messages.popitem(last=False)

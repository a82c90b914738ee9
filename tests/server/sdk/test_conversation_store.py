"""Conversations in memory."""

from tailrace.server.sdk import RecentConversations
from tailrace.streaming.a2a.models import Message, Part, Role


def user_message(text: str) -> Message:
    return Message(message_id=text, role=Role.USER, parts=(Part(text=text),))


async def test_the_newest_messages_of_the_conversations_last_gone_on_with_are_kept() -> None:
    conversations = RecentConversations(max_conversations=2, max_messages=3)
    for context in ("a", "b", "a", "c"):
        await conversations.remember(
            context, "me", "t", [user_message(f"{context}1"), user_message(f"{context}2")]
        )
    ids = [
        [message.message_id for message in await conversations.load_conversation(context, "me", 10)]
        for context in ("a", "b", "c")
    ]
    assert ids == [["a2", "a1", "a2"], [], ["c1", "c2"]]
    assert [item.message_id for item in await conversations.load_conversation("a", "me", 1)] == ["a2"]
    assert not await conversations.load_conversation("a", "me", 0)
    assert not await conversations.load_conversation("a", "you", 10)

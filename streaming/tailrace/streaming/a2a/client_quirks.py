"""Detection of clients that do not process streams as A2A requires. The server adapts the stream for these clients."""

from tailrace.streaming.a2a.models import Message

_ADK_PREFIX = "adk_"
_ADK_USER_INPUT = "is_user_input"


def stores_last_chunk_only(message: Message) -> bool:
    """Return True if a message comes from a client that stores the last chunk of an artifact as the complete artifact.

    ``RemoteA2aAgent`` of Google ADK is such a client. Only the metadata of its message parts identifies it: a key is
    ``is_user_input`` or has the prefix ``adk_``.
    """
    return any(
        key == _ADK_USER_INPUT or key.startswith(_ADK_PREFIX)
        for part in message.parts
        for key in part.metadata
    )

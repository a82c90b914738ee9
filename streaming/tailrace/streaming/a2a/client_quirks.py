"""Detection of clients that do not read streams as A2A requires. The server uses it to adapt the stream."""

from tailrace.streaming.a2a.models import Message

_ADK_PREFIX = "adk_"
_ADK_USER_INPUT = "is_user_input"


def stores_last_chunk_only(message: Message) -> bool:
    """Return True if a message comes from a client that stores the last chunk of an artifact as the complete artifact.

    ``RemoteA2aAgent`` of Google ADK is such a client. It can only be recognised by the metadata of its message parts:
    the key ``is_user_input``, or a key with the prefix ``adk_``. By default it requests no extension, and its user
    agent is that of its HTTP library.
    """
    return any(
        key == _ADK_USER_INPUT or key.startswith(_ADK_PREFIX)
        for part in message.parts
        for key in part.metadata
    )

"""Clients that read a stream in their own way, recognised by their messages."""

from tailrace.streaming.a2a.models import Message

_ADK_PREFIX = "adk_"
_ADK_USER_INPUT = "is_user_input"


def stores_last_chunk_only(message: Message) -> bool:
    """Return whether a message is from a client that stores the last chunk of an artifact as the complete artifact.

    Google ADK's ``RemoteA2aAgent`` does. By default it requests no extension and has the user agent of its HTTP library, but the
    parts of its messages have metadata of ADK: ``is_user_input``, or a name with the prefix ``adk_``.
    """
    return any(
        key == _ADK_USER_INPUT or key.startswith(_ADK_PREFIX)
        for part in message.parts
        for key in part.metadata
    )

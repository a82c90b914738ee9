"""The updates of a task, which are the interface between a handler and the server's engine.

A handler yields updates. The engine applies them to a `TaskRecord`, which creates one event for each update. A
handler can also yield `MessageAdded`, which adds a message to the conversation.
"""

from typing import Any

import msgspec

from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """Text to append to the last text part of an artifact. The artifact must exist and must not be complete.

    Attributes:
        artifact_id: The id of the artifact, which an earlier `ArtifactUpdate` created.
        text: The text. It may be empty only if ``last`` is True.
        last: True if no further content of the artifact follows (``lastChunk``).
    """

    artifact_id: str
    text: str
    last: bool = False


class ArtifactUpdate(msgspec.Struct, frozen=True):
    """A complete artifact, or parts to append to an artifact.

    Attributes:
        artifact: The artifact with at least one part. Its name and metadata are used only if ``append`` is False.
        append: False to create the artifact or replace its content; True to append the parts to an existing artifact.
        last: True if no further content of the artifact follows (``lastChunk``). False if further updates may follow.
        encoded: The JSON of the event if the server has encoded it in advance, as it does for large events; otherwise
            empty.
    """

    artifact: Artifact
    append: bool = False
    last: bool = True
    encoded: bytes = b""


class StatusUpdate(msgspec.Struct, frozen=True):
    """The task's next status.

    Attributes:
        state: The new state, which `tailrace.streaming.a2a.lifecycle.TRANSITIONS` must allow after the current state.
        message: A message of the agent about the state (progress, a question, a reason). It must not contain the text
            of the response.
        metadata: Metadata of the event (usage, finish reason, …).
        continues: True if the turn continues after this status. Only AUTH_REQUIRED allows this: the streams stay open,
            while the handler waits for credentials that arrive outside of the conversation.
        encoded: The JSON of the message if the server has encoded it in advance, as it does for large messages;
            otherwise empty.
    """

    state: TaskState
    message: Message | None = None
    metadata: dict[str, Any] | None = None
    continues: bool = False
    encoded: bytes = b""


class MessageAdded(msgspec.Struct, frozen=True):
    """A message to add to the conversation, for the next turns. It creates no event.

    If a handler yields no `MessageAdded`, the parts of the turn's artifacts are added to the conversation.

    Attributes:
        message: A message of the agent, or a message with the results of tools that ran in the turn. The server adds
            the ids of the task and the context, and persists the message with the next event.
    """

    message: Message


Update = TextDelta | ArtifactUpdate | StatusUpdate
"""A change of a task."""

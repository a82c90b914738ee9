"""The updates of a task. They are the interface between a handler and the server's engine.

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
        artifact_id: The id of an artifact that an earlier `ArtifactUpdate` created.
        text: The text. It may be empty only if ``last`` is True.
        last: True if no further content of the artifact follows (``lastChunk``).
    """

    artifact_id: str
    text: str
    last: bool = False


class ArtifactUpdate(msgspec.Struct, frozen=True):
    """A new or replaced artifact, or parts to append to an artifact.

    Attributes:
        artifact: The artifact with at least one part. Its name and metadata are used only if ``append`` is False.
        append: False to create the artifact or replace its content; True to append the parts to an existing artifact.
        last: True if no further content of the artifact follows (``lastChunk``). False if further updates may follow.
        encoded: The JSON of the event if the server has encoded it before; otherwise empty. The server encodes large
            events in a worker thread.
    """

    artifact: Artifact
    append: bool = False
    last: bool = True
    encoded: bytes = b""


class StatusUpdate(msgspec.Struct, frozen=True):
    """The next status of the task.

    Attributes:
        state: The new state. `tailrace.streaming.a2a.lifecycle.TRANSITIONS` must allow the transition from the current
            state.
        message: A message of the agent about the state (progress, a question, a reason); None for none. It must not contain
            the text of the response.
        metadata: Metadata of the event (usage, finish reason, …); None for none.
        continues: True if the turn continues after this status, which is allowed only with AUTH_REQUIRED. The streams
            then stay open, while the handler waits for credentials that do not arrive with a message of the caller.
        encoded: The JSON of the message if the server has encoded it before; otherwise empty. The server encodes large
            messages in a worker thread.
    """

    state: TaskState
    message: Message | None = None
    metadata: dict[str, Any] | None = None
    continues: bool = False
    encoded: bytes = b""


class MessageAdded(msgspec.Struct, frozen=True):
    """A message to add to the conversation, for the next turns. The message creates no event.

    If a handler yields no `MessageAdded`, the server adds a message with the parts of the turn's artifacts to the
    conversation.

    Attributes:
        message: A message of the agent, or a message with the results of tools that ran in the turn. The server adds
            the ids of the task and the conversation, and persists the message together with the next event.
    """

    message: Message


Update = TextDelta | ArtifactUpdate | StatusUpdate
"""A change of a task."""

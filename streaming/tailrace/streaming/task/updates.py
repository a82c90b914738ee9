"""The updates of a task: the interface between a handler and the server's engine.

A handler yields updates. The engine applies them to a `TaskRecord`, which creates one event for each update.
"""

from typing import Any

import msgspec

from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """Text to append to the last text part of an artifact that exists and is not complete.

    Attributes:
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
        last: True if no further content of the artifact follows (``lastChunk``).
        encoded: The JSON of the event if a worker thread has encoded it; otherwise empty.
    """

    artifact: Artifact
    append: bool = False
    last: bool = True
    encoded: bytes = b""


class StatusUpdate(msgspec.Struct, frozen=True):
    """The next status of the task.

    Attributes:
        state: The new state. `tailrace.streaming.a2a.lifecycle.TRANSITIONS` must contain the transition.
        message: A message of the agent about the state (progress, a question, a reason); None for none. It must not contain the
            text of the response.
        metadata: Metadata of the event (usage, finish reason, …); None for none.
        continues: True if the turn continues after this status, which is allowed only with AUTH_REQUIRED. The streams then stay
            open while the handler waits for credentials. The credentials do not arrive with a message of the caller.
        encoded: The JSON of the message if a worker thread has encoded it; otherwise empty.
    """

    state: TaskState
    message: Message | None = None
    metadata: dict[str, Any] | None = None
    continues: bool = False
    encoded: bytes = b""


class MessageAdded(msgspec.Struct, frozen=True):
    """A message to add to the conversation. It creates no event.

    If a handler yields no `MessageAdded`, the server adds a message with the parts of the turn's artifacts.

    Attributes:
        message: A message of the agent, or a message with the results of tools. The server adds the ids of the task and the
            conversation, and persists the message together with the next event.
    """

    message: Message


Update = TextDelta | ArtifactUpdate | StatusUpdate
"""A change of a task."""

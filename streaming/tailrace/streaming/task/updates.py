"""The updates of a task: the interface between a handler and the engine.

A handler yields updates; the engine numbers them. One update is one event. `MessageAdded` adds messages to the conversation.
"""

from typing import Any

import msgspec

from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """Text to append to an artifact's last text part. The artifact must exist and be open.

    Attributes:
        artifact_id: The artifact, created earlier by an `ArtifactUpdate`.
        text: The text; empty only in a last update.
        last: No more content follows for this artifact (``lastChunk``).
    """

    artifact_id: str
    text: str
    last: bool = False


class ArtifactUpdate(msgspec.Struct, frozen=True):
    """A complete artifact, or parts to append to one.

    Attributes:
        artifact: The parts to set or to append, at least one; name and metadata are used when it is set.
        append: False creates the artifact or replaces its content; True appends the parts to an existing one.
        last: No more content follows for this artifact (``lastChunk``); False to continue with `TextDelta`s or appends.
        encoded: The JSON of the event, if it was made before because it is large; set by the server.
    """

    artifact: Artifact
    append: bool = False
    last: bool = True
    encoded: bytes = b""


class StatusUpdate(msgspec.Struct, frozen=True):
    """The task's next status.

    Attributes:
        state: A state that `tailrace.streaming.a2a.lifecycle.TRANSITIONS` allows after the present one.
        message: The agent's message about it (progress, a question, a reason); never the tokens of the response.
        metadata: Metadata of the event (usage, finish reason, …).
        continues: With AUTH_REQUIRED only: the status does not end the turn. The handler continues when the credentials
            arrive out of band; streams stay open.
        encoded: The JSON of the message with the ids of the task, if it was made before because it is large; set by the
            server.
    """

    state: TaskState
    message: Message | None = None
    metadata: dict[str, Any] | None = None
    continues: bool = False
    encoded: bytes = b""


class MessageAdded(msgspec.Struct, frozen=True):
    """A message that is added to the conversation, for the next turns. It is not an event.

    If a handler yields none, the parts of the turn's artifacts are added.

    Attributes:
        message: A message of the agent, or with the results of tools that ran in the turn; the ids of task and context
            are filled in. Persisted with the next event.
    """

    message: Message


Update = TextDelta | ArtifactUpdate | StatusUpdate
"""One mutation of a task."""

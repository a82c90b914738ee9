"""What can happen to a task: the words between whoever does the work (a handler) and the engine.

A handler yields updates; the engine gives each one the next number of the task's log. An update is one event.
"""

from typing import Any

import msgspec

from tailrace.streaming.a2a.models import Artifact, Message
from tailrace.streaming.lifecycle import TaskState


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """More text at the end of an artifact's last text part. The artifact must exist and be open.

    Attributes:
        artifact_id: The artifact, created earlier by an `ArtifactUpdate`.
        text: What is added; never empty, but for a last one.
        last: Nothing follows for this artifact (``lastChunk``).
    """

    artifact_id: str
    text: str
    last: bool = False


class ArtifactUpdate(msgspec.Struct, frozen=True):
    """An artifact as a whole, or more parts for one.

    Attributes:
        artifact: The parts to set or to add, at least one; name and metadata count when it is set.
        append: False creates the artifact or replaces what it held; True adds the parts to an existing one.
        last: Nothing follows for this artifact (``lastChunk``); False to go on with `TextDelta`s or appends.
    """

    artifact: Artifact
    append: bool = False
    last: bool = True


class StatusUpdate(msgspec.Struct, frozen=True):
    """The task's next state.

    Attributes:
        state: One that `tailrace.streaming.lifecycle.TRANSITIONS` allows after the present one.
        message: What the agent says about it (progress, a question, a reason); never the answer's tokens.
        metadata: Facts for the event (usage, finish reason, …).
        said: What the agent said in this turn, as one message to be kept in the conversation; with None, the
            parts of the artifacts that the turn made.
    """

    state: TaskState
    message: Message | None = None
    metadata: dict[str, Any] | None = None
    said: Message | None = None


Update = TextDelta | ArtifactUpdate | StatusUpdate
"""One mutation of a task."""

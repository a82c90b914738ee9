"""What can happen to a task: the words between whoever does the work (a handler) and the engine.

A handler yields updates; the engine gives each one the next number of the task's log. An update is one event. What joins
the conversation it says beside them (`Said`).
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
    """

    state: TaskState
    message: Message | None = None
    metadata: dict[str, Any] | None = None


class Said(msgspec.Struct, frozen=True):
    """A message that joins the conversation: what the next turn is told that was said. It is no event of its own.

    A turn whose handler says none has said the parts of the artifacts that it made.

    Attributes:
        message: Of the agent, or with the results of tools that ran in the turn; the ids of task and context are
            filled in. Kept with the next event.
    """

    message: Message


Update = TextDelta | ArtifactUpdate | StatusUpdate
"""One mutation of a task."""

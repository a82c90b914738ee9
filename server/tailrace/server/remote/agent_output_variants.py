"""Conversion of output that some agents do not send as artifacts with channels.

- Google ADK marks the parts of an artifact that contain the model's thoughts with ``{"adk_thought": true}``.
- The server of gemini-cli sends no artifacts. Its text and the model's thoughts are messages in statuses, with ``{"coderAgent":
  {"kind": "text-content"}}`` or ``thought`` in the metadata of the event.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any, cast

from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role, Task
from tailrace.streaming.a2a.stream_extension import with_extension_metadata

_REASONING = with_extension_metadata({}, channel="reasoning")


def split_reasoning(artifact: Artifact) -> Sequence[Artifact]:
    """Divide an artifact into its thoughts, if any, and its other parts."""
    thoughts = tuple(part for part in artifact.parts if part.metadata.get("adk_thought") is True)
    if not thoughts:
        return (artifact,)
    reasoning = Artifact(
        artifact_id=f"{artifact.artifact_id}-reasoning",
        name="Reasoning",
        parts=tuple(part.model_copy(update={"metadata": {}}) for part in thoughts),
        metadata=_REASONING,
    )
    rest = tuple(part for part in artifact.parts if part.metadata.get("adk_thought") is not True)
    return (reasoning, artifact.model_copy(update={"parts": rest})) if rest else (reasoning,)


def output_of_status(message: Message | None, metadata: Mapping[str, Any], turn: int) -> Artifact | None:
    """Convert the message of a status to an artifact if the message is output; otherwise return None.

    Args:
        message: The message; None if the status has none.
        metadata: The metadata of the event.
        turn: The number of the turn. Each turn has its own artifacts.
    """
    fields = metadata.get("coderAgent")
    if message is None or not isinstance(fields, Mapping):
        return None
    kind = cast("Mapping[str, Any]", fields).get("kind")
    suffix = f"-turn-{turn}" if turn > 1 else ""
    if kind == "text-content":
        return Artifact(artifact_id=status_text_id(turn), name="Answer", parts=message.parts)
    thoughts = tuple(map(_thought, message.parts)) if kind == "thought" else ()
    if not any(thoughts):
        return None
    parts = tuple(Part(text=text) for text in thoughts if text)
    return Artifact(artifact_id=f"reasoning{suffix}", name="Reasoning", parts=parts, metadata=_REASONING)


def status_text_id(turn: int) -> str:
    """Return the id of the artifact for text that an agent sends in statuses."""
    return f"message-turn-{turn}" if turn > 1 else "message"


def text_in_history(task: Task, published: Container[str] = ()) -> str:
    """Return the text in the history of a task that the agent sent after the caller's last message.

    Messages with other parts than text are omitted.

    Args:
        task: The task.
        published: Ids of messages that were published as messages of statuses, which are omitted, too.
    """
    messages = list(task.history)
    last = task.status.message if task.status.state is TaskState.WORKING else None
    if last is not None and last.message_id not in [each.message_id for each in messages[-1:]]:
        messages.append(last)
    texts: list[str] = []
    for message in reversed(messages):
        if message.role is Role.USER:
            break
        if message.message_id not in published and all(part.text is not None for part in message.parts):
            texts.append("".join(part.text or "" for part in message.parts))
    return "".join(reversed(texts))


def _thought(part: Part) -> str:
    """Return the text of a thought. Its subject becomes a heading."""
    data: object = part.data
    fields = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    subject, description = fields.get("subject"), fields.get("description")
    texts = [f"**{subject}**" if subject else "", description]
    return "\n".join(text for text in texts if isinstance(text, str) and text)

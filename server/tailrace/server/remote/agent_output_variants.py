"""Forms of output that agents use in place of artifacts and channels; each becomes an artifact of ours.

- Google ADK marks the parts of an artifact that are the model's thoughts: ``{"adk_thought": true}``.
- gemini-cli's server has no artifacts: its text, and the model's thoughts, are messages of statuses, with
  ``{"coderAgent": {"kind": "text-content"}}`` or ``thought`` in the metadata of the event.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role, Task
from tailrace.streaming.a2a.stream_extension import with_extension_metadata

_REASONING = with_extension_metadata({}, channel="reasoning")


def split_reasoning(artifact: Artifact) -> Sequence[Artifact]:
    """Return an artifact as one of the thoughts in it and one of the rest; unchanged if it has no thoughts."""
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
    """Return the artifact that the message of a status is a piece of; None if it is a message about the task.

    Args:
        message: The message.
        metadata: The metadata of the event.
        turn: The number of the turn: each one has artifacts of its own.
    """
    facts = metadata.get("coderAgent")
    if message is None or not isinstance(facts, Mapping):
        return None
    kind = cast("Mapping[str, Any]", facts).get("kind")
    suffix = f"-turn-{turn}" if turn > 1 else ""
    if kind == "text-content":
        return Artifact(artifact_id=status_text_id(turn), name="Answer", parts=message.parts)
    thoughts = tuple(map(_thought, message.parts)) if kind == "thought" else ()
    if not any(thoughts):
        return None
    parts = tuple(Part(text=text) for text in thoughts if text)
    return Artifact(artifact_id=f"reasoning{suffix}", name="Reasoning", parts=parts, metadata=_REASONING)


def status_text_id(turn: int) -> str:
    """Return the id of the artifact with the text of an agent that sends it in statuses."""
    return f"message-turn-{turn}" if turn > 1 else "message"


def text_in_history(task: Task) -> str:
    """Return the text that an agent has sent in statuses since the caller's last message, from a copy of its task.

    Messages with other parts than text (for example thoughts) are omitted.
    """
    messages = list(task.history)
    last = task.status.message if task.status.state is TaskState.WORKING else None
    if last is not None and last.message_id not in [each.message_id for each in messages[-1:]]:
        messages.append(last)
    texts: list[str] = []
    for message in reversed(messages):
        if message.role is Role.USER:
            break
        if all(part.text is not None for part in message.parts):
            texts.append("".join(part.text or "" for part in message.parts))
    return "".join(reversed(texts))


def _thought(part: Part) -> str:
    """Return the text of a thought, with its subject as a heading as the model wrote it."""
    data: object = part.data
    fields = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    subject, description = fields.get("subject"), fields.get("description")
    texts = [f"**{subject}**" if subject else "", description]
    return "\n".join(text for text in texts if isinstance(text, str) and text)

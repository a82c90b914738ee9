"""Conversion of a remote agent's response to messages of the conversation."""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.a2a.stream_extension import extension_metadata, with_extension_metadata
from tailrace.streaming.conversion.message_conversion import (
    results_message,
    to_a2a_message,
    to_common_message,
)
from tailrace.wrappers import (
    ContentPart,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
)
from tailrace.wrappers import Message as CommonMessage
from tailrace.wrappers import Role as SpeakerRole

_TOOL_PARTS = (ContentPartToolCall, ContentPartToolResult)


def conversation_messages(
    artifacts: Iterable[Artifact], question: Message | None, metadata: Mapping[str, Any]
) -> list[Message]:
    """Return the messages of a response. Results of tools that the remote agent ran are separate messages.

    Args:
        artifacts: The artifacts of the response.
        question: The message of its last status; None for none.
        metadata: Metadata for the last message of the agent.
    """
    content: list[ContentPart] = []
    for artifact in artifacts:
        fields = extension_metadata(artifact.metadata)
        channel = fields.get("channel")
        if fields.get("choice") or channel == "output":
            # The conversation has only the first choice, and a parsed value would repeat the text.
            continue
        for item in _content_of(artifact.parts):
            if channel in ("tool_call", "tool_result") and not isinstance(item, _TOOL_PARTS):
                continue  # arguments that are not a complete call
            if channel == "reasoning" and isinstance(item, ContentPartText):
                item = ContentPartReasoning(text=item.text, metadata=item.metadata)
            content.append(item)
    if question is not None:
        content += _content_of(question.parts)
    messages = _in_rounds(_each_once(content))
    last = max(at for at, message in enumerate(messages) if message.role is SpeakerRole.MODEL)
    messages[last] = messages[last].model_copy(update={"metadata": dict(metadata)})
    return [
        to_a2a_message(message, message_id=str(uuid4()))
        if message.role is SpeakerRole.MODEL
        else results_message(message)
        for message in messages
    ]


def _content_of(parts: Iterable[Part]) -> list[ContentPart]:
    """Convert parts to the common format. Tool calls that are not valid become data."""
    content: list[ContentPart] = []
    for part in parts:
        if part.text == "":
            continue
        content += to_common_message(_in_a_message(readable_part(part))).content
    return content


def readable_part(part: Part) -> Part:
    """Mark a tool call or result that is not valid as data. Other parts are unchanged."""
    if part.data is None:
        return part
    try:
        to_common_message(_in_a_message(part))
    except ValueError:
        return part.model_copy(update={"metadata": with_extension_metadata(part.metadata, channel="data")})
    return part


def _in_a_message(part: Part) -> Message:
    return Message(message_id="-", role=Role.AGENT, parts=(part,))


def _each_once(content: Iterable[ContentPart]) -> Iterable[ContentPart]:
    """Remove repeated calls and results. An artifact and a status may contain the same call."""
    seen: set[tuple[type, str]] = set()
    for item in content:
        if isinstance(item, _TOOL_PARTS):
            if (type(item), item.id) in seen:
                continue
            seen.add((type(item), item.id))
        yield item


def _in_rounds(content: Iterable[ContentPart]) -> list[CommonMessage]:
    """Divide content into messages of the agent (at least one) and messages with tool results."""
    rounds: list[tuple[SpeakerRole, list[ContentPart]]] = [(SpeakerRole.MODEL, [])]
    provider_calls: set[str] = set()  # calls whose results are part of the response
    for item in content:
        if isinstance(item, ContentPartToolCall) and item.kind == "server":
            provider_calls.add(item.id)
        is_result = isinstance(item, ContentPartToolResult) and item.id not in provider_calls
        role = SpeakerRole.TOOL if is_result else SpeakerRole.MODEL
        if role is not rounds[-1][0]:
            rounds.append((role, []))
        rounds[-1][1].append(item)
    return [CommonMessage(role=role, content=tuple(items)) for role, items in rounds]

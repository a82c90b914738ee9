"""Decodes the members of a task's events that protocols other than A2A need.

Artifacts of agents without the stream extension have no channel.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from typing_extensions import TypeIs

from tailrace.server.protocols.markdown import data_markdown, file_markdown
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.streaming.conversion.message_conversion import to_common_message
from tailrace.wrappers import ContentPartFile, ContentPartToolCall
from tailrace.wrappers.conversion.text_joining import BLANK_LINE


class PartView(msgspec.Struct, gc=False):
    """A part of an artifact or message."""

    text: str | None = None
    data: Any = None
    url: str | None = None
    raw: str | None = None
    filename: str = ""
    media_type: str = msgspec.field(default="", name="mediaType")
    metadata: dict[str, Any] | None = None

    @property
    def is_file(self) -> bool:
        """True if the part is a file."""
        return self.url is not None or self.raw is not None

    @property
    def is_tool_data(self) -> bool:
        """True if the part contains tool calls or their results."""
        return is_mapping(self.data) and ("tool_calls" in self.data or "tool_results" in self.data)


class ArtifactView(msgspec.Struct):
    """An artifact, or the content that an update appends to it."""

    artifact_id: str = msgspec.field(name="artifactId")
    parts: list[PartView]
    name: str = ""
    metadata: dict[str, Any] = {}


class ArtifactUpdateView(msgspec.Struct):
    """A new artifact, or a change of an artifact."""

    artifact: ArtifactView
    append: bool = False
    last_chunk: bool = msgspec.field(default=False, name="lastChunk")


class StatusView(msgspec.Struct, frozen=True):
    """A status without its state, which `Event.state` contains."""

    message: dict[str, Any] | None = None


class StatusUpdateView(msgspec.Struct):
    """A new status with metadata."""

    status: StatusView
    metadata: dict[str, Any] = {}


class MessageView(msgspec.Struct):
    """A message of a task's history."""

    role: str
    parts: list[dict[str, Any]] = []
    metadata: dict[str, Any] = {}

    @property
    def is_callers(self) -> bool:
        """True if the caller sent the message. Results of the agent's tools also have the role ``ROLE_USER``."""
        return self.role == "ROLE_USER" and extension_metadata(self.metadata).get("by") != "agent"


class TaskView(msgspec.Struct):
    """A snapshot of a task."""

    id: str
    context_id: str = msgspec.field(name="contextId")
    status: StatusView = StatusView()
    artifacts: list[ArtifactView] = []
    history: list[MessageView] = []
    metadata: dict[str, Any] = {}


class DirectMessageView(msgspec.Struct):
    """A response without a task."""

    parts: list[PartView] = []


class EventView(msgspec.Struct):
    """An event of a task. Exactly one member is set."""

    task: TaskView | None = None
    message: DirectMessageView | None = None
    status_update: StatusUpdateView | None = msgspec.field(default=None, name="statusUpdate")
    artifact_update: ArtifactUpdateView | None = msgspec.field(default=None, name="artifactUpdate")


decode_event = msgspec.json.Decoder(EventView).decode
"""Decodes the body of an `Event`."""


def channel_of(metadata: Mapping[str, Any]) -> str:
    """Return the channel of an artifact or part; may be empty."""
    fields = extension_metadata(metadata)
    if fields.get("choice"):
        return "choice"  # an alternative response
    channel = fields.get("channel")
    return channel if isinstance(channel, str) else ""


def turn_or_round_number(fact: object) -> int:
    """Return the number of a turn or round in metadata; 1 by default."""
    return fact if isinstance(fact, int) else 1


def is_mapping(value: object) -> TypeIs[Mapping[str, Any]]:
    """Return whether a JSON value is an object."""
    return isinstance(value, Mapping)


def text_of(parts: Sequence[PartView], *, append: bool = False) -> str:
    """Convert parts to text, with files and data as Markdown. Calls and results are omitted.

    Args:
        parts: The parts of one event.
        append: Whether the parts continue the text of an artifact. If not, texts without metadata are separated with blank lines.
            Texts with metadata may be deltas of one text, and are always joined.
    """
    if len(parts) == 1 and parts[0].text is not None:
        return parts[0].text  # the common case
    texts: list[str] = []
    before: PartView | None = None
    for part in parts:
        if part.text:
            is_apart = before is not None and not (append or before.metadata or part.metadata)
            texts += [BLANK_LINE, part.text] if is_apart else [part.text]
            before = part
        elif part.text is None and not part.is_tool_data:
            block = _file_markdown(part) if part.is_file else data_markdown(part.data)
            texts.append(f"\n\n{block}\n\n" if len(parts) > 1 else block)
            before = None
    return "".join(texts)


def _file_markdown(part: PartView) -> str:
    fields = {"url": part.url, "data": part.raw, "media_type": part.media_type, "filename": part.filename}
    return file_markdown(ContentPartFile.model_validate(fields))


def tool_call_of(part: PartView) -> ContentPartToolCall | None:
    """Return the tool call in a data part, or None."""
    data = {"data": part.data, "metadata": part.metadata or {}}
    calls = to_common_message({"role": "ROLE_AGENT", "parts": [data]}).tool_calls
    return calls[0] if calls else None


def is_same_arguments(text: str, call: ContentPartToolCall) -> bool:
    """Return whether a text represents the arguments of a call."""
    if call.arguments_text is not None:
        return text == call.arguments_text
    try:
        return (json.loads(text) or {}) == call.arguments
    except ValueError:
        return False

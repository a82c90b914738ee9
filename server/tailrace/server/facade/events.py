"""What readers of a task's events have in common that show them to clients of other protocols than A2A.

Events are decoded as far as such readers look at them, which costs a microsecond. The facts of our extension say what kind
of content an artifact holds, and what a turn came to; an agent that knows nothing of the extension is read as well.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from typing_extensions import TypeIs

from tailrace.server.facade.errors import OpenAIError
from tailrace.server.facade.markdown import data_markdown, file_markdown, markdown_of
from tailrace.streaming.conversation import to_common_message
from tailrace.streaming.extension import extension_facts
from tailrace.streaming.lifecycle import TaskState
from tailrace.wrappers import ContentPartFile, ContentPartToolCall, Message


class PartView(msgspec.Struct, gc=False):
    """A part of an artifact."""

    text: str | None = None
    data: Any = None
    url: str | None = None
    raw: str | None = None
    filename: str = ""
    media_type: str = msgspec.field(default="", name="mediaType")


class ArtifactView(msgspec.Struct):
    """An artifact, or what is added to one."""

    artifact_id: str = msgspec.field(name="artifactId")
    parts: list[PartView]
    name: str = ""
    metadata: dict[str, Any] = {}


class ArtifactUpdateView(msgspec.Struct):
    """What happened to an artifact."""

    artifact: ArtifactView
    append: bool = False
    last_chunk: bool = msgspec.field(default=False, name="lastChunk")


class StatusView(msgspec.Struct, frozen=True):
    """A status; its state is that of the `Event`."""

    message: dict[str, Any] | None = None


class StatusUpdateView(msgspec.Struct):
    """A new status, and its facts."""

    status: StatusView
    metadata: dict[str, Any] = {}


class SaidView(msgspec.Struct):
    """A message of a task's history."""

    role: str
    parts: list[dict[str, Any]] = []
    metadata: dict[str, Any] = {}


class TaskView(msgspec.Struct):
    """A task as it stands."""

    id: str
    context_id: str = msgspec.field(name="contextId")
    status: StatusView = StatusView()
    artifacts: list[ArtifactView] = []
    history: list[SaidView] = []
    metadata: dict[str, Any] = {}


class EventView(msgspec.Struct):
    """An event of a task: one of these."""

    task: TaskView | None = None
    message: dict[str, Any] | None = None
    status_update: StatusUpdateView | None = msgspec.field(default=None, name="statusUpdate")
    artifact_update: ArtifactUpdateView | None = msgspec.field(default=None, name="artifactUpdate")


view_event = msgspec.json.Decoder(EventView).decode
"""Decodes the body of an `Event`."""


def channel_of(artifact: ArtifactView) -> str:
    """What kind of content an artifact holds; empty for one of an agent that does not say."""
    facts = extension_facts(artifact.metadata)
    if facts.get("choice"):
        return "choice"  # one answer was asked for
    channel = facts.get("channel")
    return channel if isinstance(channel, str) else ""


def number_of(fact: object) -> int:
    """Which turn or round a fact says; the first where it is not said."""
    return fact if isinstance(fact, int) else 1


def is_mapping(value: object) -> TypeIs[Mapping[str, Any]]:
    """Whether a value of JSON is an object."""
    return isinstance(value, Mapping)


def call_id_of(data: Mapping[str, Any]) -> str:
    """The id of the call that a data part holds; empty where it holds none."""
    calls = data.get("tool_calls")
    first = cast("Sequence[object]", calls)[0] if isinstance(calls, list) and calls else None
    return str(first.get("call_id", "")) if is_mapping(first) else ""


def is_said_by_caller(said: SaidView) -> bool:
    """Whether it is the caller who said a message, and not one of the agent's tools."""
    return said.role == "ROLE_USER" and extension_facts(said.metadata).get("by") != "agent"


def text_of(parts: list[PartView]) -> str:
    """What parts say as text: files and data as Markdown; calls and results say nothing."""
    if len(parts) == 1 and parts[0].text is not None:
        return parts[0].text  # as nearly always
    texts: list[str] = []
    for part in parts:
        if part.text is not None:
            texts.append(part.text)
            continue
        if part.url is not None or part.raw is not None:
            fields = {"url": part.url, "data": part.raw, "media_type": part.media_type}
            block = file_markdown(ContentPartFile.model_validate({**fields, "filename": part.filename}))
        elif is_mapping(part.data) and ("tool_calls" in part.data or "tool_results" in part.data):
            continue
        else:
            block = data_markdown(part.data)
        texts.append(f"\n\n{block}\n\n" if len(parts) > 1 else block)
    return "".join(texts)


def says_arguments(text: str, call: ContentPartToolCall) -> bool:
    """Whether a text says a call's arguments."""
    if call.arguments_text is not None:
        return text == call.arguments_text
    try:
        return (json.loads(text) or {}) == call.arguments
    except ValueError:
        return False


class TurnEnd(msgspec.Struct, frozen=True):
    """What a turn came to, as its last status says.

    Attributes:
        finish: ``stop``, ``length``, ``content_filter`` or ``tool_calls``; nothing of it counts with an error.
        usage: The fact ``usage``; None where nothing was counted.
        error: Why there is no answer, or none that is whole.
        cut: The answer ends where its provider stopped it.
        message: What the agent said with the status; None where it said nothing.
        words: The same as text.
        calls: Those that wait for the caller.
    """

    finish: str = "stop"
    usage: dict[str, Any] | None = None
    error: OpenAIError | None = None
    cut: bool = False
    message: Message | None = None
    words: str = ""
    calls: Sequence[ContentPartToolCall] = ()


# What a task's last status says of a model's answer that is not whole for a reason that clients have a word for.
_CUT = {"length": "length", "content_filter": "content_filter", "recitation": "content_filter"}


def read_end(state: TaskState, said: dict[str, Any] | None, facts: Mapping[str, Any]) -> TurnEnd:
    """What a turn came to.

    Args:
        state: The task's state by then: over, or waiting for the caller.
        said: The message of the status.
        facts: The facts of the status.
    """
    message = to_common_message(said) if said is not None else None
    words = markdown_of(message.content) if message is not None else ""
    given = facts.get("usage")
    usage = dict(given) if is_mapping(given) else None
    finish = _CUT.get(str(facts.get("finishReason")), "")
    if state in (TaskState.FAILED, TaskState.REJECTED, TaskState.CANCELED):
        if state is TaskState.FAILED and finish and "error" not in facts:
            return TurnEnd(finish, usage, cut=True)
        return TurnEnd(usage=usage, error=OpenAIError.of_task(state, words, facts))
    calls = message.tool_calls if message is not None and state is TaskState.INPUT_REQUIRED else ()
    return TurnEnd("tool_calls" if calls else finish or "stop", usage, None, False, message, words, calls)

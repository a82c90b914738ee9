"""Requests and responses through the official SDK."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from a2a.types import (
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskState,
)
from google.protobuf.json_format import MessageToDict

from tailrace.streaming import EXTENSION_URI


def send(
    text: str = "hello",
    *,
    task_id: str = "",
    context_id: str = "",
    configuration: SendMessageConfiguration | None = None,
    tenant: str = "",
) -> SendMessageRequest:
    """A request with one text part."""
    message = Message(
        message_id=str(uuid4()),
        role=Role.ROLE_USER,
        parts=[Part(text=text)],
        task_id=task_id,
        context_id=context_id,
    )
    configuration = configuration or SendMessageConfiguration()
    return SendMessageRequest(message=message, configuration=configuration, tenant=tenant)


def kinds(events: Sequence[StreamResponse]) -> list[str]:
    """The kind of each event: the state of a task or status, or the name of its member."""
    return [_kind(event) for event in events]


def _kind(event: StreamResponse) -> str:
    if event.HasField("task"):
        return f"task {state(event.task)}"
    if event.HasField("status_update"):
        return TaskState.Name(event.status_update.status.state).removeprefix("TASK_STATE_").lower()
    return "message" if event.HasField("message") else "artifact"


def state(task: Task) -> str:
    """A task's state in lower case."""
    return TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()


def streamed(events: Sequence[StreamResponse]) -> str:
    """The text of all artifact events, joined."""
    return "".join(
        part.text
        for event in events
        if event.HasField("artifact_update")
        for part in event.artifact_update.artifact.parts
    )


def text_of(task: Task) -> str:
    """The text of all of a task's artifacts, joined."""
    return "".join(part.text for artifact in task.artifacts for part in artifact.parts)


def facts(event: StreamResponse) -> dict[str, Any]:
    """The extension's facts of an event."""
    for name in ("task", "status_update", "artifact_update"):
        if event.HasField(name):
            return MessageToDict(getattr(event, name).metadata).get(EXTENSION_URI, {})
    return {}


def numbers(events: Sequence[StreamResponse]) -> list[int]:
    """The number of each event in the extension's facts."""
    return [int(facts(event)["number"]) for event in events]

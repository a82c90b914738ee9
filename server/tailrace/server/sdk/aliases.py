"""The names that agents were written with before the official SDK had its own, over the SDK's objects.

====================  ======================================
``Skill``             ``AgentSkill``
``Capabilities``      ``AgentCapabilities``
``Provider``          ``AgentProvider``
``AuthConfig``        ``SecurityScheme``
``MessagePart``       ``Part``
``MessageSendParams`` ``SendMessageRequest``
``TaskGetParams``     ``GetTaskRequest``
``TaskListParams``    ``ListTasksRequest``
``TaskCancelParams``  ``CancelTaskRequest``
====================  ======================================

What kept its name is here too. Since A2A 1.0 a part is one class whatever it holds: ``TextPart``, ``FilePart`` and
``DataPart`` are functions that make one.
"""

from collections.abc import Mapping
from typing import Any

from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentProvider,
    AgentSkill,
    Artifact,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SecurityScheme,
    SendMessageRequest,
    Task,
    TaskState,
    TaskStatus,
)

from tailrace.server.sdk.types import fill

Skill = AgentSkill
Capabilities = AgentCapabilities
Provider = AgentProvider
AuthConfig = SecurityScheme
MessagePart = Part
MessageSendParams = SendMessageRequest
TaskGetParams = GetTaskRequest
TaskListParams = ListTasksRequest
TaskCancelParams = CancelTaskRequest


def TextPart(text: str, metadata: Mapping[str, Any] | None = None) -> Part:
    """A part of text."""
    return fill(Part(), {"text": text, **_metadata(metadata)})


def FilePart(
    *,
    raw: bytes | None = None,
    url: str = "",
    filename: str = "",
    media_type: str = "",
    metadata: Mapping[str, Any] | None = None,
) -> Part:
    """A part with a file: its bytes, or where it can be fetched.

    Raises:
        ValueError: Neither is given, or both are.
    """
    if (raw is None) == (not url):
        raise ValueError("a file is given as its bytes (raw) or as its address (url), and not as both")
    part = Part(raw=raw) if raw is not None else Part(url=url)
    return fill(part, {"filename": filename, "mediaType": media_type, **_metadata(metadata)})


def DataPart(data: Any, metadata: Mapping[str, Any] | None = None, *, media_type: str = "") -> Part:
    """A part with any JSON value.

    Raises:
        InternalError: As `tailrace.server.sdk.to_sdk`.
    """
    return fill(Part(), {"data": data, "mediaType": media_type, **_metadata(metadata)})


def _metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"metadata": dict(metadata)} if metadata else {}


__all__ = (
    "AgentCard",
    "Artifact",
    "AuthConfig",
    "Capabilities",
    "DataPart",
    "FilePart",
    "Message",
    "MessagePart",
    "MessageSendParams",
    "Part",
    "Provider",
    "Role",
    "Skill",
    "Task",
    "TaskCancelParams",
    "TaskGetParams",
    "TaskListParams",
    "TaskState",
    "TaskStatus",
    "TextPart",
)

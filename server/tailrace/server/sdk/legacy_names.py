"""Names of objects from before the official SDK, as aliases of the SDK's objects.

==========================  ==========================================
``Skill``                   ``AgentSkill``
``Capabilities``            ``AgentCapabilities``
``Provider``                ``AgentProvider``
``AuthConfig``              ``SecurityScheme``
``MessagePart``             ``Part``
``FileWithBytes``           ``Part`` with ``raw``
``FileWithUri``             ``Part`` with ``url``
``MessageSendParams``       ``SendMessageRequest``
``TaskGetParams``           ``GetTaskRequest``
``TaskListParams``          ``ListTasksRequest``
``TaskCancelParams``        ``CancelTaskRequest``
``TaskManager``             ``InMemoryTaskStore``
``A2AFastAPIApplication``   `tailrace.server.sdk.application.A2AServer`
==========================  ==========================================

In A2A 1.0, parts of all kinds are one class: ``TextPart``, ``FilePart``, ``DataPart``, ``FileWithBytes`` and ``FileWithUri`` are
functions. Forms from before A2A 1.0 (``AgentCard(url=…)``, ``TaskState.completed``, ``messageId=``) issue a `DeprecationWarning`
(`tailrace.server.sdk.legacy_constructors`).
"""

from base64 import b64decode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from a2a import types
from a2a.server.tasks import InMemoryTaskStore

from tailrace.server.protocols.a2a.sdk_types import fill
from tailrace.server.sdk.application import A2AServer
from tailrace.server.sdk.json_rpc import (
    ErrorCode,
    JSONRPCError,
    JSONRPCErrorResponse,
    JSONRPCRequest,
    JSONRPCResponse,
    JSONRPCSuccessResponse,
)
from tailrace.server.sdk.legacy_constructors import (
    CAPABILITIES,
    CARD,
    KIND,
    PART,
    PROVIDER,
    SKILL,
    OlderEnum,
    OlderObject,
    warn_older,
)

if TYPE_CHECKING:
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
        SendMessageRequest,
        Task,
        TaskState,
        TaskStatus,
    )
else:
    Role = OlderEnum(types.Role, "ROLE_", {})
    TaskState = OlderEnum(types.TaskState, "TASK_STATE_", {"cancelled": "CANCELED", "unknown": "UNSPECIFIED"})
    AgentCapabilities = OlderObject(types.AgentCapabilities, CAPABILITIES)
    AgentCard = OlderObject(types.AgentCard, CARD)
    AgentProvider = OlderObject(types.AgentProvider, PROVIDER)
    AgentSkill = OlderObject(types.AgentSkill, SKILL)
    Artifact = OlderObject(types.Artifact)
    CancelTaskRequest = OlderObject(types.CancelTaskRequest)
    GetTaskRequest = OlderObject(types.GetTaskRequest)
    ListTasksRequest = OlderObject(types.ListTasksRequest, enums={"status": TaskState})
    Message = OlderObject(types.Message, KIND, {"role": Role})
    Part = OlderObject(types.Part, PART)
    SendMessageRequest = OlderObject(types.SendMessageRequest)
    Task = OlderObject(types.Task, KIND)
    TaskStatus = OlderObject(types.TaskStatus, enums={"state": TaskState})

Skill = AgentSkill
Capabilities = AgentCapabilities
Provider = AgentProvider
AuthConfig = types.SecurityScheme
MessagePart = Part
MessageSendParams = SendMessageRequest
TaskGetParams = GetTaskRequest
TaskListParams = ListTasksRequest
TaskCancelParams = CancelTaskRequest
TaskManager = InMemoryTaskStore
A2AFastAPIApplication = A2AServer


def TextPart(text: str, metadata: Mapping[str, Any] | None = None) -> Part:
    """Create a text part."""
    return fill(types.Part(), {"text": text, **_metadata(metadata)})


def FilePart(
    file: Part | None = None,
    *,
    raw: bytes | None = None,
    url: str = "",
    filename: str = "",
    media_type: str = "",
    metadata: Mapping[str, Any] | None = None,
) -> Part:
    """Create a part with a file, from its bytes or its URL.

    Args:
        file: A file from `FileWithBytes` or `FileWithUri`; None to use ``raw`` or ``url``.
        raw: The bytes of the file; None for a file with a URL.
        url: The URL of the file; empty for a file with bytes.
        filename: The name of the file.
        media_type: The media type.
        metadata: The metadata of the part.

    Raises:
        ValueError: Not exactly one of ``file``, ``raw`` and ``url`` is given.
    """
    if file is not None and raw is None and not url:
        part = types.Part()
        part.CopyFrom(file)
        return fill(part, _metadata(metadata))
    if file is not None or (raw is None) == (not url):
        raise ValueError("a file is given as its bytes (raw) or as its address (url), and not as both")
    part = types.Part(raw=raw) if raw is not None else types.Part(url=url)
    return fill(part, {"filename": filename, "mediaType": media_type, **_metadata(metadata)})


def FileWithBytes(bytes: str, name: str = "", mime_type: str = "", *, mimeType: str = "") -> Part:
    """Create a file from base64, like in A2A 0.3. In 1.0, use ``FilePart(raw=…, filename=…, media_type=…)``.

    Raises:
        ValueError: The content is not base64.
    """
    warn_older("FileWithBytes(…)", "use FilePart(raw=…, filename=…, media_type=…)")
    raw = b64decode(bytes, validate=True)
    return FilePart(raw=raw, filename=name, media_type=mime_type or mimeType)


def FileWithUri(uri: str, name: str = "", mime_type: str = "", *, mimeType: str = "") -> Part:
    """Create a file from its URL, like in A2A 0.3. In 1.0, use ``FilePart(url=…, filename=…, media_type=…)``."""
    warn_older("FileWithUri(…)", "use FilePart(url=…, filename=…, media_type=…)")
    return FilePart(url=uri, filename=name, media_type=mime_type or mimeType)


def DataPart(
    data: Any, metadata: Mapping[str, Any] | None = None, *, media_type: str = "", mimeType: str = ""
) -> Part:
    """Create a part with any JSON value.

    Args:
        data: The value.
        metadata: The metadata of the part.
        media_type: The media type.
        mimeType: The media type, by its name from before A2A 1.0.

    Raises:
        InternalError: As for `tailrace.server.sdk.to_sdk`.
    """
    if mimeType:
        warn_older("DataPart(mimeType=…)", "use media_type=")
    return fill(types.Part(), {"data": data, "mediaType": media_type or mimeType, **_metadata(metadata)})


def _metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"metadata": dict(metadata)} if metadata else {}


__all__ = (
    "A2AFastAPIApplication",
    "A2AServer",
    "AgentCapabilities",
    "AgentCard",
    "AgentProvider",
    "AgentSkill",
    "Artifact",
    "AuthConfig",
    "CancelTaskRequest",
    "Capabilities",
    "DataPart",
    "ErrorCode",
    "FilePart",
    "FileWithBytes",
    "FileWithUri",
    "GetTaskRequest",
    "InMemoryTaskStore",
    "JSONRPCError",
    "JSONRPCErrorResponse",
    "JSONRPCRequest",
    "JSONRPCResponse",
    "JSONRPCSuccessResponse",
    "Message",
    "MessagePart",
    "MessageSendParams",
    "Part",
    "Provider",
    "Role",
    "SendMessageRequest",
    "Skill",
    "Task",
    "TaskCancelParams",
    "TaskGetParams",
    "TaskListParams",
    "TaskManager",
    "TaskState",
    "TaskStatus",
    "TextPart",
)

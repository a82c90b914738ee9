"""Interoperation with the official ``a2a-sdk`` 1.x, an extra: ``pip install 'tailrace[sdk]'``.

- `RequestHandler`: serves the engine with the routes of the SDK.
- `AgentExecutor`: runs a handler or a model in a server of the SDK.
- `TaskStore`: stores the tasks of a server of the SDK in the database of tailrace.
- `RemoteAgent`, `RemoteAgentHandler`, `AgentTool`: client, handler and tool for a remote agent.
- `to_sdk`, `from_sdk`, `to_sdk_error`, `from_sdk_error`: conversion of objects and errors.
- Older names of the SDK's objects, such as ``Skill`` and ``Capabilities`` (`tailrace.server.sdk.legacy_names`).

Raises:
    ImportError: The SDK is not installed.
"""

try:
    import a2a.types  # noqa: F401  # pyright: ignore[reportUnusedImport] — for an error with instructions
except ImportError as error:
    raise ImportError(
        f"tailrace.server.sdk needs the official A2A SDK: pip install 'tailrace[sdk]' ({error})"
    ) from error

from tailrace.server.protocols.a2a.sdk_errors import from_sdk_error, to_sdk_error
from tailrace.server.protocols.a2a.sdk_types import from_sdk, to_sdk
from tailrace.server.remote.agent_card import RemoteCard
from tailrace.server.remote.agent_handler import RemoteAgentHandler
from tailrace.server.remote.agent_tool import AgentTool, agent_tools
from tailrace.server.remote.remote_agent import RemoteAgent
from tailrace.server.remote.response_validation import RemoteEvent
from tailrace.server.sdk.conversation_store import Conversations, RecentConversations
from tailrace.server.sdk.executor import AgentExecutor
from tailrace.server.sdk.legacy_names import (
    A2AFastAPIApplication,
    A2AServer,
    AgentCapabilities,
    AgentCard,
    AgentProvider,
    AgentSkill,
    Artifact,
    AuthConfig,
    CancelTaskRequest,
    Capabilities,
    DataPart,
    ErrorCode,
    FilePart,
    FileWithBytes,
    FileWithUri,
    GetTaskRequest,
    InMemoryTaskStore,
    JSONRPCError,
    JSONRPCErrorResponse,
    JSONRPCRequest,
    JSONRPCResponse,
    JSONRPCSuccessResponse,
    Message,
    MessagePart,
    MessageSendParams,
    Part,
    Provider,
    Role,
    SendMessageRequest,
    Skill,
    Task,
    TaskCancelParams,
    TaskGetParams,
    TaskListParams,
    TaskManager,
    TaskState,
    TaskStatus,
    TextPart,
)
from tailrace.server.sdk.request_handler import RequestHandler, caller_of
from tailrace.server.sdk.task_store import TaskStore

__all__ = (
    "A2AFastAPIApplication",
    "A2AServer",
    "AgentCapabilities",
    "AgentCard",
    "AgentExecutor",
    "AgentProvider",
    "AgentSkill",
    "AgentTool",
    "Artifact",
    "AuthConfig",
    "CancelTaskRequest",
    "Capabilities",
    "Conversations",
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
    "RecentConversations",
    "RemoteAgent",
    "RemoteAgentHandler",
    "RemoteCard",
    "RemoteEvent",
    "RequestHandler",
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
    "TaskStore",
    "TextPart",
    "agent_tools",
    "caller_of",
    "from_sdk",
    "from_sdk_error",
    "to_sdk",
    "to_sdk_error",
)

"""Interoperation with the official ``a2a-sdk`` 1.x, an extra: ``pip install 'tailrace[sdk]'``.

- `RequestHandler`: our engine behind the SDK's routes.
- `AgentExecutor`: a handler of ours, or a model, inside a server made with the SDK.
- `TaskStore`: our database under such a server.
- `RemoteAgent`, `RemoteAgentHandler`, `AgentTool`: somebody else's agent to talk to, behind our server, and as a tool.
- `to_sdk`, `from_sdk`, `to_sdk_error`, `from_sdk_error`: objects and errors, each made from the other.
- The older names of the SDK's objects (`tailrace.server.sdk.aliases`): ``Skill``, ``Capabilities``, ….

Raises:
    ImportError: The SDK is not installed; the message says how to install it.
"""

try:
    import a2a.types  # noqa: F401  # pyright: ignore[reportUnusedImport] — to say what is missing, and how to get it
except ImportError as error:
    raise ImportError(
        f"tailrace.server.sdk needs the official A2A SDK: pip install 'tailrace[sdk]' ({error})"
    ) from error

from tailrace.server.sdk.agent_cards import RemoteCard
from tailrace.server.sdk.agent_tool import AgentTool, agent_tools
from tailrace.server.sdk.aliases import (
    AgentCard,
    Artifact,
    AuthConfig,
    Capabilities,
    DataPart,
    FilePart,
    Message,
    MessagePart,
    MessageSendParams,
    Part,
    Provider,
    Role,
    Skill,
    Task,
    TaskCancelParams,
    TaskGetParams,
    TaskListParams,
    TaskState,
    TaskStatus,
    TextPart,
)
from tailrace.server.sdk.conversations import Conversations, RecentConversations
from tailrace.server.sdk.errors import from_sdk_error, to_sdk_error
from tailrace.server.sdk.executor import AgentExecutor
from tailrace.server.sdk.relay import RemoteEvent
from tailrace.server.sdk.remote_agent import RemoteAgent
from tailrace.server.sdk.remote_handler import RemoteAgentHandler
from tailrace.server.sdk.request_handler import RequestHandler, caller_of
from tailrace.server.sdk.task_store import TaskStore
from tailrace.server.sdk.types import from_sdk, to_sdk

__all__ = (
    "AgentCard",
    "AgentExecutor",
    "AgentTool",
    "Artifact",
    "AuthConfig",
    "Capabilities",
    "Conversations",
    "DataPart",
    "FilePart",
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
    "Skill",
    "Task",
    "TaskCancelParams",
    "TaskGetParams",
    "TaskListParams",
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

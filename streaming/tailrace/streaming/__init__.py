"""From chunks to a task: folding, numbering, A2A, and the conversation."""

from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.agent import Agent
from tailrace.streaming.bridge import A2AArtifact, A2AMessage, A2ATaskBridge, A2ATaskResult
from tailrace.streaming.chat_completion import to_chat_completion
from tailrace.streaming.conversation import (
    convert_a2a_message_to_openai,
    to_a2a_message,
    to_common_message,
)
from tailrace.streaming.conversion import StreamConversion
from tailrace.streaming.extension import EXTENSION_URI
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.log import Behind, TaskLog
from tailrace.streaming.run import AgentError, BrokenRunError, ChatResult
from tailrace.streaming.task import Event, TaskRecord
from tailrace.streaming.tools import FunctionTool, Tool, ToolContext, ToolError, Toolset, tool
from tailrace.streaming.translator import ResponseTranslator
from tailrace.streaming.trimming import HistoryPolicy, TokenBudget, keep_all
from tailrace.streaming.updates import ArtifactUpdate, Said, StatusUpdate, TextDelta, Update

__all__ = (
    "EXTENSION_URI",
    "A2AArtifact",
    "A2AMessage",
    "A2ATaskBridge",
    "A2ATaskResult",
    "Accumulator",
    "Agent",
    "AgentError",
    "ArtifactUpdate",
    "Behind",
    "BrokenRunError",
    "ChatResult",
    "Event",
    "FunctionTool",
    "HistoryPolicy",
    "ResponseTranslator",
    "Said",
    "StatusUpdate",
    "StreamConversion",
    "TaskLog",
    "TaskRecord",
    "TaskState",
    "TextDelta",
    "TokenBudget",
    "Tool",
    "ToolContext",
    "ToolError",
    "Toolset",
    "Update",
    "convert_a2a_message_to_openai",
    "keep_all",
    "to_a2a_message",
    "to_chat_completion",
    "to_common_message",
    "tool",
)

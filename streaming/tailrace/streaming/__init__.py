"""The streaming layer, which converts the chunks of a model to the events of an A2A task.

The layer assembles responses (`Accumulator`, `TurnAccumulator`), runs agents with tools (`Agent`), numbers the events of a task
(`TaskRecord`, `TaskLog`), and converts between A2A and the formats of model APIs. It imports no web framework.
"""

from typing import Any

from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.agent.agent import Agent
from tailrace.streaming.agent.events import AgentError, BrokenRunError, ChatResult
from tailrace.streaming.agent.trimming import HistoryPolicy, TokenBudget, keep_all
from tailrace.streaming.conversion.a2a_task_bridge import (
    A2AArtifact,
    A2AMessage,
    A2ATaskBridge,
    A2ATaskResult,
)
from tailrace.streaming.conversion.chat_completion import to_chat_completion
from tailrace.streaming.conversion.message_conversion import (
    convert_a2a_message_to_openai,
    to_a2a_message,
    to_common_message,
)
from tailrace.streaming.conversion.recorded_stream import StreamConversion
from tailrace.streaming.conversion.response_translator import ResponseTranslator
from tailrace.streaming.task.event_log import EventsEvicted, TaskLog
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.streaming.task.updates import ArtifactUpdate, MessageAdded, StatusUpdate, TextDelta, Update
from tailrace.streaming.tools.tools import FunctionTool, Tool, ToolContext, ToolError, Toolset, tool
from tailrace.streaming.turn_accumulator import TurnAccumulator, TurnDelta
from tailrace.wrappers.redaction.log_escaping import escape_records_of

escape_records_of("tailrace.streaming", "tailrace.streaming.tools.mcp")

__path__.extend([f"{folder}/deprecated" for folder in __path__])  # modules under their former names

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
    "BrokenRunError",
    "ChatResult",
    "Event",
    "EventsEvicted",
    "FunctionTool",
    "HistoryPolicy",
    "MessageAdded",
    "ResponseTranslator",
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
    "TurnAccumulator",
    "TurnDelta",
    "Update",
    "convert_a2a_message_to_openai",
    "keep_all",
    "to_a2a_message",
    "to_chat_completion",
    "to_common_message",
    "tool",
)

_FORMER_NAMES: dict[str, Any] = {"Behind": EventsEvicted, "Said": MessageAdded}  # until 0.3


def __getattr__(name: str) -> Any:
    if name in _FORMER_NAMES:
        return _FORMER_NAMES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

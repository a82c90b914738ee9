"""The wrappers layer: one interface to the APIs of all model providers.

The layer converts the streamed responses and the messages of these APIs to common types, and converts conversations to requests.
This package exports the common types. Each provider has a subpackage, for example `tailrace.wrappers.anthropic`.
"""

from tailrace.wrappers.assembly.changes import Change, Channel
from tailrace.wrappers.assembly.message_assembly import MessageAssembly
from tailrace.wrappers.chunks import (
    ChunkDetails,
    ChunkWrapper,
    FinishMessage,
    FinishReason,
    ToolCallDelta,
    Usage,
)
from tailrace.wrappers.conversion.history_converter import HistoryConverter
from tailrace.wrappers.decoding.framing import NDJSONDecoder, ServerSentEvent, SSEDecoder
from tailrace.wrappers.errors import (
    ConfigurationError,
    ProtocolError,
    StoreError,
    TailraceError,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers.messages import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.request_options import (
    OutputFormat,
    RequestOptions,
    ToolChoice,
    ToolDefinition,
)

__path__.extend([f"{folder}/deprecated" for folder in __path__])  # modules with deprecated names

__all__ = (
    "Change",
    "Channel",
    "ChunkDetails",
    "ChunkWrapper",
    "ConfigurationError",
    "ContentPart",
    "ContentPartData",
    "ContentPartFile",
    "ContentPartReasoning",
    "ContentPartText",
    "ContentPartToolCall",
    "ContentPartToolResult",
    "FinishMessage",
    "FinishReason",
    "History",
    "HistoryConverter",
    "Message",
    "MessageAssembly",
    "NDJSONDecoder",
    "OutputFormat",
    "ProtocolError",
    "RequestOptions",
    "Role",
    "SSEDecoder",
    "ServerSentEvent",
    "StoreError",
    "TailraceError",
    "ToolCallDelta",
    "ToolChoice",
    "ToolDefinition",
    "UpstreamError",
    "UpstreamFault",
    "Usage",
)

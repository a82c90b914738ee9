"""What a provider sends, in one vocabulary: wire decoders, chunk wrappers, messages and history converters."""

from tailrace.wrappers.assembly import Change, Channel, MessageAssembly
from tailrace.wrappers.chunks import (
    ChunkDetails,
    ChunkWrapper,
    FinishMessage,
    FinishReason,
    ToolCallDelta,
    Usage,
)
from tailrace.wrappers.errors import (
    ConfigurationError,
    ProtocolError,
    StoreError,
    TailraceError,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers.history import HistoryConverter
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
from tailrace.wrappers.options import OutputFormat, RequestOptions, ToolChoice, ToolDefinition
from tailrace.wrappers.wire import NDJSONDecoder, ServerSentEvent, SSEDecoder

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

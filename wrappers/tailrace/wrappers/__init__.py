"""Common interfaces of all providers: wire decoders, chunk wrappers, messages and history converters."""

from tailrace.wrappers.assembly.assembly import Change, Channel, MessageAssembly
from tailrace.wrappers.chunks import (
    ChunkDetails,
    ChunkWrapper,
    FinishMessage,
    FinishReason,
    ToolCallDelta,
    Usage,
)
from tailrace.wrappers.conversion.converter import HistoryConverter
from tailrace.wrappers.conversion.options import OutputFormat, RequestOptions, ToolChoice, ToolDefinition
from tailrace.wrappers.decoding.wire import NDJSONDecoder, ServerSentEvent, SSEDecoder
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

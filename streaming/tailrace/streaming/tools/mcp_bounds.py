"""Limits for MCP servers: sizes of messages and tool definitions, and numbers of requests and of resumed responses.

The official MCP SDK limits only the size of events. The SDK also validates results against the output schemas of the server. The
patterns of a schema may then block the event loop for a long time. This module therefore removes output schemas before the SDK
reads them, and validates results with `tailrace.streaming.schemas.structured_output`.

`MessageFilter` limits the requests of a server, because the SDK starts an asyncio task for each of them. If a server ends a
response early, the SDK resumes the response; `limited_resumptions` limits how often.
"""

import logging
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import httpx2
import msgspec
from mcp.shared.message import SessionMessage
from mcp.types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCRequest, JSONRPCResponse, Tool

from tailrace.streaming.schemas.schema_bounds import count_values
from tailrace.streaming.schemas.structured_output import OutputReader
from tailrace.streaming.tools.tools import ToolError
from tailrace.wrappers.concurrency.worker_thread import run_bounded
from tailrace.wrappers.request_options import OutputFormat

logger = logging.getLogger("tailrace.streaming.tools.mcp")

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Maximum size in bytes of one message of a server."""

MAX_VALUES = 50_000
"""Maximum number of JSON values in one message of a server."""

MAX_TOOLS_BYTES = 4 * 1024 * 1024
"""Maximum size in bytes of the definitions of all tools of a server, as JSON. Each request to the model contains them."""

MAX_REQUESTS = 16
"""Maximum number of requests of a server (for example pings) that have no response yet. Further requests are ignored."""

MAX_RESUMPTIONS = 100
"""Maximum number of times that the response to one call is resumed."""

_MAX_NAME = 200  # maximum number of characters of a tool's name in an error message
_SCHEMA_NAMES = ("outputSchema", "output_schema")


class BoundedBody(httpx2.AsyncByteStream):
    """The body of a response. Reading raises `httpx2.StreamError` if the body exceeds a maximum size in bytes."""

    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        async for data in self._stream:
            received += len(data)
            if received > self._max:
                raise httpx2.StreamError(f"the response is larger than {self._max} bytes")
            yield data

    async def aclose(self) -> None:
        """Close the body."""
        await self._stream.aclose()


class BoundedTools:
    """The tools of a server by name. Their total size is limited to `MAX_TOOLS_BYTES`."""

    def __init__(self) -> None:
        self.by_name: dict[str, dict[str, Any]] = {}
        self._bytes = 0

    def add(self, tool: Tool) -> None:
        """Add a tool.

        Raises:
            RuntimeError: The definitions of all tools are too large.
        """
        fields = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
        self._bytes += len(msgspec.json.encode(fields))
        if self._bytes > MAX_TOOLS_BYTES:
            raise RuntimeError(f"the definitions of its tools are larger than {MAX_TOOLS_BYTES} bytes")
        self.by_name[tool.name] = fields


class MessageFilter:
    """Filter for the messages of a server. It counts the server's requests that have no response.

    Attributes:
        output_schemas: The output schemas, which the filter removes from lists of tools.
    """

    def __init__(self) -> None:
        self.output_schemas = OutputSchemas()
        self._waiting = 0

    def accept(self, message: SessionMessage) -> SessionMessage | None:
        """Filter a message. Return None for notifications, and for requests above `MAX_REQUESTS`.

        A result with more than `MAX_VALUES` JSON values is replaced with an error. A request with more values loses its
        parameters.
        """
        content = message.message
        if isinstance(content, JSONRPCResponse):
            if count_values(content.result, MAX_VALUES) > MAX_VALUES:
                error = ErrorData(
                    code=INTERNAL_ERROR, message=f"its result has more than {MAX_VALUES} JSON values"
                )
                return SessionMessage(JSONRPCError(jsonrpc="2.0", id=content.id, error=error))
            self.output_schemas.extract_from(content)
        elif isinstance(content, JSONRPCRequest):
            if self._waiting >= MAX_REQUESTS:
                return None
            self._waiting += 1
            if count_values(content.params, MAX_VALUES) > MAX_VALUES:
                logger.warning("a request of an MCP server has more than %d JSON values", MAX_VALUES)
                return SessionMessage(content.model_copy(update={"params": None}))
        elif not isinstance(content, JSONRPCError):
            return None
        return message

    def end(self, message: SessionMessage) -> None:
        """Record that a message to the server was sent, or failed."""
        if isinstance(message.message, JSONRPCResponse | JSONRPCError):
            self._waiting -= 1


_RESUMPTIONS = ContextVar[list[None] | None]("tailrace_mcp_resumptions", default=None)


@contextmanager
def limited_resumptions() -> Generator[None]:
    """Allow at most `MAX_RESUMPTIONS` resumptions of the responses to messages that are created in the block."""
    token = _RESUMPTIONS.set([])
    try:
        yield
    finally:
        _RESUMPTIONS.reset(token)


def acquire_resumption() -> bool:
    """Return True if a response may be resumed. Count the resumption."""
    resumptions = _RESUMPTIONS.get()
    if resumptions is None or len(resumptions) >= MAX_RESUMPTIONS:
        return False
    resumptions.append(None)
    return True


class OutputSchemas:
    """The output schemas of a server's tools, for the validation of results."""

    def __init__(self) -> None:
        self._schemas: dict[str, dict[str, Any]] = {}
        self._readers: dict[str, OutputReader | None] = {}

    def extract_from(self, response: JSONRPCResponse) -> None:
        """Move the output schemas from a list of tools to this object."""
        tools = response.result.get("tools")
        for tool in cast("list[object]", tools) if isinstance(tools, list) else ():
            if not isinstance(tool, dict):
                continue
            fields = cast("dict[str, Any]", tool)
            schemas = [fields.pop(name) for name in _SCHEMA_NAMES if name in fields]
            name = fields.get("name")
            if schemas and isinstance(name, str):
                self._readers.pop(name, None)
                if isinstance(schemas[0], dict):
                    self._schemas[name] = schemas[0]

    async def check(self, name: str, result: Mapping[str, Any]) -> None:
        """Validate the structured content of a result (``CallToolResult``) against the output schema of its tool.

        Raises:
            ToolError: The structured content is missing, or does not match the output schema.
        """
        schema = self._schemas.get(name)
        if schema is None or result.get("isError"):
            return
        label = name[:_MAX_NAME]
        if "structuredContent" not in result:
            raise ToolError(
                f"the tool's server broke the protocol: tool {label} has an output schema, and returned no structured content"
            )
        if name not in self._readers:
            self._readers[name] = await run_bounded(count_values(schema), _reader, label, schema)
        reader = self._readers[name]
        if reader is None:
            return
        content = result["structuredContent"]
        try:
            await run_bounded(count_values(content), reader.validate, content)
        except ValueError as error:
            raise ToolError(
                f"the tool's server broke the protocol: Invalid structured content returned by tool {label}: {error}"
            ) from None


def _reader(name: str, schema: dict[str, Any]) -> OutputReader | None:
    try:
        return OutputReader.of_format(OutputFormat(schema_=schema))
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        logger.warning(
            "results of the MCP tool %r are not checked against its output schema: %s", name, reason
        )
        return None

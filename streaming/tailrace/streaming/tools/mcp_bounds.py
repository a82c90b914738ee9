"""Bounds of what an MCP server sends: bytes of a response, JSON values of a message, and checks by its output schemas.

The SDK bounds the events of a stream only. It checks results against the server's output schemas with a validator whose
patterns may take exponential time, in the event loop. Output schemas are therefore removed before the SDK sees them, and
checked here by `tailrace.streaming.schemas.output`, which matches patterns in linear time and refuses large schemas.
"""

import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import httpx2
from mcp.shared.message import SessionMessage
from mcp.types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCRequest, JSONRPCResponse

from tailrace.streaming.schemas.output import OutputReader
from tailrace.streaming.schemas.schema_bounds import count_values
from tailrace.streaming.tools.tools import ToolError
from tailrace.wrappers.concurrency.worker_thread import run_bounded
from tailrace.wrappers.conversion.options import OutputFormat

logger = logging.getLogger("tailrace.streaming.tools.mcp")

MAX_VALUES = 50_000
"""Maximum JSON values of one message of a server: a result, a page of tools."""

_MAX_NAME = 200  # characters of a tool's name in a message
_SCHEMA_NAMES = ("outputSchema", "output_schema")


class BoundedBody(httpx2.AsyncByteStream):
    """The body of a response, with an error when it exceeds a size.

    Args:
        stream: The body.
        max_bytes: The maximum size.
    """

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


def bounded_message(message: SessionMessage) -> SessionMessage:
    """Return a message of a server; an error in place of a result with more than `MAX_VALUES` JSON values.

    A notification or a request that is too large is returned without its parameters.
    """
    content = message.message
    if isinstance(content, JSONRPCResponse):
        if count_values(content.result, MAX_VALUES) > MAX_VALUES:
            error = ErrorData(
                code=INTERNAL_ERROR, message=f"its result has more than {MAX_VALUES} JSON values"
            )
            return SessionMessage(JSONRPCError(jsonrpc="2.0", id=content.id, error=error))
    elif not isinstance(content, JSONRPCError) and count_values(content.params, MAX_VALUES) > MAX_VALUES:
        kind = "request" if isinstance(content, JSONRPCRequest) else "notification"
        logger.warning("a %s of an MCP server has more than %d JSON values", kind, MAX_VALUES)
        return SessionMessage(content.model_copy(update={"params": None}))
    return message


class OutputSchemas:
    """The output schemas of a server's tools, which check results."""

    def __init__(self) -> None:
        self._schemas: dict[str, dict[str, Any]] = {}
        self._readers: dict[str, OutputReader | None] = {}

    def take(self, message: SessionMessage) -> None:
        """Move the output schemas in a list of tools from a message to this object."""
        content = message.message
        tools = content.result.get("tools") if isinstance(content, JSONRPCResponse) else None
        for tool in cast("list[object]", tools) if isinstance(tools, list) else ():
            if not isinstance(tool, dict):
                continue
            fields = cast("dict[str, Any]", tool)
            found = [fields.pop(name) for name in _SCHEMA_NAMES if name in fields]
            name = fields.get("name")
            if found and isinstance(name, str):
                self._readers.pop(name, None)
                if isinstance(found[0], dict):
                    self._schemas[name] = found[0]

    async def check(self, name: str, result: Mapping[str, Any]) -> None:
        """Check the structured content of a result.

        Args:
            name: The tool.
            result: A ``CallToolResult``, as JSON.

        Raises:
            ToolError: It is missing, or does not fit the tool's output schema.
        """
        schema = self._schemas.get(name)
        if schema is None or result.get("isError"):
            return
        shown = name[:_MAX_NAME]
        if "structuredContent" not in result:
            raise ToolError(
                f"the tool's server broke the protocol: tool {shown} has an output schema, and returned no structured content"
            )
        if name not in self._readers:
            self._readers[name] = await run_bounded(count_values(schema), _reader, shown, schema)
        reader = self._readers[name]
        if reader is None:
            return
        content = result["structuredContent"]
        try:
            await run_bounded(count_values(content), reader.validate, content)
        except ValueError as error:
            raise ToolError(
                f"the tool's server broke the protocol: Invalid structured content returned by tool {shown}: {error}"
            ) from None


def _reader(name: str, schema: dict[str, Any]) -> OutputReader | None:
    """Create a reader for an output schema; log a warning and return None for one that cannot be checked."""
    try:
        return OutputReader.of_format(OutputFormat(schema_=schema))
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        logger.warning(
            "results of the MCP tool %r are not checked against its output schema: %s", name, reason
        )
        return None

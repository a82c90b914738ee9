"""The transport to an MCP server that is a program. Each message is a line of its standard input or output.

The transport of the official MCP SDK has no limits, for example for the length of a line. It is used only on Windows, where
asyncio cannot wait for pipes.
"""

import logging
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, cast

import anyio
import anyio.abc
import anyio.lowlevel
import mcp.client.stdio
import pydantic
from mcp import MCPError
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from tailrace.streaming.tools.mcp_bounds import MAX_MESSAGE_BYTES, MessageFilter
from tailrace.streaming.tools.mcp_servers import StdioServer
from tailrace.streaming.tools.mcp_streams import Streams, limited_streams
from tailrace.wrappers import ConfigurationError, TailraceError, UpstreamError
from tailrace.wrappers.concurrency.worker_thread import json_text_cost, run_bounded
from tailrace.wrappers.decoding.framing import NDJSONDecoder
from tailrace.wrappers.redaction.log_escaping import printable

logger = logging.getLogger("tailrace.streaming.tools.mcp")

MAX_LINE_BYTES = 8 * 1024
"""Maximum size in bytes of one log entry with standard error of a program."""

_READ_BYTES = 64 * 1024
_EXIT_TIME = (
    2.0  # seconds until a program must exit, after its standard input was closed and after each signal
)
# Maximum seconds to wait for the last log entries: another process may hold the standard error open.
_DRAINING_TIME = 0.5
_parse = partial(jsonrpc_message_adapter.validate_json, by_name=False)


class StdioTransport:
    """Runs the program of a server, and logs its standard error.

    Args:
        server: The program.
        message_filter: The filter for the messages of the server.
        end_event: An `anyio.Event` that is set when the program no longer receives or sends messages.
    """

    def __init__(self, server: StdioServer, message_filter: MessageFilter, end_event: anyio.Event) -> None:
        self._server = server
        self._message_filter = message_filter
        self._end_event = end_event
        self._last_output = deque[str](maxlen=1)

    def failure(self, error: Exception | None) -> TailraceError | None:
        """Return the error of a failed start; None if the program did not cause the failure."""
        reason = ""
        if isinstance(error, OSError | ValueError) and not isinstance(error, pydantic.ValidationError):
            reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        elif self._end_event.is_set() and isinstance(error, MCPError):
            reason = f"the program exited at once; its last output: {' '.join(self._last_output) or 'none'}"
        return (
            ConfigurationError(f"the MCP server {self._server} cannot be started: {reason}")
            if reason
            else None
        )

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[Streams]:
        """Run the program during the block. Afterwards, end the program and its child processes within a few seconds."""
        async with self._windows_streams() if sys.platform == "win32" else self._posix_streams() as streams:
            yield limited_streams(*streams, self._message_filter, self._end_event)

    @asynccontextmanager
    async def _windows_streams(self) -> AsyncGenerator[tuple[Any, Any]]:
        parameters = mcp.client.stdio.StdioServerParameters(
            command=self._server.command,
            args=list(self._server.arguments),
            env=dict(self._server.env),
            cwd=self._server.cwd,
        )
        with open(os.devnull, "wb") as null_device:  # noqa: ASYNC230
            async with mcp.client.stdio.stdio_client(parameters, cast("Any", null_device)) as streams:
                yield streams

    @asynccontextmanager
    async def _posix_streams(self) -> AsyncGenerator[tuple[Any, Any]]:
        # These pipes can be closed even if another process holds the other end open.
        with _pipe() as (output, program_output), _pipe() as (errors, program_errors):
            try:
                process = await anyio.open_process(
                    [self._server.command, *self._server.arguments],
                    env=mcp.client.stdio.get_default_environment() | dict(self._server.env),
                    cwd=self._server.cwd,
                    stdout=program_output,
                    stderr=program_errors,
                    start_new_session=True,
                )
            finally:
                os.close(program_output)
                os.close(program_errors)
            log_ended = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(self._log_errors, errors, log_ended)
                try:
                    yield (
                        _Output(self._server, output),
                        _Input(cast("anyio.abc.ByteSendStream", process.stdin)),
                    )
                finally:
                    with anyio.CancelScope(shield=True):
                        # A program that waits until its output is read does not notice the end of its input.
                        group.start_soon(_discard, output)
                        await _end(process)
                        with anyio.move_on_after(_DRAINING_TIME):
                            await log_ended.wait()
                    group.cancel_scope.cancel()

    async def _log_errors(self, readable: int, log_ended: anyio.Event) -> None:
        rest = b""
        while True:
            await anyio.wait_readable(readable)
            read = os.read(readable, MAX_LINE_BYTES)
            *lines, rest = (rest + read).split(b"\n")
            if len(rest) > MAX_LINE_BYTES or not read:
                lines, rest = [*lines, rest], b""
            for line in lines:
                text = line.decode("utf-8", "replace").strip()
                if text:
                    self._last_output.append(text)
                    logger.debug("%s: %s", self._server, text)
            if not read:
                log_ended.set()
                return


class _Output:
    """The messages that a program writes. Invalid lines are skipped, and the first invalid line is logged."""

    def __init__(self, server: StdioServer, readable: int) -> None:
        self._server = server
        self._readable = readable
        self._decoder = NDJSONDecoder(max_line_bytes=MAX_MESSAGE_BYTES)
        self._lines = deque[bytes]()
        self._at_end = False
        self._skipped = False

    async def receive(self) -> SessionMessage:
        """Return the next message. Raise `anyio.EndOfStream` at the end of the output, or at a line that is too large."""
        while True:
            await anyio.lowlevel.checkpoint()  # the program may write without end
            while not self._lines:
                await self._read()
            line = self._lines.popleft()
            try:
                return SessionMessage(await run_bounded(json_text_cost(line), _parse, line))
            except ValueError:
                if not self._skipped:
                    self._skipped = True
                    excerpt = printable(line[:MAX_LINE_BYTES].decode("utf-8", "replace"), 200)
                    logger.warning(
                        "the MCP server %s wrote a line that is no message: %s", self._server, excerpt
                    )

    async def _read(self) -> None:
        if self._at_end:
            raise anyio.EndOfStream
        await anyio.wait_readable(self._readable)
        data = os.read(self._readable, _READ_BYTES)
        self._at_end = not data
        try:
            self._lines.extend(self._decoder.feed(data) if data else self._decoder.close())
        except UpstreamError:
            self._at_end = True
            logger.warning(
                "the MCP server %s wrote a line that is larger than %d bytes", self._server, MAX_MESSAGE_BYTES
            )

    async def aclose(self) -> None:
        self._at_end = True
        self._lines.clear()


class _Input:
    """The messages that a program reads."""

    def __init__(self, stdin: anyio.abc.ByteSendStream) -> None:
        self._stdin = stdin
        self._lock = anyio.Lock()

    async def send(self, item: SessionMessage) -> None:
        """Send a message. Raise `anyio.BrokenResourceError` or `anyio.ClosedResourceError` if the input is closed."""
        async with self._lock:
            # Wait until the previous message has been written: the program may not read.
            await self._stdin.send(b"")
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            await self._stdin.send(text.encode() + b"\n")

    async def aclose(self) -> None:
        await self._stdin.aclose()


@contextmanager
def _pipe() -> Generator[tuple[int, int]]:
    """Open a pipe. Close its readable end after the block."""
    readable, writable = os.pipe()
    try:
        yield readable, writable
    finally:
        os.close(readable)


async def _discard(readable: int) -> None:
    while True:
        await anyio.wait_readable(readable)
        if not os.read(readable, _READ_BYTES):
            return


async def _end(process: anyio.abc.Process) -> None:
    """End a program as the specification requires: close its input, wait, then signal it and its child processes.

    See https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown.
    """
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await cast("anyio.abc.ByteSendStream", process.stdin).aclose()
    if await _has_exited(process):
        return
    await terminate_posix_process_tree(process, _EXIT_TIME)
    if not await _has_exited(process):
        logger.warning("the MCP server's process %d is still alive after SIGKILL", process.pid)


async def _has_exited(process: anyio.abc.Process) -> bool:
    with anyio.move_on_after(_EXIT_TIME):
        await process.wait()
    return process.returncode is not None

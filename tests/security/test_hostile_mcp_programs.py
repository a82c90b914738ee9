"""A hostile MCP server that is a program fails its own calls; it does not block the event loop, exhaust memory, or fill the log."""

import asyncio
import gc
import json
import logging
import os
import subprocess
import sys
from typing import Any

import anyio
import psutil
import pytest

from support.loop_lag import LoopLag
from support.processes import tailrace
from tailrace.streaming.tools.mcp import McpToolset
from tailrace.streaming.tools.mcp_bounds import MAX_MESSAGE_BYTES, MAX_REQUESTS
from tailrace.streaming.tools.tools import ToolContext, ToolError
from tailrace.wrappers import ConfigurationError, ContentPartToolCall, ContentPartToolResult, UpstreamError

CONTEXT = ToolContext(ContentPartToolCall(id="c", name="t", arguments={}))

PROGRAM = """
import json, os, signal, sys, time

def send(**fields):
    print(json.dumps({"jsonrpc": "2.0", **fields}), flush=True)

def answer(request_id):
    send(id=request_id, result={"content": [{"type": "text", "text": "done"}]})

def call(request_id):
    answer(request_id)

name, schema = "t", {"type": "object"}
exec(sys.argv[1])
for line in sys.stdin:
    request = json.loads(line)
    if request.get("method") == "initialize":
        info = {"name": "hostile", "version": "1"}
        send(id=request["id"], result={"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info})
    elif request.get("method") == "tools/list":
        send(id=request["id"], result={"tools": [{"name": name, "description": "d", "inputSchema": schema}]})
    elif request.get("method") == "tools/call":
        call(request["id"])
    elif "id" in request and "method" in request:
        send(id=request["id"], error={"code": -32601, "message": "no such method"})
"""


def program(script: str, **options: Any) -> McpToolset:
    """Run a server with one tool; the script replaces parts of it."""
    return McpToolset.stdio(sys.executable, "-c", PROGRAM, script, **options)


async def output_of(script: str) -> object:
    """Call the tool of a hostile server; return its output. The event loop must not be blocked."""
    async with program(script).connected() as tools:
        async with LoopLag() as lag:
            result = await tools[0].call({}, CONTEXT)
    assert isinstance(result, ContentPartToolResult)
    assert lag.worst_cpu < 0.5
    return result.output


async def test_a_line_that_never_ends_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    """A line of 300 MB took half a minute and all of its size in memory."""
    script = """
def call(request_id):
    sys.stdout.write('{"jsonrpc": "2.0", "method": "')
    while True:
        sys.stdout.write("x" * 1_000_000)
"""
    before = psutil.Process().memory_info().rss
    async with program(script).connected() as tools:
        async with LoopLag() as lag:
            for _ in range(2):  # the next call starts the program again
                with pytest.raises(ToolError, match="lost in the middle of the call"):
                    await tools[0].call({}, CONTEXT)
    assert lag.worst_cpu < 0.5
    assert psutil.Process().memory_info().rss - before < 8 * MAX_MESSAGE_BYTES
    assert f"wrote a line that is larger than {MAX_MESSAGE_BYTES} bytes" in caplog.text


async def test_a_line_that_never_ends_is_not_read_at_the_start() -> None:
    endless = "import sys\nwhile True: sys.stdout.write('x' * 1_000_000)"
    with pytest.raises((ConfigurationError, UpstreamError)):
        async with McpToolset.stdio(sys.executable, "-c", endless).connected():
            raise AssertionError


NOISE = {
    "text": '"starting …\\n"',
    "empty lines": '"\\n"',
    "no JSON-RPC": '"{}\\n"',
    "control characters": '"\\x1b[2J\\x00\\r\\n"',
    "notifications": "json.dumps({'jsonrpc': '2.0', 'method': 'notifications/message', 'params': {'data': 'x'}}) + '\\n'",
}


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
async def test_what_is_no_message_is_skipped_and_logged_once(
    noise: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A traceback for each line filled the log with 3 MB a second."""
    script = f"""
def call(request_id):
    sys.stdout.write({noise} * 50_000)
    answer(request_id)
"""
    with caplog.at_level(logging.INFO):
        assert await output_of(script) == "done"
    assert len(caplog.records) <= 1
    assert all(record.getMessage().isprintable() for record in caplog.records)


async def test_output_that_is_not_utf_8_is_skipped() -> None:
    """The connection stopped, and each call waited for its timeout."""
    script = """
def call(request_id):
    sys.stdout.buffer.write(b'\\xff\\xfe{"jsonrpc": "2.0"}\\n')
    sys.stdout.buffer.flush()
    answer(request_id)
"""
    assert await output_of(script) == "done"


async def test_responses_to_requests_that_nothing_sent_are_ignored() -> None:
    script = """
def call(request_id):
    for other in (-1, 10**6, 10**400, "x", None, True, 1.5, [], {}):
        answer(other)
    print(json.dumps({"jsonrpc": "2.0", "id": request_id}), flush=True)
    answer(request_id)
    send(id=request_id, error={"code": 1, "message": "again"})
"""
    assert await output_of(script) == "done"


async def test_the_response_to_another_call_ends_no_call_twice() -> None:
    script = """
waiting = []
def call(request_id):
    waiting.append(request_id)
    if len(waiting) == 2:
        for each in (waiting[1], waiting[1], waiting[0], waiting[0]):
            send(id=each, result={"content": [{"type": "text", "text": str(waiting.index(each))}]})
"""
    outputs: list[object] = []
    async with program(script).connected() as tools, anyio.create_task_group() as group:

        async def call() -> None:
            result = await tools[0].call({}, CONTEXT)
            assert isinstance(result, ContentPartToolResult)
            outputs.append(result.output)

        group.start_soon(call)
        group.start_soon(call)
    assert sorted(map(str, outputs)) == ["0", "1"]


async def test_requests_of_a_program_that_wait_are_limited() -> None:
    script = """
def call(request_id):
    for number in range(20_000):
        send(id=number, method="ping")
    answer(request_id)
"""
    async with program(script).connected() as tools:
        before, most = len(asyncio.all_tasks()), 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, len(asyncio.all_tasks()))
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await tools[0].call({}, CONTEXT)
            group.cancel_scope.cancel()
    assert most - before < 2 * MAX_REQUESTS


async def test_a_program_that_does_not_read_gets_no_unlimited_input() -> None:
    script = """
schema = {"type": "object", "description": str(os.getpid())}
def call(request_id):
    answer(request_id)
    while True:
        signal.pause()
"""
    arguments = {"a": "x" * 4_000_000}
    async with program(script).connected() as tools:
        await tools[0].call({}, CONTEXT)
        before = psutil.Process().memory_info().rss
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(tools[0].call, arguments, CONTEXT)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        assert psutil.Process().memory_info().rss - before < 40_000_000
        pid = int(tools[0].definition.parameters["description"])
    assert not psutil.pid_exists(pid)


async def test_a_program_that_ignores_signals_is_ended_with_its_children() -> None:
    script = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    while True:
        signal.pause()
schema = {"type": "object", "description": f"{os.getpid()} {child}"}
def call(request_id):
    answer(request_id)
    while True:
        sys.stdout.write("x")
"""
    async with program(script).connected() as tools:
        await tools[0].call({}, CONTEXT)
        processes = [
            psutil.Process(int(pid)) for pid in tools[0].definition.parameters["description"].split()
        ]
    _, alive = psutil.wait_procs(processes, timeout=30)
    # A process that nothing has waited for yet is over, too.
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


async def test_a_process_that_leaves_its_group_delays_no_end() -> None:
    """A child in a session of its own keeps the pipes of the program open."""
    script = """
child = os.fork()
if child == 0:
    os.setsid()
    while True:
        signal.pause()
schema = {"type": "object", "description": str(child)}
"""
    async with program(script).connected() as tools:
        await tools[0].call({}, CONTEXT)
        child = int(tools[0].definition.parameters["description"])
    os.kill(child, 9)


SCHEMAS = {
    "deep": "for _ in range(60): schema = {'type': 'object', 'properties': {'a': schema}}",
    "too many values": "schema = {'type': 'object', 'enum': [[]] * 60_000}",
    "too large": "schema = {'type': 'object', 'description': 'x' * 5_000_000}",
    "no object": "schema = [1]",
    "a name that is no text": "name = {'a': 1}",
    "an empty name": "name = ''",
}


@pytest.mark.parametrize("script", SCHEMAS.values(), ids=SCHEMAS)
async def test_a_tool_that_cannot_be_described_is_an_error_of_its_server(script: str) -> None:
    gc.collect()  # garbage of the tests before would be collected during the measurement
    async with LoopLag() as lag:
        with pytest.raises(UpstreamError):
            async with program(script).connected():
                raise AssertionError
    assert lag.worst_cpu < 0.5


async def test_references_and_patterns_of_a_schema_are_not_resolved() -> None:
    script = """
schema = {"type": "object", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}] * 2}}, "properties": {"b": {"$ref": "#/$defs/a"},
          "c": {"$ref": "http://127.0.0.1:9/"}, "d": {"pattern": "^(a+)+$"}}}
"""
    async with program(script).connected() as tools:
        result = await tools[0].call({"b": 1, "c": 1, "d": "a" * 40 + "!"}, CONTEXT)
    assert isinstance(result, ContentPartToolResult)
    assert result.output == "done"


async def test_a_name_with_control_characters_is_escaped_in_errors() -> None:
    script = "name = 'a\\nforged\\x1b[2J\\u202e'"
    async with program(script).connected() as tools:
        assert tools[0].definition.name == "a\nforged\x1b[2J\u202e"
    with pytest.raises(ConfigurationError) as caught:
        async with program(script, include=["b"]).connected():
            raise AssertionError
    assert str(caught.value).endswith(r"it has: 'a\nforged\x1b[2J\u202e'")


def test_a_program_does_not_control_the_terminal_at_startup() -> None:
    """The last line of its standard error is part of the error that ends `tailrace serve`."""
    script = "import sys; sys.exit('\\x1b]0;owned\\x07\\x1b[2Jlast')"
    command = ["serve", "--model", "openai:m", "--port", "0", "--store", "sqlite://"]
    tool = f"mcp:{sys.executable} -c {json.dumps(script)}"
    environment = {**os.environ, "OPENAI_API_KEY": "k"}
    done = subprocess.run(
        tailrace(*command, "--tools", tool), capture_output=True, check=False, env=environment
    )
    assert done.returncode == 2, done
    assert b"\\x1b]0;owned\\x07" in done.stderr
    assert b"\x1b" not in done.stderr

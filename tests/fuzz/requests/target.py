"""A running server for the fuzzer, with its model and measurements."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import psutil

from fuzz.requests.calls import (
    CALLERS,
    COMPLETED,
    COMPLETION,
    CONFIG,
    CONTEXT,
    HOOK,
    PAGE_TOKEN,
    RESPONSE,
    WAITING,
    Call,
)
from support.upstream import Received, ScriptedUpstream, Step, openai_chunk, openai_stream, sse
from tailrace.server.settings import ENDPOINTS

MOST_GROWTH = 50 * 1024 * 1024
"""Bytes of resident memory."""

SETTLING = 5.0
"""Seconds for a server to return the memory that a large call freed."""

PATIENCE = 20.0
"""Seconds for a response to begin; a slower server counts as hung."""

LARGE = 20_000
"""The size of a body in bytes from which a call gets a separate conversation."""

LAST_CONTEXT = "%LAST-CONTEXT%"

_FILLING = 4_000_000  # bytes of a message that fills a conversation
_IDLE = 1.5  # seconds without an event, after which the stream is closed
MAX_RESPONSE = 64 * 1024 * 1024
"""The number of bytes read of a response."""


@dataclass
class Answer:
    """The result of a call.

    Attributes:
        status: The HTTP status, or the number of the gRPC status; 0 if the connection was closed without one.
        media_type: The media type of the response.
        body: The response without HTTP framing.
        lag: The worst lag of the event loop during the call, in seconds of CPU time of the server.
        wall: As `lag`, by the clock.
        own: The CPU time of the event loop's own thread in `lag`; for the rest, other threads held the interpreter's lock.
        hold: The longest time for which that lock was held, in seconds.
        stacks: The stacks of threads while the event loop lagged.
        rss_before: Resident memory of the server before the call, in bytes.
        rss: As `rss_before`, after it.
        log: The server's log records at level error, and tracebacks.
        hung: Whether there was no response within `PATIENCE`.
    """

    status: int = 0
    media_type: str = ""
    body: bytes = b""
    lag: float = 0.0
    wall: float = 0.0
    own: float = 0.0
    hold: float = 0.0
    stacks: list[str] = field(default_factory=list[str])
    rss_before: int = 0
    rss: int = 0
    log: str = ""
    hung: bool = False


@dataclass
class Target:
    """A running server.

    Attributes:
        port: The HTTP port.
        process: The server's process.
        log: The server's log file.
        values: The replacements of placeholders.
    """

    port: int
    process: psutil.Process
    log: Path
    channel: grpc.aio.Channel
    values: dict[str, str] = field(default_factory=dict[str, str])
    _read: int = 0
    _contexts: int = 0

    @property
    def rss(self) -> int:
        """The server's resident memory in bytes."""
        return self.process.memory_info().rss

    async def call(self, call: Call) -> Answer:
        """Send a call and measure its effect on the server."""
        if len(call.body) > LARGE:
            # The conversation's messages are sent to the model with each later one, so other calls use another conversation.
            self.values[LAST_CONTEXT] = context = self._new_context()
            call = call.with_values({**self.values, CONTEXT: context})
        else:
            call = call.with_values(self.values)
        answer = Answer(rss_before=self.rss)
        try:
            with anyio.fail_after(PATIENCE):
                await self.state()  # discard earlier measurements
                await (self._grpc(call, answer) if call.is_grpc else self._http(call, answer))
                state = await self.state()
        except TimeoutError:
            answer.hung, answer.lag = True, PATIENCE
        else:
            answer.lag, answer.wall, answer.own = state["lag"], state["wall"], state["own"]
            answer.hold, answer.stacks = state["hold"], state["stacks"]
        answer.rss = await self._settled_rss(answer.rss_before)
        answer.log = self._errors()
        return answer

    async def _settled_rss(self, before: int) -> int:
        """The resident memory after the server has returned the memory that a large call freed, or after `SETTLING` seconds."""
        with anyio.move_on_after(SETTLING):
            while self.rss - before > MOST_GROWTH:  # noqa: ASYNC110 — the server is another process
                await anyio.sleep(0.1)
        return self.rss

    async def state(self, *, trim: bool = False) -> dict[str, Any]:
        """The output of the monitor: see `fuzz.requests.monitored_server`."""
        answer = Answer()
        await self._http(Call("GET", "/-/state", [("trim", "")] if trim else []), answer)
        return json.loads(answer.body)

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of the response to a successful call by alice."""
        headers = [("X-API-Key", CALLERS["alice"]), ("Content-Type", "application/json")]
        path, _, query = path.partition("?")
        pairs = [
            (name, value) for name, _, value in (each.partition("=") for each in query.split("&") if each)
        ]
        answer = Answer()
        data = b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
        await self._http(Call(method, path, pairs, headers, data), answer)
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.body[:500]!r}")
        return json.loads(answer.body)

    async def prepare(self) -> None:
        """Create the tasks for the placeholders of calls in a new conversation."""
        context = self._new_context()
        part: dict[str, Any] = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
        body = {"message": {**part, "contextId": context}}
        await self.ask("POST", "/message:send", body)  # otherwise there is no second page
        sent = await self.ask("POST", "/message:send", body)
        completed: str = sent["task"]["id"]
        tool = {"name": "locate", "parameters": {"type": "object"}}
        facts = {"urn:tailrace:ext:stream:v1": {"tools": [tool], "toolChoice": {"mode": "required"}}}
        sent = await self.ask("POST", "/message:send", {"message": part, "metadata": facts})
        page = await self.ask("GET", f"/tasks?pageSize=1&contextId={context}&status=TASK_STATE_COMPLETED")
        config = {"id": CONFIG, "url": HOOK}
        await self.ask("POST", f"/tasks/{completed}/pushNotificationConfigs", config)
        response = await self.ask("POST", "/v1/responses", {"input": "hello"})
        chat = {"messages": [{"role": "user", "content": "hello"}], "store": True}
        completion = await self.ask("POST", "/v1/chat/completions", chat)
        self.values = {
            CONTEXT: context,
            COMPLETED: completed,
            WAITING: sent["task"]["id"],
            PAGE_TOKEN: page["nextPageToken"],
            RESPONSE: response["id"],
            COMPLETION: completion["id"],
        }

    async def fill_conversation(self, size: int) -> None:
        """Send messages of a new conversation, of so many bytes together; `follow_up` continues it."""
        self.values[LAST_CONTEXT] = context = self._new_context()
        text = "aé漢😀\n" * (_FILLING // 11)
        message = {"messageId": "m", "role": "ROLE_USER", "contextId": context, "parts": [{"text": text}]}
        for _ in range(size // _FILLING + 1):
            await self.ask(
                "POST", "/message:send", {"message": message, "configuration": {"historyLength": 0}}
            )

    def follow_up(self) -> Call:
        """Send a short message in the conversation of the last large call."""
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "and now?"}]}
        body = {"message": {**message, "contextId": self.values[LAST_CONTEXT]}}
        headers = [("X-API-Key", CALLERS["alice"]), ("Content-Type", "application/json")]
        return Call("POST", "/message:send", [], headers, json.dumps(body).encode())

    def _new_context(self) -> str:
        self._contexts += 1
        return f"{CONTEXT[:-6]}{self._contexts:06d}"

    async def open_streams(self) -> float:
        """The number of streams, tasks and model calls that the server counts as open."""
        headers = [("X-API-Key", CALLERS["alice"])]
        answer = Answer()
        await self._http(Call("GET", "/metrics", [], headers), answer)
        names = rb"^tailrace_(?:streams_open|tasks_running|upstream_calls_running) (\S+)$"
        return sum(float(value) for value in re.findall(names, answer.body, re.MULTILINE))

    def _errors(self) -> str:
        """New log records that indicate a fault."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            new = log.read().decode("utf-8", "replace")
        self._read += len(new.encode())
        lines = new.splitlines()
        if "Traceback (most recent call last)" in new:
            return new[-6000:]
        return "\n".join(
            line for line in lines if re.search(r'"level": "(error|critical)"|^ERROR|^CRITICAL', line)
        )

    async def _http(self, call: Call, answer: Answer) -> None:
        query = "&".join(f"{name}={value}" if value else name for name, value in call.query)
        target = call.path + (f"?{query}" if query else "")
        headers = [("Host", f"127.0.0.1:{self.port}"), ("Connection", "close"), *call.headers]
        if call.body or call.method in ("POST", "PUT", "PATCH"):
            headers.append(("Content-Length", str(len(call.body))))
        lines = [f"{call.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
        head = "\r\n".join(lines).encode("utf-8", "surrogateescape")
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_send, writer, head + call.body)
                await _receive(reader, answer)
                tasks.cancel_scope.cancel()
        finally:
            writer.transport.abort()

    async def _grpc(self, call: Call, answer: Answer) -> None:
        metadata: Any = [(name.lower(), value) for name, value in call.headers if _is_metadata(name, value)]
        pieces: list[bytes] = []
        channel: Any = self.channel
        try:
            if call.streams:
                with anyio.move_on_after(_IDLE) as scope:
                    responses: AsyncIterator[bytes] = channel.unary_stream(call.method)(
                        call.body, metadata=metadata
                    )
                    async for piece in responses:
                        pieces.append(piece)
                        scope.deadline = anyio.current_time() + _IDLE
            else:
                pieces.append(await channel.unary_unary(call.method)(call.body, metadata=metadata))
        except grpc.aio.AioRpcError as error:
            answer.status = error.code().value[0]
            answer.body = str(error.details()).encode("utf-8", "replace")
        except (ValueError, TypeError, grpc.aio.UsageError):
            answer.status = -1  # the client rejects the metadata
        else:
            answer.body = b"".join(pieces)


def _is_metadata(name: str, value: str) -> bool:
    return (
        value.isascii() and value.isprintable() and name.lower() not in ("expect", "content-encoding", "via")
    )


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    with suppress(ConnectionError):
        writer.write(data)
        await writer.drain()


async def _receive(reader: asyncio.StreamReader, answer: Answer) -> None:
    """Read a response to its end, or a stream until it pauses."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
        return
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    answer.status = int(status.split(" ")[1])
    answer.media_type = headers.get("content-type", "").partition(";")[0].strip()
    is_stream = answer.media_type == "text/event-stream"
    body = bytearray()
    while len(body) < MAX_RESPONSE:
        piece = b""
        with anyio.move_on_after(_IDLE if is_stream else PATIENCE) as scope, suppress(ConnectionError):
            piece = await reader.read(1 << 20)
        if not piece or scope.cancelled_caught:
            break
        body += piece
    answer.body = _unchunked(bytes(body)) if headers.get("transfer-encoding") == "chunked" else bytes(body)


def _unchunked(body: bytes) -> bytes:
    pieces: list[bytes] = []
    at = 0
    while (end := body.find(b"\r\n", at)) >= 0:
        size = int(body[at:end] or b"0", 16)
        if not size:
            break
        pieces.append(body[end + 2 : end + 2 + size])
        at = end + 4 + size
    return b"".join(pieces)


def model_script(request: Received) -> Sequence[Step]:
    """The model's response: a call of the first tool if the caller requires one, else a short text."""
    try:
        fields: dict[str, Any] = json.loads(request.body)
    except ValueError:
        fields = {}
    tools: list[dict[str, Any]] = fields.get("tools") or []
    if tools and fields.get("tool_choice") not in (None, "auto", "none"):
        function = {"name": tools[0].get("function", {}).get("name", "x"), "arguments": '{"name": "x"}'}
        call = {"index": 0, "id": "call-1", "type": "function", "function": function}
        chunks = [
            openai_chunk({"role": "assistant", "tool_calls": [call]}),
            openai_chunk({}, finish="tool_calls"),
        ]
        return [*(sse(chunk) for chunk in chunks), sse("[DONE]")]
    text = ['{"name"', ': "abc"}'] if fields.get("response_format") else ["Hello", " there", " 😀"]
    return openai_stream(text, usage={"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6})


@asynccontextmanager
async def running_model() -> AsyncGenerator[ScriptedUpstream]:
    """Run the model while the block runs."""
    async with ScriptedUpstream(model_script) as upstream:
        yield upstream


@asynccontextmanager
async def running_target(folder: Path, model_url: str, **settings: str) -> AsyncGenerator[Target]:
    """Run a prepared server in a separate process while the block runs.

    Args:
        folder: The folder of its database and log.
        model_url: The address of the model's API.
        settings: Further ``TAILRACE_…`` variables.
    """
    with _process(folder, model_url, settings) as (process, log):
        port, grpc_port = await _ports(process, log)
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{grpc_port}", options=[("grpc.max_send_message_length", -1)]
        ) as channel:
            target = Target(port, psutil.Process(process.pid), log, channel)
            await target.prepare()
            yield target


@contextmanager
def _process(
    folder: Path, model_url: str, settings: Mapping[str, str]
) -> "Generator[tuple[subprocess.Popen[bytes], Path]]":
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    keys = ",".join(f"{name}:{key}" for name, key in CALLERS.items())
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")},
        "TAILRACE_MODEL": "openai:scripted",
        "TAILRACE_BASE_URL": model_url,
        "TAILRACE_API_KEY": "none",
        "TAILRACE_STORE": f"sqlite:///{folder}/tasks.db",
        "TAILRACE_PORT": "0",
        "TAILRACE_GRPC_PORT": "0",
        "TAILRACE_CALLER_KEYS": keys,
        "TAILRACE_ENDPOINTS": ",".join(ENDPOINTS),
        "TAILRACE_PUSH_NOTIFICATIONS": "private",
        "TAILRACE_BOUNDS": '{"push_attempts": 1}',
        "TAILRACE_SHUTDOWN_GRACE": "0",
        "TAILRACE_LOG_FORMAT": "json",
        "PYTHONPATH": os.pathsep.join(sys.path),
        **settings,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "fuzz.requests.monitored_server"],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()


async def _ports(process: "subprocess.Popen[bytes]", log: Path) -> tuple[int, int]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        text = await anyio.Path(log).read_text()
        http = re.search(r"serving: .*?\bhttp://[\d.]+:(\d+)/", text)
        other = re.search(r"gRPC on [\d.]+:(\d+)", text)
        if http and other:
            return int(http[1]), int(other[1])
        if process.poll() is not None:
            break
        await anyio.sleep(0.02)  # its log is the only observable state
    raise RuntimeError(f"the server did not start: {await anyio.Path(log).read_text()}")

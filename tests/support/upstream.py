"""A scripted upstream: a real HTTP/1.1 server that plays the responses of a test.

::

    go_on = anyio.Event()
    async with ScriptedUpstream([*openai_stream(["Hel", "lo"], finish=None), Wait(go_on), Reset()]) as upstream:
        client = openai.AsyncOpenAI(base_url=upstream.base_url, api_key="none")
        ...                                     # the client has read "Hello" and waits for more
        go_on.set()                             # now its connection is reset
    request = await upstream.received()     # the client's request: request.json, request.headers

A script is a list of steps, played in order:

===================  ==================================================================================
``bytes``            one chunk of the body: one write, drained before the next step
``Head(...)``        status and headers; without one, 200 and ``text/event-stream`` go before the first bytes
``Wait(event)``      until the test sets the event: order is forced by state, never by sleeping
``SetEvent(event)``      sets an event: the test is notified that the script has reached this step
``Raw(bytes)``       bytes without framing, for responses that are not HTTP
``Shut()``           as ``Cut()``, but waits until the client has closed the connection
``Cut()``            closes the connection (FIN) in the middle of the body
``Reset()``          resets the connection (RST)
``Hang()``           sends nothing more until the client disconnects
===================  ==================================================================================

At the end of the script, the body is completed, and the connection stays open for the next request.

A client that disconnects ends the script, and sets ``request.client_left`` and ``request.left_at``.

A client may read two steps in one call, unless a ``Wait`` is between them.
"""

import asyncio
import http.client
import json
import logging
import socket
import struct
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

import anyio

from support.server_shutdown import stop_listening

MAX_HEAD_BYTES = 1024 * 1024


class Waitable(Protocol):
    """An event of anyio or of asyncio."""

    def wait(self) -> Coroutine[Any, Any, object]: ...

    def set(self) -> object: ...


@dataclass(frozen=True)
class Head:
    """Status line and headers; with ``chunked=False`` the following bytes are sent without framing."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    chunked: bool = True


@dataclass(frozen=True)
class Wait:
    """Hold the script until the event is set."""

    event: Waitable


@dataclass(frozen=True)
class SetEvent:
    """Set the event: all earlier steps were sent."""

    event: Waitable


@dataclass(frozen=True)
class Raw:
    """Bytes to be sent without a head and without framing."""

    data: bytes


class Cut:
    """Close the connection gracefully with an incomplete body."""


class Shut:
    """Shut down sending (FIN); continue when the client has disconnected."""


class Reset:
    """Reset the connection, as a crashed process or a proxy does."""


class Hang:
    """Send nothing more; continue when the client disconnects."""


Step = bytes | Head | Wait | SetEvent | Raw | Shut | Cut | Reset | Hang


@dataclass
class Received:
    """A complete request.

    Attributes:
        headers: By lower-case name; the last one of repeated headers.
        client_left: Set when the client has closed the connection, during the response or later.
        left_at: The time at which the client closed the connection, on the clock of ``anyio.current_time()``.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    client_left: anyio.Event = field(default_factory=anyio.Event)
    left_at: float | None = None

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


Script = Sequence[Step] | Callable[[Received], Sequence[Step]]


class ScriptedUpstream:
    """The server, running while the context is open.

    Args:
        scripts: One response per request; the last one is repeated. A function receives the request and returns the script.
        lists_models: Whether the scripts respond to requests for the list of models. Otherwise, such requests get 404 and are not
            counted.

    Attributes:
        requests: All requests so far, in order of arrival.
        base_url: ``http://127.0.0.1:PORT/v1``, as OpenAI clients expect it.

    Leaving the context aborts open connections. An error in a script is raised again, unless the test has already failed.
    """

    def __init__(self, *scripts: Script, lists_models: bool = False) -> None:
        self.requests: list[Received] = []
        self.base_url = ""
        self._scripts = scripts
        self._lists_models = lists_models
        self._arrival = anyio.Event()
        self._open: dict[anyio.CancelScope, anyio.Event] = {}
        self._errors: list[Exception] = []
        self._closed = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=MAX_HEAD_BYTES)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            self._closed = True
            await stop_listening(self._server)
            for scope, ended in list(self._open.items()):
                scope.cancel()
                await ended.wait()
            await self._server.wait_closed()
        if self._errors and error is None:
            raise ExceptionGroup("the scripted upstream failed", self._errors)

    async def received(self, index: int = 0) -> Received:
        """Wait for the complete request with this index (0 is the first)."""
        while len(self.requests) <= index:
            await self._arrival.wait()
        return self.requests[index]

    def _take(self, request: Received) -> Sequence[Step]:
        if request.method == "GET" and request.path.endswith("/models") and not self._lists_models:
            return json_answer({"error": {"message": "not found"}}, 404)
        if not self._scripts:
            raise LookupError(f"{request.method} {request.path} arrived, but there is no script")
        script = self._scripts[min(len(self.requests), len(self._scripts) - 1)]
        self.requests.append(request)
        self._arrival.set()
        self._arrival = anyio.Event()
        return script(request) if callable(script) else script

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        scope = anyio.CancelScope()
        ended = self._open[scope] = anyio.Event()
        connection = _Connection(reader, writer)
        try:
            with scope:
                while not self._closed:
                    request = await connection.next_request()
                    await connection.answer(request, self._take(request))
        except _Gone:
            connection.left()
        except _Closed:
            pass
        except Exception as error:
            # A test that waits for this script ends by its timeout, and its report includes the log.
            logging.getLogger(__name__).exception("the script failed")
            self._errors.append(error)
        finally:
            writer.transport.abort()  # no data to lose: complete responses have closed their connections
            del self._open[scope]
            ended.set()


class _Gone(Exception):
    """The client has closed the connection."""


class _Closed(Exception):
    """The server has closed the connection."""


class _Connection:
    """One connection: reads requests, plays their scripts, detects that the client disconnects."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._requests: list[Received] = []
        self._early = b""  # the first byte of a request that arrived during the response
        self._chunked: bool | None = None  # None: no head was sent yet
        self._until_close = False
        self._closed = False  # by the server

    def left(self) -> None:
        for request in self._requests:
            if not request.client_left.is_set():
                request.left_at = anyio.current_time()
                request.client_left.set()

    async def next_request(self) -> Received:
        """Return the next request; raise ``_Gone`` if the client has closed the connection."""
        try:
            head = self._early + await self._reader.readuntil(b"\r\n\r\n")
            self._early = b""
            start, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
            method, path, _ = start.split(" ")
            pairs = [line.partition(":") for line in lines]
            headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
            body = await self._body(headers)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise _Gone from None
        request = Received(method, path, headers, body)
        self._requests.append(request)
        return request

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return await self._reader.readexactly(int(headers.get("content-length", "0")))
        pieces: list[bytes] = []
        while size := int((await self._reader.readline()).split(b";")[0], 16):
            pieces.append((await self._reader.readexactly(size + 2))[:-2])
        await self._reader.readline()
        return b"".join(pieces)

    async def answer(self, request: Received, script: Sequence[Step]) -> None:
        """Play the script; end early, with ``_Gone``, when the client disconnects."""
        self._chunked = None
        gone = False

        async def watch() -> None:
            nonlocal gone
            with suppress(ConnectionError):
                self._early = await self._reader.read(1)
                if self._early:
                    return
            if not self._closed:
                gone = True
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            try:
                for step in script:
                    await self._play(step)
                await self._finish()
            except ConnectionError:
                gone = True
            except _Closed:
                pass
            tasks.cancel_scope.cancel()
        if self._closed:
            raise _Closed
        if gone:
            raise _Gone

    async def _play(self, step: Step) -> None:
        match step:
            case bytes():
                if self._chunked is None:
                    await self._send_head(Head())
                await self._send(b"%x\r\n%b\r\n" % (len(step), step) if self._chunked else step)
            case Raw(data):
                await self._send(data)
            case Head():
                await self._send_head(step)
            case Wait(event):
                await event.wait()
            case SetEvent(event):
                event.set()
            case Shut():
                self._writer.write_eof()
                await anyio.sleep_forever()
            case Cut():
                await self._close()
            case Reset():
                # Linger for zero seconds: close() then sends RST and discards unsent data.
                self._writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                self._closed = True
                self._writer.transport.abort()
                raise _Closed
            case Hang():
                await anyio.sleep_forever()

    async def _send_head(self, head: Head) -> None:
        self._chunked = head.chunked
        lines = [f"HTTP/1.1 {head.status} {http.client.responses.get(head.status, '')}"]
        lines += [f"{name}: {value}" for name, value in head.headers.items()]
        if head.chunked:
            lines.append("transfer-encoding: chunked")
        await self._send("\r\n".join([*lines, "", ""]).encode("latin-1"))
        self._until_close = not head.chunked and "content-length" not in map(str.lower, head.headers)

    async def _send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def _finish(self) -> None:
        if self._chunked is None:
            await self._send_head(Head())
        if self._chunked:
            await self._send(b"0\r\n\r\n")
        elif self._until_close:
            await self._close()

    async def _close(self) -> None:
        self._closed = True
        self._writer.close()
        await self._writer.wait_closed()  # everything was sent
        raise _Closed


def sse(*payloads: object) -> bytes:
    """The bytes of server-sent events: text and bytes unchanged, other values as JSON."""
    events: list[bytes] = []
    for payload in payloads:
        if isinstance(payload, bytes):
            data = payload
        else:
            data = (payload if isinstance(payload, str) else json.dumps(payload)).encode()
        events.append(b"data: " + data + b"\n\n")
    return b"".join(events)


def openai_chunk(
    delta: Mapping[str, Any] | None = None,
    *,
    index: int = 0,
    finish: str | None = None,
    usage: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """A Chat Completions chunk; without a delta and a finish reason it has no choices, only the usage."""
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish}
    chunk: dict[str, Any] = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "scripted",
        "choices": [choice] if delta is not None or finish is not None else [],
    }
    if usage is not None:
        chunk["usage"] = dict(usage)
    return chunk


def openai_stream(
    text_pieces: Sequence[str], finish: str | None = "stop", usage: Mapping[str, Any] | None = None
) -> list[bytes]:
    """A text response as a list of events: steps of a script, or a body when joined.

    With ``finish=None``, the finish reason, the usage and ``[DONE]`` are omitted, as in an interrupted stream.
    """
    chunks = [openai_chunk({"role": "assistant", "content": ""})]
    chunks += [openai_chunk({"content": piece}) for piece in text_pieces]
    if finish is None:
        return [sse(chunk) for chunk in chunks]
    chunks.append(openai_chunk({}, finish=finish))
    if usage is not None:
        chunks.append(openai_chunk(usage=usage))
    return [sse(chunk) for chunk in chunks] + [sse("[DONE]")]


def json_answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> list[Step]:
    """The script of a response that is one JSON document, such as an error."""
    body = json.dumps(value).encode()
    fields = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    return [Head(status, fields, chunked=False), body]

"""The provider of the scenarios: a real HTTP server in a separate process, whose prompts order the responses.

The last message of a request is JSON, an `Order`; the response is the text ``KEY.0 KEY.1 …``, which makes a missing,
repeated or reordered piece visible. `ordered_text` returns the expected text.
"""

import itertools
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, ClassVar

import aiohttp
import anyio
import msgspec
from anyio.abc import ByteReceiveStream, SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

MAX_HEAD = 64 * 1024
BATCH = 200  # pieces of a burst in one write

CHUNK = (
    b'data: {"id":"chatcmpl-t","object":"chat.completion.chunk","created":1700000000,"model":"t","choices":'
    b'[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
)
DONE = b"data: [DONE]\n\n"
FINISH = (
    b'data: {"id":"chatcmpl-t","object":"chat.completion.chunk","created":1700000000,"model":"t","choices":'
    b'[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n' + DONE
)
CALL = (
    b'data: {"id":"chatcmpl-t","object":"chat.completion.chunk","created":1700000000,"model":"t","choices":'
    b'[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_%b_%d","type":"function","function":{"name":"%b",'
    b'"arguments":"{\\"line\\": \\"%b\\"}"}}]},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
)
USAGE = (
    b'data: {"id":"chatcmpl-t","object":"chat.completion.chunk","created":1700000000,"model":"t","choices":[],'
    b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}\n\n'
)
ERROR_FRAME = b'data: {"error":{"message":"the GPU fell off","type":"server_error","code":"gpu"}}\n\n'
_PREFILL = "/prefill/v1"
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """The order of a response.

    Attributes:
        key: The name of the response, part of each piece.
        pieces: The number of pieces.
        pace: Seconds between two pieces; 0 for full speed.
        fault: The fault (of `FAULTS`); empty for none.
        after: The number of pieces before the fault.
        refusals: The number of requests with the fault; the others have none.
        begins_at: The earliest time of the first piece, on the monotonic clock.
        stamped: Whether each piece ends with its time of sending, in nanoseconds of the monotonic clock.
        counted: The response ends with a usage that no other response has, and the provider records it.
        tool: The name of a tool to call with the key as the argument ``line``, before the text; empty for none.
    """

    key: str
    pieces: int = 10
    pace: float = 0.0
    fault: str = ""
    after: int = 0
    refusals: int = 1_000
    begins_at: float = 0.0
    stamped: bool = False
    counted: bool = False
    tool: str = ""

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()

    def text(self, pieces: int | None = None) -> str:
        """The text of the response, or of its first pieces."""
        return "".join(f"{self.key}.{index} " for index in range(self.pieces if pieces is None else pieces))


FAULTS = (
    "429", "500", "hang-at-once", "hang-after-head", "hang-later", "cut-mid-json", "cut", "reset", "reset-at-once",
    "error-frame", "malformed", "no-finish", "not-http", "never-ending", "byte-by-byte",
)  # fmt: skip


class ResponseStats(msgspec.Struct):
    """The provider's record of a response.

    Attributes:
        requests: The number of requests for it.
        continuations: The number of these requests that end with a text to continue.
        sent: The number of sent pieces.
        left_at: The time on the monotonic clock when the client disconnected early, or None.
        usages: The input and output tokens of each complete response.
    """

    requests: int = 0
    continuations: int = 0
    sent: int = 0
    left_at: float | None = None
    usages: list[tuple[int, int]] = []


class Upstream:
    """The provider, as seen from the test's process.

    Attributes:
        base_url: The base URL for the server's settings.
        prefill_url: The base URL of the same provider as a server that continues a text, and lists its model as one of
            llama.cpp.
        pid: The id of its process.
    """

    def __init__(self, port: int, pid: int) -> None:
        self.pid = pid
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self.prefill_url = f"http://127.0.0.1:{port}{_PREFILL}"
        self._url = f"http://127.0.0.1:{port}"

    async def stats(self, http: aiohttp.ClientSession, key: str) -> ResponseStats:
        """The record of the response with this key."""
        async with http.get(f"{self._url}/told/{key}") as response:
            return msgspec.json.decode(await response.read(), type=ResponseStats)


@contextmanager
def upstream() -> Generator[Upstream]:
    """Run the provider while the block runs."""
    process = subprocess.Popen([sys.executable, "-P", __file__], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield Upstream(int(process.stdout.readline()), process.pid)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


class _Answering:
    """One connection, which serves requests until its client disconnects."""

    stats: ClassVar[dict[str, ResponseStats]] = {}
    counter: ClassVar[Iterator[int]] = itertools.count(1)

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._reader = BufferedByteReceiveStream(stream)

    async def run(self) -> None:
        while True:
            try:
                head = await self._reader.receive_until(b"\r\n\r\n", MAX_HEAD)
            except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError):
                return
            method, path, _ = head.decode().split(" ", 2)
            length = next(
                (
                    int(line[15:])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                ),
                0,
            )
            body = await self._reader.receive_exactly(length) if length else b""
            if path.startswith("/told/"):
                await self._send_json(200, self.stats.get(path[6:], ResponseStats()))
                continue
            if method == "GET" and path.startswith(_PREFILL):
                await self._send_json(200, {"object": "list", "data": [{"id": "t", "owned_by": "llamacpp"}]})
                continue
            if method == "GET":  # the list of models
                await self._send_json(404, {"error": {"message": "unknown path"}})
                continue
            order, text = _request(body)
            stats = self.stats.setdefault(order.key, ResponseStats())
            stats.requests += 1
            stats.continuations += bool(text)
            stats.sent = 0
            if not await self._answer(order, stats, text):
                return

    async def _answer(self, order: Order, stats: ResponseStats, text: str) -> bool:
        """Send the response, or its rest behind a text; return whether the connection can be reused."""
        done = False
        async with _noticed(self._reader, stats) as scope:
            try:
                done = await self._play(order, stats, text)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                stats.left_at = stats.left_at or time.monotonic()
            scope.cancel()
        return done

    async def _play(self, order: Order, stats: ResponseStats, text: str) -> bool:
        fault = order.fault
        if fault.isdigit() and stats.requests <= order.refusals:
            body = {"error": {"message": f"refused with {fault}", "code": "torture"}}
            await self._send_json(int(fault), body, b"retry-after-ms: 20\r\n")
            return True
        if fault == "reset-at-once":
            self._reset()
            return False
        if fault == "hang-at-once":
            await anyio.sleep_forever()
        if fault == "not-http":
            await self._stream.send(b"\xff\xfe what is this?\r\n\r\n")
            await self._stream.aclose()
            return False
        await self._stream.send(SSE_HEAD)
        if fault == "hang-after-head":
            await anyio.sleep_forever()
        broken = (
            bool(fault)
            and not fault.isdigit()
            and fault != "byte-by-byte"
            and stats.requests <= order.refusals
        )
        if order.tool:
            key = order.key.encode()
            await self._send_body(CALL % (key, stats.requests, order.tool.encode(), key))
            await self._stream.send(b"0\r\n\r\n")
            return True
        first = 0
        if text:
            first = len(text.split(" "))
            await self._send_body(CHUNK % order.text(first)[len(text) :].encode())
        await self._send_pieces(order, stats, order.after if broken else order.pieces, first)
        if broken:
            return await self._break(order, stats)
        if order.counted:
            given = next(self.counter)
            await self._send_body(FINISH.removesuffix(DONE) + USAGE % (given, 3 * given, 4 * given) + DONE)
            stats.usages.append((given, 3 * given))
        else:
            await self._send_body(FINISH)
        await self._stream.send(b"0\r\n\r\n")
        return True

    async def _send_pieces(self, order: Order, stats: ResponseStats, count: int, first: int) -> None:
        step = BATCH if not order.pace and order.fault != "byte-by-byte" else 1
        begun = max(order.begins_at, time.monotonic())
        await anyio.sleep(max(0.0, begun - time.monotonic()))
        for start in range(first, count, step):
            stamp = f"@{time.monotonic_ns()}" if order.stamped else ""
            pieces = [
                CHUNK % f"{order.key}.{index}{stamp} ".encode()
                for index in range(start, min(start + step, count))
            ]
            data = b"".join(pieces)
            if order.fault == "byte-by-byte":
                for index in range(len(data)):
                    await self._send_body(data[index : index + 1])
            else:
                await self._send_body(data)
            stats.sent = min(start + step, count)
            if order.pace:  # a late piece is sent immediately, which keeps the average rate
                await anyio.sleep(max(0.0, begun + (start + step - first) * order.pace - time.monotonic()))

    async def _break(self, order: Order, stats: ResponseStats) -> bool:
        match order.fault:
            case "hang-later":
                await anyio.sleep_forever()
            case "cut-mid-json":
                await self._send_body(b'data: {"id":"chatcmpl-t","choices":[{"index":0,"del')
                await self._stream.aclose()
            case "cut":
                await self._stream.aclose()
            case "reset":
                self._reset()
            case "never-ending":
                index = order.after
                while True:
                    await self._send_body(CHUNK % f"{order.key}.{index} ".encode())
                    index += 1
                    stats.sent = index
                    await anyio.sleep(order.pace)
            case ending:
                last = {"error-frame": ERROR_FRAME, "malformed": b"data: {nonsense\n\n", "no-finish": b""}[
                    ending
                ]
                if last:
                    await self._send_body(last)
                await self._stream.send(b"0\r\n\r\n")
                return True
        return False

    async def _send_body(self, data: bytes) -> None:
        await self._stream.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def _send_json(self, status: int, value: object, fields: bytes = b"") -> None:
        body = msgspec.json.encode(value)
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
        await self._stream.send(head % (status, fields, len(body)) + body)

    def _reset(self) -> None:
        raw = self._stream.extra(SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@asynccontextmanager
async def _noticed(reader: ByteReceiveStream, stats: ResponseStats) -> AsyncGenerator[anyio.CancelScope]:
    """Cancel the block when the client closes the connection."""

    async def watch() -> None:
        # A client sends nothing during a response, so received data means the end of the connection.
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await reader.receive(1)
        stats.left_at = time.monotonic()
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        yield group.cancel_scope


def _request(body: bytes) -> tuple[Order, str]:
    """The order of a request, and the text that the response continues; empty for a new response."""
    *before, last = msgspec.json.decode(body)["messages"]
    if last["role"] == "tool":
        question = next(each for each in reversed(before) if each["role"] == "user")
        return msgspec.structs.replace(msgspec.json.decode(_text_of(question), type=Order), tool=""), ""
    text = ""
    if last["role"] == "assistant":
        text, last = _text_of(last), before[-1]
    order = msgspec.json.decode(_text_of(last), type=Order)
    assert order.text().startswith(text), "the request has another text than the provider sent"
    return order, text


def _text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else content[-1]["text"]


async def _serve() -> None:
    async def connected(stream: SocketStream) -> None:
        async with stream:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await _Answering(stream).run()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", backlog=1024)
    print(listener.extra(SocketAttribute.local_port), flush=True)
    await listener.serve(connected)


if __name__ == "__main__":
    anyio.run(_serve, backend_options={"use_uvloop": True})

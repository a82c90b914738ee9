"""A client's received events, checked on arrival (numbers, texts, the end), and its calls.

No assumption is made about the server: an event counts as received when all its bytes have arrived.
"""

import asyncio
import json
import time
import zlib
from collections.abc import Callable
from typing import Any, cast
from uuid import uuid4

import aiohttp
import msgspec

from tailrace.streaming.a2a.stream_extension import EXTENSION_URI

FINAL = {f"TASK_STATE_{name}" for name in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")}
PATIENCE = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
LONGEST = 60.0  # default time limit of a stream in seconds


class _Part(msgspec.Struct):
    text: str = ""


class _Artifact(msgspec.Struct):
    artifactId: str
    parts: list[_Part] = []


class _Status(msgspec.Struct):
    state: str


class _Task(msgspec.Struct):
    id: str
    status: _Status
    artifacts: list[_Artifact] = []


class _StatusUpdate(msgspec.Struct):
    status: _Status
    metadata: dict[str, Any] = {}


class _ArtifactUpdate(msgspec.Struct):
    artifact: _Artifact
    append: bool = False


class _Result(msgspec.Struct):
    task: _Task | None = None
    statusUpdate: _StatusUpdate | None = None
    artifactUpdate: _ArtifactUpdate | None = None


class _Answer(msgspec.Struct):
    result: _Result | None = None
    error: dict[str, Any] | None = None


_DECODER = msgspec.json.Decoder(_Answer)


class Refused(Exception):
    """The server returned a JSON-RPC error; its object is the argument."""


class Seen:
    """The events of one task that one client received, over any number of connections.

    Args:
        each: Called with the text of every piece.

    Attributes:
        task_id: Known from the first event.
        last: The number of the last event.
        lost: Skipped numbers that no snapshot replaced.
        repeated: The number of repeated events.
        overviews: The number of snapshots in place of events.
        marks: A checksum of each event, by number.
        texts: The pieces of each artifact.
        state: The last state.
        ends: The number of events with a final state.
        error: The JSON-RPC error that ended the stream, if there was one.
        routes: The routes by which the response was continued.
        continued_at: The time of the last continuation's arrival, on the monotonic clock.
    """

    def __init__(self, each: Callable[[str], object] | None = None) -> None:
        self.task_id = ""
        self.last = 0
        self.lost = 0
        self.repeated = 0
        self.overviews = 0
        self.marks: dict[int, int] = {}
        self.texts: dict[str, list[str]] = {}
        self.state = ""
        self.ends = 0
        self.error: dict[str, Any] | None = None
        self.routes: list[str] = []
        self.continued_at = 0.0
        self.each = each
        self._rest = b""
        self._whole = False  # a snapshot arrived, the number of which follows

    @property
    def text(self) -> str:
        """The text of the response."""
        return "".join(self.texts.get("text", ()))

    @property
    def over(self) -> bool:
        """Return whether the task has ended."""
        return self.state in FINAL

    def connect(self) -> None:
        """Start a new connection: discard the incomplete event of the previous one."""
        self._rest = b""

    def feed(self, data: bytes, upto: int | None = None) -> bool:
        """Parse received bytes; return False after the event ``upto``, and ignore the rest."""
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            self._take(frame)
            if upto is not None and self.last >= upto:
                return False
        return True

    def _take(self, frame: bytes) -> None:
        number, body = 0, b""
        for line in frame.split(b"\n"):
            if line.startswith(b"id: "):
                number = int(line[4:])
            elif line.startswith(b"data: "):
                body = line[6:]
        if not body:
            return  # a comment
        answer = _DECODER.decode(body)
        if answer.result is None:
            self.error = answer.error
            return
        if number:
            if number <= self.last:
                self.repeated += 1
                return
            if not self._whole:
                self.lost += number - self.last - 1
            self._whole = False
            self.last = number
            self.marks[number] = zlib.crc32(body)
        elif not self._whole:
            self._whole = True
            self.overviews += 1
        self._fold(answer.result)

    def _fold(self, result: _Result) -> None:
        if result.task is not None:
            self.task_id = result.task.id
            self.state = result.task.status.state
            self.texts = {
                each.artifactId: [part.text for part in each.parts] for each in result.task.artifacts
            }
        elif result.statusUpdate is not None:
            self.state = result.statusUpdate.status.state
            self.ends += self.over
            continuation = result.statusUpdate.metadata.get(EXTENSION_URI, {}).get("continuation")
            if continuation is not None:
                self.routes.append(continuation["route"])
                self.continued_at = time.monotonic()
        elif result.artifactUpdate is not None:
            artifact = result.artifactUpdate.artifact
            pieces = [part.text for part in artifact.parts]
            if result.artifactUpdate.append:
                self.texts[artifact.artifactId] += pieces
            else:
                self.texts[artifact.artifactId] = pieces
            if self.each is not None:
                for piece in pieces:
                    self.each(piece)


class Timed(Seen):
    """A reader that measures the time from a piece's timestamp to its arrival.

    Attributes:
        delays: The delays in nanoseconds.
    """

    def __init__(self) -> None:
        super().__init__(self._arrived)
        self.delays: list[int] = []
        self.now = 0

    def feed(self, data: bytes, upto: int | None = None) -> bool:
        self.now = time.monotonic_ns()
        return super().feed(data, upto)

    def _arrived(self, piece: str) -> None:
        # The newest timestamp: an event may contain several, and a snapshot all of them.
        at = piece.rfind("@")
        if at >= 0:
            self.delays.append(self.now - int(piece[at + 1 :]))


def client() -> aiohttp.ClientSession:
    """Return a client with as many connections as requested."""
    # Connections are not reused, since the server closes idle ones after 5 s.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    return aiohttp.ClientSession(connector=connector, timeout=PATIENCE)


def message(text: object, **fields: Any) -> dict[str, Any]:
    """Return the parameters of a send."""
    return {
        "message": {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": str(text)}], **fields}
    }


async def call(http: aiohttp.ClientSession, url: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Call a method; return its result.

    Raises:
        Refused: The server returned an error.
        aiohttp.ClientError: There was no response.
    """
    body = {"jsonrpc": "2.0", "id": "s", "method": method, "params": params}
    async with http.post(url + "/", json=body) as response:
        answer = cast("dict[str, Any]", json.loads(await response.read()))
    if "error" in answer:
        raise Refused(answer["error"])
    return answer["result"]


async def stored(http: aiohttp.ClientSession, url: str, task_id: str) -> tuple[str, str, dict[str, Any]]:
    """Return a task from `GetTask`: its state, the text of its response, and the complete object."""
    task = await call(http, url, "GetTask", {"id": task_id})
    texts = [
        part["text"]
        for each in task.get("artifacts", ())
        if each["artifactId"] == "text"
        for part in each["parts"]
    ]
    return task["status"]["state"], "".join(texts), task


async def send(
    http: aiohttp.ClientSession, url: str, text: object, seen: Seen, upto: int | None = None, **fields: Any
) -> bool:
    """Read `SendStreamingMessage`, as `stream` does."""
    return await stream(http, url, "SendStreamingMessage", message(text, **fields), seen, upto=upto)


async def resume(
    http: aiohttp.ClientSession, url: str, seen: Seen, *, task_id: str = "", seconds: float = LONGEST
) -> bool:
    """Read `SubscribeToTask` after the last received event, as `stream` does."""
    params = {"id": task_id or seen.task_id}
    headers = {"Last-Event-ID": str(seen.last)}
    return await stream(http, url, "SubscribeToTask", params, seen, headers, seconds=seconds)


async def stream(
    http: aiohttp.ClientSession,
    url: str,
    method: str,
    params: dict[str, Any],
    seen: Seen,
    headers: dict[str, str] | None = None,
    upto: int | None = None,
    seconds: float = LONGEST,
) -> bool:
    """Read a stream until it ends, breaks, or reaches an event.

    Args:
        http: The HTTP session.
        url: The server's base URL.
        method: The method to call.
        params: The parameters.
        seen: Receives the events.
        headers: Further headers.
        upto: The number of the event after which to disconnect.
        seconds: The time after which to disconnect.

    Returns:
        False if there was no response, the connection broke, or the time was over.

    Raises:
        Refused: The response is a JSON-RPC error instead of a stream.
    """
    body = {"jsonrpc": "2.0", "id": "s", "method": method, "params": params}
    seen.connect()
    try:
        async with asyncio.timeout(seconds), http.post(url + "/", json=body, headers=headers) as response:
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise Refused(json.loads(await response.read()).get("error"))
            async for data in response.content.iter_any():
                if not seen.feed(data, upto):
                    response.close()  # disconnected early
                    break
    except (aiohttp.ClientError, OSError):  # a timeout is an OSError, too
        return False
    return True

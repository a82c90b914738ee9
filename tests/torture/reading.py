"""What a client of the server has seen, checked while it comes: numbers, texts, the end; and the calls it makes.

Nothing here trusts the server: an event counts as seen when all its bytes are there.
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

FINAL = {f"TASK_STATE_{name}" for name in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")}
PATIENCE = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
LONGEST = 60.0  # seconds that a stream may take which does not say itself how long it does


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
    """The server answered with a JSON-RPC error; its object is the argument."""


class Seen:
    """All that one client was shown of one task, over however many connections.

    Args:
        each: Called with the text of every piece.

    Attributes:
        task_id: Known from the first event on.
        last: The number of the last event.
        lost: Numbers that were left out, and not made up for by a copy of the whole task.
        repeated: Events that came again.
        overviews: How often the task as it stands came instead of its events.
        marks: A checksum of each event, by its number.
        texts: The pieces of each artifact.
        state: The last state.
        ends: How many events said that the task is over.
        error: The JSON-RPC error that ended the stream, if one did.
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
        self.each = each
        self._rest = b""
        self._whole = False  # a whole copy came, the number of which follows

    @property
    def text(self) -> str:
        """The text of the answer."""
        return "".join(self.texts.get("text", ()))

    @property
    def over(self) -> bool:
        """Whether the task has come to its end."""
        return self.state in FINAL

    def connect(self) -> None:
        """A new connection begins: half an event of the one before is forgotten."""
        self._rest = b""

    def feed(self, data: bytes, upto: int | None = None) -> bool:
        """Take what was received; False once the event ``upto`` was seen, and what follows it is left unread."""
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
    """A reader that takes the time from a piece's stamp to its arrival.

    Attributes:
        delays: In nanoseconds.
    """

    def __init__(self) -> None:
        super().__init__(self._arrived)
        self.delays: list[int] = []
        self.now = 0

    def feed(self, data: bytes, upto: int | None = None) -> bool:
        self.now = time.monotonic_ns()
        return super().feed(data, upto)

    def _arrived(self, piece: str) -> None:
        # The newest stamp of a piece: an event may hold several, and a copy of the task all of them.
        at = piece.rfind("@")
        if at >= 0:
            self.delays.append(self.now - int(piece[at + 1 :]))


def client() -> aiohttp.ClientSession:
    """A client with as many connections as are asked for."""
    # None is used again at the moment when the server, after 5 s, gives it up.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    return aiohttp.ClientSession(connector=connector, timeout=PATIENCE)


def message(text: object, **fields: Any) -> dict[str, Any]:
    """The params of a send."""
    return {
        "message": {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": str(text)}], **fields}
    }


async def call(http: aiohttp.ClientSession, url: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Call a method; give its result.

    Raises:
        Refused: It failed.
        aiohttp.ClientError: There was no answer.
    """
    body = {"jsonrpc": "2.0", "id": "s", "method": method, "params": params}
    async with http.post(url + "/", json=body) as response:
        answer = cast("dict[str, Any]", json.loads(await response.read()))
    if "error" in answer:
        raise Refused(answer["error"])
    return answer["result"]


async def stored(http: aiohttp.ClientSession, url: str, task_id: str) -> tuple[str, str, dict[str, Any]]:
    """A task as `GetTask` gives it: its state, the text of its answer, and the whole of it."""
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
    """`SendStreamingMessage`; as `stream`."""
    return await stream(http, url, "SendStreamingMessage", message(text, **fields), seen, upto=upto)


async def resume(
    http: aiohttp.ClientSession, url: str, seen: Seen, *, task_id: str = "", seconds: float = LONGEST
) -> bool:
    """`SubscribeToTask` after the last event that was seen; as `stream`."""
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
    """Read a stream until it ends, breaks off, or has shown an event.

    Args:
        http: Whose connection.
        url: The server.
        method: What is called.
        params: With what.
        seen: Takes the events.
        headers: Further ones.
        upto: Leave once the event of this number was seen.
        seconds: Leave after this time.

    Returns:
        False when there was no answer, the connection broke, or the time was over.

    Raises:
        Refused: The answer is a JSON-RPC error instead of a stream.
    """
    body = {"jsonrpc": "2.0", "id": "s", "method": method, "params": params}
    seen.connect()
    try:
        async with asyncio.timeout(seconds), http.post(url + "/", json=body, headers=headers) as response:
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise Refused(json.loads(await response.read()).get("error"))
            async for data in response.content.iter_any():
                if not seen.feed(data, upto):
                    response.close()  # gone, in the middle
                    break
    except (aiohttp.ClientError, OSError):  # a time-out is an OSError, too
        return False
    return True

"""A recorded answer behind an OpenAI-compatible server: the demo's upstream where no model can run.

The stream was recorded from `tailrace.server.localmodel` and is sent again at the pace at which it came. It is
labelled as what it is: every chunk names the model ``smollm2-135m-instruct (recorded)``, and the answer is always
the one to :data:`PROMPT`, whatever is asked.
"""

import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any, NamedTuple, Self

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tailrace.server.embedded import serving
from tailrace.server.localmodel import MODEL, Progress
from tailrace.wrappers.errors import ConfigurationError
from tailrace.wrappers.wire import SSEDecoder

PROMPT = "Why is the sky blue? Explain it to a child in four sentences."
"""The question of the demo, and the one that the recorded answer answers."""

RECORDED_MODEL = f"{MODEL} (recorded)"
"""The model's name in requests and in every chunk of the replayed stream."""

TOKENS_PER_SECOND = 90.0
"""The pace of a recording that does not tell its own."""

MAX_REQUEST_BYTES = 10 * 1024 * 1024
"""Bound on the body of a request: a long conversation fits, with pictures."""


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Request(msgspec.Struct):
    """What matters here of a request; anything else in it is accepted and makes no difference."""

    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class _Frame(NamedTuple):
    data: bytes
    only_usage: bool
    """A chunk without choices: sent only to those who asked for ``stream_options.include_usage``."""


class Recording:
    """A recorded stream, ready to be sent again.

    Args:
        body: The body of a Chat Completions stream, as it came.

    Attributes:
        frames: The events in order, each with the model's name replaced by :data:`RECORDED_MODEL`.
        tokens_per_second: How fast the model was, where the recording says so (llama.cpp's ``timings``).
    """

    def __init__(self, body: bytes) -> None:
        self.frames: list[_Frame] = []
        self.tokens_per_second = TOKENS_PER_SECOND
        decoder = SSEDecoder()
        for event in decoder.feed(body) + decoder.close():
            if event.data == b"[DONE]":
                self.frames.append(_Frame(b"data: [DONE]\n\n", only_usage=False))
                continue
            chunk: dict[str, Any] = json.loads(event.data)
            chunk["model"] = RECORDED_MODEL
            timings: dict[str, float] = chunk.get("timings") or {}
            self.tokens_per_second = timings.get("predicted_per_second", self.tokens_per_second)
            data = b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"
            self.frames.append(_Frame(data, only_usage=not chunk.get("choices")))


def demo_answer() -> Recording:
    """The recorded answer to :data:`PROMPT`, which comes with the package."""
    return Recording(resources.files("tailrace.server").joinpath("recorded", "answer.sse").read_bytes())


def create_replay_app(
    recording: Recording, *, tokens_per_second: float | None = None, closing: anyio.Event | None = None
) -> Starlette:
    """An ASGI app that answers ``POST /v1/chat/completions`` with the recording.

    Also ``GET /v1/models`` and ``GET /health``. A request that is not a JSON object, or does not ask for a
    stream, is answered with status 400 and an error object as OpenAI's.

    Args:
        recording: What to send.
        tokens_per_second: Events a second; None keeps the recording's own pace.
        closing: Once set, streams under way end early.

    Raises:
        ConfigurationError: The pace is not positive.
    """
    pace = recording.tokens_per_second if tokens_per_second is None else tokens_per_second
    if not pace > 0:
        raise ConfigurationError(f"tokens_per_second must be positive, not {pace:g}")
    stop = closing or anyio.Event()

    async def completions(request: Request) -> Response:
        try:
            asked = msgspec.json.decode(await request.body(), type=_Request)
        except msgspec.DecodeError as error:
            return _refused(f"the body is not a request for a chat completion: {error}")
        if not asked.stream:
            return _refused("this is a recording of a stream: ask with stream=true")
        with_usage = asked.stream_options is not None and asked.stream_options.include_usage
        frames = [frame.data for frame in recording.frames if with_usage or not frame.only_usage]
        return StreamingResponse(_paced(frames, pace, stop), media_type="text/event-stream")

    async def models(request: Request) -> Response:
        model = {"id": RECORDED_MODEL, "object": "model", "created": 0, "owned_by": "tailrace"}
        return JSONResponse({"object": "list", "data": [model]})

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", completions, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
        ],
        max_body_size=MAX_REQUEST_BYTES,
    )


async def _paced(frames: list[bytes], pace: float, stop: anyio.Event) -> AsyncIterator[bytes]:
    start = anyio.current_time()
    for number, frame in enumerate(frames):
        # Due times count from the start, so that late wake-ups do not add up.
        with anyio.CancelScope(deadline=start + number / pace):
            await stop.wait()
            return
        yield frame


def _refused(message: str) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": error}, status_code=400)


class ReplayModel(anyio.AsyncContextManagerMixin):
    """The recorded answer's server, for as long as the context is open; used like ``LocalModel``.

    It runs in this process and event loop, on a free port of the loopback interface. Leaving the context, or being
    cancelled, ends streams under way and closes the port.

    Args:
        on_progress: Called once, when the server is ready.
        recording: What to send; None takes the demo's answer.
        tokens_per_second: Events a second; None keeps the recording's own pace.

    Attributes:
        model: The model's name for requests.
        label: What answers, in words for people.
        base_url: The server's address for OpenAI clients, ``http://127.0.0.1:PORT/v1``; empty when not running.

    Raises:
        ConfigurationError: The pace is not positive.
    """

    def __init__(
        self,
        *,
        on_progress: Progress | None = None,
        recording: Recording | None = None,
        tokens_per_second: float | None = None,
    ) -> None:
        self.model = RECORDED_MODEL
        self.label = (
            f"a recorded answer of {MODEL}, replayed: no model runs, and every question gets this answer"
        )
        self.base_url = ""
        self._on_progress = on_progress
        self._closing = anyio.Event()
        self._app = create_replay_app(
            recording or demo_answer(), tokens_per_second=tokens_per_second, closing=self._closing
        )

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        listener = socket.create_server(("127.0.0.1", 0))
        async with serving(self._app, listener):
            self.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            try:
                if self._on_progress is not None:
                    self._on_progress(1.0, "ready")
                yield self
            finally:
                self.base_url = ""
                self._closing.set()

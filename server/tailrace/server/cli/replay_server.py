"""An OpenAI-compatible server that replays a recorded response, for a demo without the local model.

The stream was recorded from `tailrace.server.cli.local_model`. All requests get the same response, to `PROMPT`, at the average
speed of the recording.
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

from tailrace.server.cli.local_model import MODEL, Progress
from tailrace.server.http.embedded_server import serving
from tailrace.wrappers.decoding.framing import SSEDecoder
from tailrace.wrappers.errors import ConfigurationError

PROMPT = "Why is the sky blue? Explain it to a child in four sentences."
"""The prompt of the demo and of the recorded response."""

RECORDED_MODEL = f"{MODEL} (recorded)"
"""The model name in requests and in every chunk."""

TOKENS_PER_SECOND = 90.0
"""The speed of a recording that does not contain the speed of the model."""

MAX_REQUEST_BYTES = 10 * 1024 * 1024
"""Maximum size of a request in bytes."""


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Request(msgspec.Struct):
    """The members of a request that are used."""

    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class _Frame(NamedTuple):
    data: bytes
    only_usage: bool
    """True if the chunk has no choices. It is sent only with ``stream_options.include_usage``."""


class Recording:
    """A recorded stream to replay.

    Args:
        body: The body of a Chat Completions stream.

    Attributes:
        frames: The events in order, each with the model name `RECORDED_MODEL`.
        tokens_per_second: The speed of the model, from llama.cpp's ``timings`` in the recording; otherwise `TOKENS_PER_SECOND`.
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


def demo_recording() -> Recording:
    """Return the response to `PROMPT`."""
    return Recording(resources.files("tailrace.server.cli").joinpath("recorded", "answer.sse").read_bytes())


def create_replay_app(
    recording: Recording, *, tokens_per_second: float | None = None, closing: anyio.Event | None = None
) -> Starlette:
    """Create an ASGI app that responds to ``POST /v1/chat/completions`` with the recording.

    A request that does not request a stream is rejected with status 400.

    Args:
        recording: The recording.
        tokens_per_second: Events per second; the speed of the recording if None.
        closing: An event that ends open streams early; None to send all streams completely.

    Raises:
        ConfigurationError: ``tokens_per_second`` is not positive.
    """
    pace = recording.tokens_per_second if tokens_per_second is None else tokens_per_second
    if not pace > 0:
        raise ConfigurationError(f"tokens_per_second must be positive, not {pace:g}")
    stop = closing or anyio.Event()

    async def completions(request: Request) -> Response:
        try:
            completion = msgspec.json.decode(await request.body(), type=_Request)
        except msgspec.DecodeError as error:
            return _refused(f"the body is not a request for a chat completion: {error}")
        if not completion.stream:
            return _refused("this is a recording of a stream: ask with stream=true")
        with_usage = completion.stream_options is not None and completion.stream_options.include_usage
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
        # Relative to the start, so that delays do not add up.
        with anyio.CancelScope(deadline=start + number / pace):
            await stop.wait()
            return
        yield frame


def _refused(message: str) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": error}, status_code=400)


class ReplayModel(anyio.AsyncContextManagerMixin):
    """Runs a server that replays a recorded response while the context is open.

    It is used like `tailrace.server.cli.local_model.LocalModel`, but runs in this process and event loop. Exiting the context, or
    cancelling it, ends open streams.

    Args:
        on_progress: Called once, when the server is ready; None to report nothing.
        recording: The recording; the recording of the package if None.
        tokens_per_second: Events per second; the speed of the recording if None.

    Attributes:
        model: The model name for requests.
        label: A description of the model for users.
        base_url: The base URL for OpenAI clients, ``http://127.0.0.1:PORT/v1``; empty when the server is not running.

    Raises:
        ConfigurationError: ``tokens_per_second`` is not positive.
    """

    def __init__(
        self,
        *,
        on_progress: Progress | None = None,
        recording: Recording | None = None,
        tokens_per_second: float | None = None,
    ) -> None:
        self.model = RECORDED_MODEL
        self.label = f"a recorded response of {MODEL}: no model runs, and every message gets this response"
        self.base_url = ""
        self._on_progress = on_progress
        self._closing = anyio.Event()
        self._app = create_replay_app(
            recording or demo_recording(), tokens_per_second=tokens_per_second, closing=self._closing
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

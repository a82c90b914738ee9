"""Streams of the Responses API as bytes, and strict checks of its objects with the types of the openai package."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, get_args

import aiohttp
from openai.types.responses import Response, ResponseStreamEvent

from support.strict_types import check_strictly


def _events() -> dict[str, Any]:
    union, *_ = get_args(ResponseStreamEvent)
    return {get_args(each.model_fields["type"].annotation)[0]: each for each in get_args(union)}


EVENTS: dict[str, Any] = _events()
"""The types of the openai package for the events of a stream, by the ``type`` of the event."""

ENDINGS = ("response.completed", "response.failed", "response.incomplete")


class Frames:
    """The events of one stream.

    Attributes:
        frames: The frame of each event, as it was sent.
        events: Their data.
    """

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.events: list[dict[str, Any]] = []

    def add(self, frame: bytes) -> None:
        """Add and check a frame."""
        kind, data = frame.removesuffix(b"\n\n").split(b"\n")
        event = json.loads(data.removeprefix(b"data: "))
        assert kind == b"event: " + event["type"].encode()
        check_strictly(EVENTS[event["type"]], data.removeprefix(b"data: "))
        self.frames.append(frame)
        self.events.append(event)

    @property
    def numbers(self) -> list[int]:
        return [event["sequence_number"] for event in self.events]

    @property
    def types(self) -> list[str]:
        return [event["type"].removeprefix("response.") for event in self.events]

    @property
    def response(self) -> dict[str, Any]:
        """The response of the last event."""
        assert self.events[-1]["type"] in ENDINGS
        return self.events[-1]["response"]


class RawClient:
    """A client of the Responses API that returns the bytes of responses."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = f"{url}/v1"

    async def json(self, method: str, path: str, body: object = None, **query: str) -> dict[str, Any]:
        """Return the object of an HTTP response. If it is a `Response` of the API, check it."""
        async with self._http.request(method, self._url + path, json=body, params=query) as response:
            text = await response.text()
            found = json.loads(text)
            if found.get("object") == "response" and "deleted" not in found:
                check_strictly(Response, text)
            return found

    async def status(self, path: str, **query: str) -> int:
        """Send a request, read the response to its end, and return the status."""
        async with self._http.get(self._url + path, params=query) as response:
            await response.read()
            return response.status

    @asynccontextmanager
    async def open_stream(
        self, path: str, body: Mapping[str, Any] | None = None, **query: str
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Open a stream; yield its frames without comments."""
        method = "GET" if body is None else "POST"
        given = None if body is None else {"stream": True, **body}
        params = {"stream": "true", **query} if body is None else query
        async with self._http.request(method, self._url + path, json=given, params=params) as response:
            assert response.status == 200, await response.text()
            yield _frames(response)

    async def stream(self, path: str, body: Mapping[str, Any] | None = None, **query: str) -> Frames:
        """Return all events of a stream."""
        found = Frames()
        async with self.open_stream(path, body, **query) as frames:
            async for frame in frames:
                found.add(frame)
        return found

    async def resumed(self, response_id: str, after: int | None = None) -> Frames:
        """Return the events of a response after the number ``after``; all events if it is None."""
        query = {} if after is None else {"starting_after": str(after)}
        return await self.stream(f"/responses/{response_id}", None, **query)


async def _frames(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    buffer = b""
    async for data in response.content.iter_any():
        buffer += data
        *complete, buffer = buffer.split(b"\n\n")
        for frame in complete:
            if not frame.startswith(b":"):
                yield frame + b"\n\n"


@asynccontextmanager
async def raw_client(url: str, headers: Mapping[str, str] | None = None) -> AsyncGenerator[RawClient]:
    """Yield a client of a server that sends these headers with every request."""
    async with aiohttp.ClientSession(headers=headers) as http:
        yield RawClient(http, url)

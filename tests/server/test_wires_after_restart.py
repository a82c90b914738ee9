"""Clients of every protocol read the same text of a response that is continued after the server was killed or stopped.

Streams that have numbers are resumed after their last event. Other requests are sent again with their idempotency key.
"""

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import grpc.aio
import pytest
from a2a.types import SubscribeToTaskRequest, a2a_pb2_grpc
from google.protobuf.json_format import MessageToDict

from support.continued_events import Events, folded
from support.continuing import FORMAT_OF, ContinuingServer
from support.grpc_agents import grpc_address
from support.processes import served
from support.restarts import arguments_of
from support.rpc import message
from support.sdk import send
from support.ui_streams import RUN
from support.upstream import Received, ScriptedUpstream, Step, Wait
from tailrace.wrappers import SSEDecoder

PIECES = ["# Rivers\n\n", "Water ", "flows ", "to the 🌊", ".\n\n", "- Rhine\n", "- Aare", " and more."]
TEXT = "".join(PIECES)
PUBLISHED = "".join(PIECES[: PIECES.index("- Aare")])

MESSAGE = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Rivers?"}]}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {"model": "m", "messages": [{"role": "user", "content": "Rivers?"}], "stream": True},
    ),
    "responses": ("/v1/responses", {"model": "m", "input": "Rivers?", "stream": True, "background": True}),
    "ai-sdk": ("/ai-sdk", {"id": "c1", "messages": [MESSAGE], "trigger": "submit-message"}),
    "ag-ui": ("/ag-ui", {**RUN, "messages": [{"id": "u1", "role": "user", "content": "Rivers?"}]}),
}
TEXTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "chat": lambda event: "".join(each["delta"].get("content") or "" for each in event.get("choices", ())),
    "responses": lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    "ai-sdk": lambda event: event["delta"] if event["type"] == "text-delta" else "",
    "ag-ui": lambda event: event["delta"] if event["type"] == "TEXT_MESSAGE_CONTENT" else "",
}
WIRES = ("jsonrpc", "http+json", "grpc", *BODIES)
VERSION = {"A2A-Version": "1.0"}


class Client:
    """A client of one protocol.

    Attributes:
        wire: The name of the protocol.
        events: The numbers and the JSON of the events so far.
        is_reached: Set when the client has received `PUBLISHED`.
        is_resumed: Set when the resumed stream has begun.
    """

    def __init__(self, wire: str) -> None:
        self.wire = wire
        self.events: Events = []
        self.is_reached = anyio.Event()
        self.is_resumed = anyio.Event()

    @property
    def text(self) -> str:
        """The text that the client has."""
        if self.wire in TEXTS:
            return "".join(TEXTS[self.wire](event) for _, event in self.events)
        return folded(self.events)[0]

    async def begin(self, url: str) -> None:
        """Send a message, and read its stream until the server ends."""
        with suppress(aiohttp.ClientError, grpc.aio.AioRpcError):
            if self.wire == "jsonrpc":
                await self._call(url, "SendStreamingMessage", message("Rivers?"))
            elif self.wire == "http+json":
                await self._read(url, "POST", "/message:stream", message("Rivers?"), VERSION)
            elif self.wire == "grpc":
                await self._read_grpc(url, "SendStreamingMessage", send("Rivers?"))
            else:
                await self._request(url)

    async def resume(self, url: str) -> None:
        """Read the rest of the response from the next server, or the complete response if the stream has no numbers."""
        if self.wire in ("jsonrpc", "http+json", "grpc"):
            task_id, last = self.events[0][1]["task"]["id"], str(self.events[-1][0])
            headers = {**VERSION, "Last-Event-ID": last}
            if self.wire == "jsonrpc":
                await self._call(url, "SubscribeToTask", {"id": task_id}, headers)
            elif self.wire == "http+json":
                await self._read(url, "POST", f"/tasks/{task_id}:subscribe", {}, headers)
            else:
                await self._read_grpc(url, "SubscribeToTask", SubscribeToTaskRequest(id=task_id), last)
        elif self.wire == "responses":
            response_id = self.events[0][1]["response"]["id"]
            last = self.events[-1][1]["sequence_number"]
            await self._read(url, "GET", f"/v1/responses/{response_id}?stream=true&starting_after={last}")
        else:
            self.events = []
            if self.wire == "ai-sdk":
                await self._read(url, "GET", "/ai-sdk/c1/stream")
            else:
                await self._request(url)

    async def _request(self, url: str) -> None:
        path, body = BODIES[self.wire]
        await self._read(url, "POST", path, body, {"Idempotency-Key": self.wire})

    async def _call(
        self, url: str, method: str, params: object, headers: Mapping[str, str] = VERSION
    ) -> None:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        await self._read(url, "POST", "/", body, headers)

    async def _read(
        self, url: str, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> None:
        decoder = SSEDecoder()
        async with aiohttp.ClientSession() as http:
            async with http.request(method, url + path, json=body, headers=headers) as response:
                assert response.status == 200, (self.wire, await response.text())
                async for data in response.content.iter_any():
                    for event in decoder.feed(data):
                        if event.data != b"[DONE]":
                            found = json.loads(event.data)
                            self._take(int(event.id or 0), found["result"] if "jsonrpc" in found else found)

    async def _read_grpc(self, url: str, method: str, request: Any, after: str = "0") -> None:
        metadata = (("a2a-version", "1.0"), *((("last-event-id", after),) if after != "0" else ()))
        async with grpc.aio.insecure_channel(await grpc_address(url)) as channel:
            stub: Any = a2a_pb2_grpc.A2AServiceStub(channel)
            async for event in getattr(stub, method)(request, metadata=metadata):
                self._take(len(self.events) + 1, MessageToDict(event))

    def _take(self, number: int, event: dict[str, Any]) -> None:
        self.events.append((number, event))
        if self.text == PUBLISHED:
            self.is_reached.set()
        self.is_resumed.set()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("kind", ["llamacpp", "openai-background"])
async def test_every_client_has_the_same_text_after_a_restart(
    kind: str, end: signal.Signals, tmp_path: Path
) -> None:
    clients = [Client(wire) for wire in WIRES]
    rest = anyio.Event()

    def respond(request: Received) -> Sequence[Step]:
        server = ContinuingServer(kind, PIECES, ending="silence")
        server.cut = server.first_body.index(b"- Aare")
        head, *body = server.respond(request)
        is_rest = server.prefills or server.attachments
        return [head, Wait(rest), *body] if is_rest else [head, *body]

    async with ScriptedUpstream(respond, lists_models=True) as upstream:
        arguments = arguments_of(tmp_path, upstream, FORMAT_OF[kind], "--grpc-port", "0")
        is_background = str(kind == "openai-background").lower()
        environment = {"TAILRACE_UPSTREAM_BACKGROUND": is_background, "TAILRACE_SHUTDOWN_GRACE": "0"}
        with served(tmp_path / "first.log", *arguments, **environment) as process:
            await process.ready()
            async with anyio.create_task_group() as group:
                for client in clients:
                    group.start_soon(client.begin, process.url)
                for client in clients:
                    await client.is_reached.wait()
                process.process.send_signal(end)
            await anyio.to_thread.run_sync(process.process.wait)
        with served(tmp_path / "second.log", *arguments, **environment) as process:
            await process.ready()
            async with anyio.create_task_group() as group:
                for client in clients:
                    client.is_resumed = anyio.Event()
                    group.start_soon(client.resume, process.url)
                # After the end of the response, the AI SDK has nothing to resume.
                await next(each for each in clients if each.wire == "ai-sdk").is_resumed.wait()
                rest.set()
    assert {client.wire: client.text for client in clients} == dict.fromkeys(WIRES, TEXT)
    for client in clients[:2]:
        numbers = [number for number, _ in client.events]
        assert numbers == list(range(1, len(numbers) + 1))

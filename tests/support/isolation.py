"""Requests to one server as two callers, over every binding."""

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any
from uuid import uuid4

import aiohttp
import grpc
import grpc.aio
from google.protobuf.json_format import MessageToJson, ParseDict
from google.protobuf.message_factory import GetMessageClass

from support.callers import headers_of

MARKER = "marigold"
"""A word that only alice sends."""

TEXT = "thistle"
"""The text that other callers send."""

Fields = dict[str, Any]


@dataclass(frozen=True)
class Ids:
    """The ids that a request may name.

    Attributes:
        task: A completed task.
        waiting: An input-required task.
        running: A working task.
        config: The id of a webhook of `waiting`.
        context: The conversation of these tasks and responses.
        response: A response of the Responses API.
        completion: A stored chat completion.
        item: An item of the conversation, in the Conversations API.
        call: A tool call without a result.
        name: A task of A2A 0.1, as its caller named it.
        key: The idempotency key of a message.
        tenant: The tenant of all of these; the caller's own if empty.
    """

    task: str
    waiting: str
    running: str
    config: str
    context: str
    response: str
    completion: str
    item: str
    call: str
    name: str
    key: str
    tenant: str = ""

    @classmethod
    def unknown(cls, tenant: str = "") -> "Ids":
        """Ids of the same form that do not exist."""
        tasks = {name: str(uuid4()) for name in ("task", "waiting", "running")}
        return cls(
            **tasks,
            **{name: f"{name}-{uuid4().hex}" for name in ("config", "context", "call", "name", "key")},
            response=f"resp_{uuid4()}_1",
            completion=f"chatcmpl-{uuid4()}-1",
            item=f"msg_{uuid4()}_0",
            tenant=tenant,
        )

    @property
    def values(self) -> list[str]:
        """All ids except the tenant."""
        return [getattr(self, each.name) for each in fields(self) if each.name != "tenant"]


@dataclass(frozen=True)
class Answer:
    """A response: the status as a number or gRPC name, the headers, and the body."""

    status: str
    headers: str
    body: str

    @property
    def text(self) -> str:
        """All text that the caller can read."""
        return f"{self.headers}\n{self.body}"


class Client:
    """Sends requests to a server.

    Args:
        http: The HTTP session.
        url: The server's base URL.
        channel: The channel to its gRPC port.
    """

    def __init__(self, http: aiohttp.ClientSession, url: str, channel: grpc.aio.Channel) -> None:
        self._http = http
        self._url = url
        self._channel = channel

    async def http(
        self,
        caller: str,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send an HTTP request; read a stream to its end."""
        given = {**headers_of(caller), **(headers or {})}
        async with self._http.request(method, self._url + path, json=body, headers=given) as response:
            headers_text = "\n".join(f"{name}: {value}" for name, value in response.headers.items())
            return Answer(str(response.status), headers_text, await response.text())

    async def rpc(self, caller: str, version: str, method: str, params: object, **headers: str) -> Answer:
        """Call a JSON-RPC method of one version."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await self.http(caller, "POST", "/", body, {"a2a-version": version, **headers})

    async def grpc(self, caller: str, method: Any, request: Fields, **metadata: str) -> Answer:
        """Call a gRPC method, by its descriptor."""
        path = f"/{method.containing_service.full_name}/{method.name}"
        message = ParseDict(request, GetMessageClass(method.input_type)())
        calls: Any = self._channel
        send = (calls.unary_stream if method.server_streaming else calls.unary_unary)(
            path,
            request_serializer=type(
                message
            ).SerializeToString,  # an error of a serializer sends an empty message
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        given = tuple({**headers_of(caller), **metadata}.items())
        try:
            calling = send(message, metadata=given, timeout=30)
            found = [each async for each in calling] if method.server_streaming else [await calling]
        except grpc.aio.AioRpcError as error:
            return Answer(error.code().name, str(error.trailing_metadata()), error.details() or "")
        return Answer("OK", "", "\n".join(MessageToJson(each) for each in found))


@dataclass(frozen=True)
class Case:
    """A request that names an id.

    Attributes:
        target: The route or method, as `targets_of` lists it.
        name: The location of the id in the request.
        ask: Sends the request as a caller with ids.
        names_ids: Whether the request names one of the ids.
    """

    target: str
    name: str
    ask: Callable[[Client, str, Ids], Awaitable[Answer]]
    names_ids: bool = True


@asynccontextmanager
async def client_of(url: str) -> AsyncGenerator[Client]:
    """Return the client of a server that also serves gRPC at the port in its agent card."""
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{url}/.well-known/agent-card.json") as response:
            card = await response.json()
        [target] = {
            each["url"].rpartition("/")[2]
            for each in card["supportedInterfaces"]
            if each["protocolBinding"] == "GRPC"
        }
        async with grpc.aio.insecure_channel(target) as channel:
            yield Client(http, url, channel)


async def begin(client: Client, caller: str, tenant: str = "") -> Ids:
    """Create one object with each kind of id for a caller, with `MARKER` in its text."""
    prefix = f"/{tenant}" if tenant else ""
    made = Ids.unknown(tenant)

    async def send(text: str, headers: Mapping[str, str] | None = None, **configuration: Any) -> Fields:
        message = {
            "messageId": str(uuid4()),
            "role": "ROLE_USER",
            "parts": [{"text": f"{text} {MARKER}"}],
            "contextId": made.context,
        }
        body = {"message": message, "configuration": configuration}
        sent = await client.http(caller, "POST", f"{prefix}/message:send", body, headers)
        assert sent.status == "200", sent
        return json.loads(sent.body)["task"]

    task = await send("remember", {"idempotency-key": made.key})
    waiting = await send("ask for")
    called = await send(f"call {made.call}")
    assert {waiting["status"]["state"], called["status"]["state"]} == {"TASK_STATE_INPUT_REQUIRED"}
    config = {"id": made.config, "url": "http://127.0.0.1:9/", "token": MARKER}
    path = f"{prefix}/tasks/{waiting['id']}/pushNotificationConfigs"
    created = await client.http(caller, "POST", path, config)
    assert created.status == "200", created
    user_message = {"role": "user", "parts": [{"type": "text", "text": MARKER}]}
    named = await client.rpc(
        caller, "0.1", "tasks/send", {"id": made.name, "sessionId": made.context, "message": user_message}
    )
    assert "completed" in named.body, named
    responses_body = {"model": "", "input": MARKER, "conversation": made.context}
    responded = await client.http(caller, "POST", "/v1/responses", responses_body)
    assert responded.status == "200", responded
    chat = {"model": "", "messages": [{"role": "user", "content": MARKER}], "store": True}
    completed = await client.http(caller, "POST", "/v1/chat/completions", chat)
    assert completed.status == "200", completed
    items = await client.http(caller, "GET", f"/v1/conversations/{made.context}/items")
    assert items.status == "200", items
    # The last task, because the turns of a conversation run one after the other.
    running = await send("hold", returnImmediately=True)
    return Ids(
        task=task["id"],
        waiting=waiting["id"],
        running=running["id"],
        config=made.config,
        context=made.context,
        response=json.loads(responded.body)["id"],
        completion=json.loads(completed.body)["id"],
        item=json.loads(items.body)["data"][0]["id"],
        call=made.call,
        name=made.name,
        key=made.key,
        tenant=tenant,
    )


_VARYING = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"[0-9a-f]{32}"), "HEX"),
    (re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+(Z|\+00:00)"), "TIME"),
    (re.compile(r'"(created|created_at|completed_at|timestamp)": ?[0-9.]+'), "TIME"),
)


def shape_of(answer: Answer, ids: Ids) -> str:
    """The status and the body of a response, without values that differ in each call."""
    body = answer.body
    for value in sorted(ids.values, key=len, reverse=True):
        body = body.replace(value, "ID")
    for pattern, word in _VARYING:
        body = pattern.sub(word, body)
    return f"{answer.status}\n{body}"

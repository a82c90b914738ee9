"""The JSON-RPC binding of A2A 1.0 (section 9 of its specification).

Checks go from the outside in: media type, JSON, envelope, method, version, parameters. Every error is a JSON-RPC
error object in an HTTP 200 response, but for a request that is not JSON-RPC at all (wrong media type, too large).
"""

import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar, cast

import msgspec
from fastapi import Request, Response
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from tailrace.server.card import PROTOCOL_VERSION
from tailrace.server.engine import Engine
from tailrace.server.live import Subscription
from tailrace.server.settings import Settings
from tailrace.server.sse import frame_data, frame_events, sse_response
from tailrace.streaming.a2a.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    MethodNotFoundError,
    ParseError,
    VersionNotSupportedError,
)
from tailrace.streaming.a2a.models import (
    A2AModel,
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    SendMessageRequest,
    SendMessageResponse,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
)
from tailrace.streaming.extension import EXTENSION_URI
from tailrace.streaming.task import Event
from tailrace.wrappers import ProtocolError, StoreError

logger = logging.getLogger("tailrace.server")

JsonRpcId = str | int | float | None
Params = TypeVar("Params", bound=A2AModel)


class JsonRpcBinding:
    """Answers JSON-RPC requests out of an engine.

    Args:
        engine: What answers.
        settings: Limits and intervals.
    """

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._methods: Mapping[str, Callable[[Request, JsonRpcId, object], Awaitable[Response]]] = {
            "SendMessage": self._send_message,
            "SendStreamingMessage": self._send_streaming_message,
            "GetTask": self._get_task,
            "CancelTask": self._cancel_task,
            "SubscribeToTask": self._subscribe_to_task,
        }

    async def handle(self, request: Request) -> Response:
        """Answer one HTTP request: a JSON-RPC response, or an SSE stream of them."""
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type not in ("application/json", "application/a2a+json"):
            return Response("A JSON-RPC request has Content-Type: application/json\n", 415)
        try:
            body = await self._read_body(request)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        if body is None:
            limit = self._settings.max_request_bytes
            return Response(f"The request is larger than the allowed {limit} bytes\n", 413)
        request_id: JsonRpcId = None
        try:
            envelope = _parse(body)
            request_id = _request_id(envelope)
            method = self._method(envelope)
            _check_version(request)
            return await method(request, request_id, envelope.get("params", {}))
        except Exception as error:
            return _json_response(request, {"id": request_id, "error": _as_a2a_error(error).to_jsonrpc()})

    def _method(self, envelope: Mapping[str, Any]) -> Callable[..., Awaitable[Response]]:
        name = envelope.get("method")
        if envelope.get("jsonrpc") != "2.0":
            raise InvalidRequestError('"jsonrpc" must be "2.0"')
        if not isinstance(name, str):
            raise InvalidRequestError('"method" must be a string')
        method = self._methods.get(name)
        if method is None:
            raise MethodNotFoundError(repr(name))
        return method

    async def _read_body(self, request: Request) -> bytes | None:
        limit = self._settings.max_request_bytes
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                return None
        return bytes(body)

    # --- methods ------------------------------------------------------------------------------------------------

    async def _send_message(self, request: Request, request_id: JsonRpcId, params: object) -> Response:
        send = _params(SendMessageRequest, params)
        started = await self._engine.start(send)
        if isinstance(started, Message):
            return _result(request, request_id, SendMessageResponse(message=started))
        async with aclosing(started.batches(until_interrupted=True)) as batches:
            async for _ in batches:
                if send.configuration.return_immediately:
                    break
        task = await self._engine.get_task(started.task_id, history_length=send.configuration.history_length)
        return _result(request, request_id, SendMessageResponse(task=task))

    async def _send_streaming_message(
        self, request: Request, request_id: JsonRpcId, params: object
    ) -> Response:
        send = _params(SendMessageRequest, params)
        started = await self._engine.start(send)
        if isinstance(started, Message):
            body = StreamResponse(message=started).to_json()
            return self._stream(request, _once(frame_data(_head(request_id) + body + b"}")))
        length = send.configuration.history_length
        return self._stream(
            request, self._frames(started, request_id, history_length=length, until_interrupted=True)
        )

    async def _get_task(self, request: Request, request_id: JsonRpcId, params: object) -> Response:
        get = _params(GetTaskRequest, params)
        task = await self._engine.get_task(get.id, history_length=get.history_length)
        return _result(request, request_id, task)

    async def _cancel_task(self, request: Request, request_id: JsonRpcId, params: object) -> Response:
        cancel = _params(CancelTaskRequest, params)
        return _result(request, request_id, await self._engine.cancel_task(cancel.id))

    async def _subscribe_to_task(self, request: Request, request_id: JsonRpcId, params: object) -> Response:
        subscribe = _params(SubscribeToTaskRequest, params)
        subscription = await self._engine.subscribe(subscribe.id, after=_cursor(request))
        return self._stream(request, self._frames(subscription, request_id))

    # --- streams ------------------------------------------------------------------------------------------------

    async def _frames(
        self,
        subscription: Subscription,
        request_id: JsonRpcId,
        *,
        history_length: int | None = None,
        until_interrupted: bool = False,
    ) -> AsyncIterator[bytes]:
        head = _head(request_id)
        try:
            async with aclosing(subscription.batches(until_interrupted=until_interrupted)) as batches:
                async for events in batches:
                    if history_length is not None and events[0].body.startswith(b'{"task":'):
                        events = [_shorten_history(events[0], history_length), *events[1:]]
                    yield frame_events(events, head, b"}")
        except StoreError as error:
            yield frame_data(_encode({"id": request_id, "error": _as_a2a_error(error).to_jsonrpc()}))

    def _stream(self, request: Request, frames: AsyncIterator[bytes]) -> Response:
        return sse_response(
            frames,
            ping_interval=self._settings.ping_interval,
            send_timeout=self._settings.send_timeout,
            headers=_extension_header(request),
            stopping=self._engine.stop_requested,
        )


async def _once(frame: bytes) -> AsyncIterator[bytes]:
    yield frame


def _parse(body: bytes) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            # Takes lone surrogates, which the models then mend.
            value = json.loads(body, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ParseError(str(error)) from None
    if isinstance(value, list):
        raise InvalidRequestError("batches are not supported; send one request at a time")
    if not isinstance(value, dict):
        raise InvalidRequestError("a JSON-RPC request is a JSON object")
    return cast("Mapping[str, Any]", value)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _request_id(envelope: Mapping[str, Any]) -> JsonRpcId:
    value = envelope.get("id")
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise InvalidRequestError('"id" must be a string, a number or null')
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequestError('"id" is too large a number')
    return value


def _check_version(request: Request) -> None:
    """The version asked for, by header or query; without one, the method's name has said which it is."""
    asked = request.headers.get("a2a-version") or request.query_params.get("A2A-Version") or ""
    if not asked:
        return
    major_minor = ".".join(asked.strip().split(".")[:2])
    if major_minor != PROTOCOL_VERSION:
        raise VersionNotSupportedError(
            f"{asked!r}; supported: {PROTOCOL_VERSION}", metadata={"supportedVersions": PROTOCOL_VERSION}
        )


def _params(model: type[Params], params: object) -> Params:
    if not isinstance(params, Mapping):
        raise InvalidParamsError('"params" must be an object')
    try:
        return model.model_validate(dict(cast("Mapping[str, Any]", params)))
    except ValidationError as error:
        raise InvalidParamsError.from_validation(error) from None


def _cursor(request: Request) -> int | None:
    """The number after which a stream goes on: ``Last-Event-ID``, as a browser sends it."""
    value = request.headers.get("last-event-id", "").strip()
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 16):
        raise InvalidParamsError(f"Last-Event-ID must be the id of an event of this task, not {value!r}")
    return int(value)


def _as_a2a_error(error: Exception) -> A2AError:
    if isinstance(error, A2AError):
        return error
    if isinstance(error, ProtocolError):
        return InvalidParamsError(str(error))
    if isinstance(error, StoreError):
        logger.error("%s", error)
        return InternalError("the task store does not work at present; try again later")
    logger.exception("a request failed", exc_info=error)
    return InternalError()


def _shorten_history(event: Event, length: int) -> Event:
    task = StreamResponse.model_validate_json(event.body).task
    if task is None:
        return event
    history = task.history[-length:] if length else ()
    short = task.model_copy(update={"history": history})
    return Event(event.number, StreamResponse(task=short).to_json(), event.state)


def _head(request_id: JsonRpcId) -> bytes:
    """The opening of a JSON-RPC response up to its result, which a closing brace completes."""
    return b'{"jsonrpc":"2.0","id":' + _encode_any(request_id) + b',"result":'


def _encode(fields: Mapping[str, Any]) -> bytes:
    return _encode_any({"jsonrpc": "2.0", **fields})


def _encode_any(value: object) -> bytes:
    # ASCII only: an id may hold anything, and no reader may trip over it.
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _result(request: Request, request_id: JsonRpcId, result: SendMessageResponse | Task) -> Response:
    body = _head(request_id) + result.to_json() + b"}"
    return Response(body, media_type="application/json", headers=_extension_header(request))


def _json_response(request: Request, fields: Mapping[str, Any]) -> Response:
    return Response(_encode(fields), media_type="application/json", headers=_extension_header(request))


def _extension_header(request: Request) -> dict[str, str]:
    """The extensions that this answer uses, of those the client asked for (A2A 1.0, section 3.2.6)."""
    asked = {uri.strip() for uri in request.headers.get("a2a-extensions", "").split(",")}
    return {"A2A-Extensions": EXTENSION_URI} if EXTENSION_URI in asked else {}

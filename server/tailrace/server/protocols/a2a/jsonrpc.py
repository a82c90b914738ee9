"""The JSON-RPC binding of A2A: all versions have the same URL (A2A 1.0, section 9; A2A 0.3, section 3.2.1).

A request is checked in this order: authentication, media type, JSON, envelope, method, version, parameters. Most errors have HTTP
status 200. The exceptions are 415 (the media type is not JSON), 413 (body too large), 408 (body too slow), 503 (the server stops
before the body is complete), and errors of authentication.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from tailrace.server.auth.authentication import Authenticator, Identity
from tailrace.server.http.error_responses import Problem, as_a2a_error, encode_ascii, error_headers
from tailrace.server.http.request_body import JsonBody, read_json
from tailrace.server.http.request_headers import (
    accepts,
    credentials_of,
    cursor_of,
    extension_headers,
    requested_extensions,
    requested_version,
)
from tailrace.server.http.sse import EventFrames, EventResponse, frame_data
from tailrace.server.runtime.auth_error import AuthError
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.operations import Operations
from tailrace.server.settings import Settings
from tailrace.streaming.a2a.errors import (
    A2AError,
    InvalidParamsError,
    InvalidRequestError,
    MethodNotFoundError,
    ParseError,
    VersionNotSupportedError,
)
from tailrace.streaming.a2a.json_value_counts import cost_of_result
from tailrace.streaming.a2a.version_codec import Dialect, Operation
from tailrace.wrappers import StoreError
from tailrace.wrappers.concurrency.worker_thread import run_bounded
from tailrace.wrappers.messages import join_surrogates, shortened

JsonRpcId = str | int | float | None

MAX_ID_BYTES = 256
"""Maximum bytes of the id of a request, as ASCII JSON without quotation marks.

Every event of a stream contains the id. A stream sends up to 512 KiB of events at once (``unread_bytes`` of `TaskLog`). If the
events are small, the ids are larger than the events, and add up to 1 MB.
"""


class JsonRpcBinding:
    """Handles JSON-RPC requests.

    Args:
        dialects: The supported versions. If several versions have a method, the first one is the default.
    """

    def __init__(
        self,
        operations: Operations,
        settings: Settings,
        authenticator: Authenticator,
        dialects: Sequence[Dialect],
    ) -> None:
        self._operations = operations
        self._authenticator = authenticator
        self._settings = settings
        self._dialects = dialects

    async def handle(self, request: Request) -> Response:
        """Return the response to one HTTP request: a JSON-RPC response, or an SSE stream of them."""
        try:
            identity = await self._authenticator.authenticate(credentials_of(request))
        except AuthError as error:
            return Problem.of(error).response()
        except Exception as error:  # an authenticator may raise any error
            failed = as_a2a_error(error)
            answer = _encode({"id": None, "error": failed.to_jsonrpc()})
            return Response(
                answer, failed.http_status, headers=error_headers(failed), media_type="application/json"
            )
        try:
            body = await read_json(request, self._settings)
        except ClientDisconnect:
            return Response(status_code=400)  # the client does not receive it
        except A2AError as error:
            a2a_error = as_a2a_error(error)
            answer = _encode({"id": None, "error": a2a_error.to_jsonrpc()})
            # For a complete body that is not JSON (`ParseError`), JSON-RPC has status 200.
            status = 200 if isinstance(a2a_error, ParseError) else a2a_error.http_status
            return Response(answer, status, headers=error_headers(a2a_error), media_type="application/json")
        request_id: JsonRpcId = None
        dialect = self._dialects[0]
        extensions = self._operations.capabilities.activated(requested_extensions(request))
        headers = extension_headers(request, extensions)
        as_stream = False
        try:
            envelope = _envelope(body)
            request_id = _request_id(envelope)
            dialects, name = self._find_dialects(envelope, request)
            dialect = dialects[0]
            params = envelope.get("params", {})
            if not isinstance(params, Mapping):
                raise InvalidParamsError('"params" must be an object')
            fields = cast("Mapping[str, Any]", params)
            if len(dialects) > 1:
                dialect = await self._dialect_of_task(dialects, fields.get("id"), identity)
            operation = dialect.methods[name]
            as_stream = operation.streams and dialect.streams_errors and accepts(request, "text/event-stream")
            message = await run_bounded(body.cost, dialect.read_request, operation, fields)
            caller = Caller(
                user=identity.user,
                tenant=getattr(message, "tenant", ""),
                version_of_chosen_ids=dialect.version if dialect.clients_create_task_ids else "",
                protocol_version=dialect.version,
                extensions=extensions,
                send_key=request.headers.get("idempotency-key", ""),
                cost=body.cost,
                claims=identity.claims,
                namespace=identity.namespace,
            )
            if operation.streams:
                after = cursor_of(request) if operation is Operation.SUBSCRIBE_TO_TASK else None
                stream = await self._operations.stream(
                    operation, message, caller, after=after, repeat_finished=dialect.subscribes_to_ended_tasks
                )
                frames = EventFrames(
                    stream,
                    dialect,
                    partial(_write_failure, dialect, request_id),
                    self._operations.stopping,
                    head=_head(request_id),
                    tail=b"}",
                )
                return EventResponse(
                    frames, settings=self._settings, headers=headers, streams=self._operations.streams
                )
            result = await self._operations.execute(operation, message, caller)
            written = await run_bounded(cost_of_result(result), dialect.write_result, operation, result)
            answer = _head(request_id) + written + b"}"
        except AuthError as error:
            return Problem.of(error).response()
        except Exception as error:
            a2a_error = as_a2a_error(error)
            headers |= error_headers(a2a_error)
            answer = _encode({"id": request_id, "error": dialect.write_error(a2a_error)})
            if as_stream:
                return Response(frame_data(answer), media_type="text/event-stream", headers=headers)
        return Response(answer, media_type="application/json", headers=headers)

    def _find_dialects(self, envelope: Mapping[str, Any], request: Request) -> tuple[list[Dialect], str]:
        name = envelope.get("method")
        if envelope.get("jsonrpc") != "2.0":
            raise InvalidRequestError('"jsonrpc" must be "2.0"')
        if not isinstance(name, str):
            raise InvalidRequestError('"method" must be a string')
        dialects = [dialect for dialect in self._dialects if name in dialect.methods]
        if not dialects:
            raise MethodNotFoundError(shortened(name))
        requested = requested_version(request)
        if requested and requested not in {dialect.version for dialect in self._dialects}:
            known = ", ".join(dialect.version for dialect in self._dialects)
            raise VersionNotSupportedError(
                f"{shortened(requested)}; supported: {known}", metadata={"supportedVersions": known}
            )
        dialects = [dialect for dialect in dialects if requested in ("", dialect.version)]
        if not dialects:
            raise MethodNotFoundError(f"{shortened(name)} is not a method of version {requested}")
        return dialects, name

    async def _dialect_of_task(
        self, dialects: Sequence[Dialect], task_id: object, identity: Identity
    ) -> Dialect:
        """Return the dialect in which a task was created, or the first dialect if the list does not contain that dialect."""
        if not isinstance(task_id, str):
            return dialects[0]
        version = await self._operations.dialect_of(
            join_surrogates(task_id), Caller(identity.user, namespace=identity.namespace)
        )
        return next((dialect for dialect in dialects if dialect.version == version), dialects[0])


def _envelope(body: JsonBody) -> Mapping[str, Any]:
    value = body.value
    if isinstance(value, list):
        raise InvalidRequestError("batches are not supported; send one request at a time")
    if not isinstance(value, dict):
        raise InvalidRequestError("a JSON-RPC request is a JSON object")
    return cast("Mapping[str, Any]", value)


def _request_id(envelope: Mapping[str, Any]) -> JsonRpcId:
    value = envelope.get("id")
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise InvalidRequestError('"id" must be a string, a number or null')
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequestError('"id" is too large a number')
    if isinstance(value, str) and (len(value) > MAX_ID_BYTES or len(encode_ascii(value)) > MAX_ID_BYTES + 2):
        raise InvalidRequestError(f'"id" has more than {MAX_ID_BYTES} characters, encoded in ASCII')
    return value


def _head(request_id: JsonRpcId) -> bytes:
    return b'{"jsonrpc":"2.0","id":' + encode_ascii(request_id) + b',"result":'


def _encode(fields: Mapping[str, Any]) -> bytes:
    return encode_ascii({"jsonrpc": "2.0", **fields})


def _write_failure(dialect: Dialect, request_id: JsonRpcId, error: StoreError) -> bytes:
    return _encode({"id": request_id, "error": dialect.write_error(as_a2a_error(error))})

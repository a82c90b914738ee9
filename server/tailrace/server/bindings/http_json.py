"""The HTTP+JSON binding of A2A, and the address for a browser's EventSource.

Every operation has an address of its own. What stands in the path wins over the same field in the body. Errors are
always ``application/json``.

The binding is the same for every version; what differs is a `Version`: its addresses, its dialect and the form of its
errors. That of 1.0 (section 11 of its specification) is here; there the addresses are with and without a tenant before
them, and errors are ``google.rpc.Status``. That of 0.3 is in `tailrace.server.bindings.http_json_v0_3`.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from tailrace.server.auth import API_KEY_QUERY, TOKEN_QUERY, Authenticator
from tailrace.server.bindings.http import (
    EXTENSIONS_QUERY,
    Problem,
    asked_extensions,
    asked_version,
    credentials_of,
    cursor_of,
    extension_headers,
    is_json,
    read_body,
)
from tailrace.server.caching import cached_response
from tailrace.server.operations import Caller, Operations
from tailrace.server.settings import Settings
from tailrace.server.sse import Framing, farewell, frame_data, sse_response
from tailrace.streaming.a2a.dialect import Dialect, Operation
from tailrace.streaming.a2a.errors import InvalidParamsError, ParseError, VersionNotSupportedError
from tailrace.streaming.a2a.v1_0 import Version10
from tailrace.wrappers import StoreError


@dataclass(frozen=True)
class Route:
    """An address of an operation.

    Attributes:
        method: The HTTP method.
        path: The path, with the names of the request's fields in braces.
        operation: What is asked there.
        ends: The stream ends with an explicit event ``end``, so that an EventSource need not reconnect for nothing.
    """

    method: str
    path: str
    operation: Operation
    ends: bool = False


@dataclass(frozen=True)
class Version:
    """A version of the protocol as this binding speaks it.

    Attributes:
        dialect: Reads requests, writes results and events.
        routes: Its addresses.
        prefixes: What may stand before each of them.
        write_problem: The body of a response that is an error.
    """

    dialect: Dialect
    routes: Sequence[Route]
    prefixes: Sequence[str] = ("",)
    write_problem: Callable[[Problem], bytes] = Problem.body


ROUTES = (
    Route("POST", "/message:send", Operation.SEND_MESSAGE),
    Route("POST", "/message:stream", Operation.SEND_STREAMING_MESSAGE),
    Route("GET", "/tasks", Operation.LIST_TASKS),
    Route("POST", "/tasks/{id}:cancel", Operation.CANCEL_TASK),
    Route("POST", "/tasks/{id}:subscribe", Operation.SUBSCRIBE_TO_TASK),
    Route("GET", "/tasks/{id}:subscribe", Operation.SUBSCRIBE_TO_TASK, ends=True),
    Route("POST", "/tasks/{taskId}/pushNotificationConfigs", Operation.CREATE_PUSH_CONFIG),
    Route("GET", "/tasks/{taskId}/pushNotificationConfigs", Operation.LIST_PUSH_CONFIGS),
    Route("GET", "/tasks/{taskId}/pushNotificationConfigs/{id}", Operation.GET_PUSH_CONFIG),
    Route("DELETE", "/tasks/{taskId}/pushNotificationConfigs/{id}", Operation.DELETE_PUSH_CONFIG),
    Route("GET", "/tasks/{id}", Operation.GET_TASK),
    Route("GET", "/extendedAgentCard", Operation.GET_EXTENDED_CARD),
    Route("GET", "/conversations/{contextId}", Operation.GET_CONVERSATION),
)

# Those without a tenant come first: the others would match them too.
VERSION_1_0 = Version(Version10(), ROUTES, prefixes=("", "/{tenant}"))

# Query parameters that are not fields of a request.
_NOT_FIELDS = frozenset({"A2A-Version", EXTENSIONS_QUERY, "after", API_KEY_QUERY, TOKEN_QUERY})
_NUMBERS = frozenset({"historyLength", "pageSize", "history_length", "page_size"})
_FLAGS = frozenset({"includeArtifacts", "include_artifacts"})

# The headers that say who asks, and in which version.
_CREDENTIALS = "Authorization, X-API-Key, Cookie, A2A-Version"


class HttpJsonBinding:
    """Answers requests to the addresses of one version.

    Args:
        operations: What carries them out.
        settings: Limits and intervals.
        authenticator: Says who asks.
        version: The version that is spoken.
    """

    def __init__(
        self, operations: Operations, settings: Settings, authenticator: Authenticator, version: Version
    ) -> None:
        self._operations = operations
        self._authenticator = authenticator
        self._settings = settings
        self._dialect = version.dialect
        self._version = version

    def add_to(self, router: APIRouter) -> None:
        """Put all addresses into a router."""
        for prefix in self._version.prefixes:
            for route in self._version.routes:
                router.add_api_route(
                    prefix + route.path,
                    self._endpoint(route),
                    methods=[route.method],
                    include_in_schema=False,
                )

    def _endpoint(self, route: Route) -> Any:
        async def endpoint(request: Request) -> Response:
            return await self._handle(request, route)

        return endpoint

    async def _handle(self, request: Request, route: Route) -> Response:
        extensions = self._operations.offer.activated(asked_extensions(request))
        headers = extension_headers(request, extensions)
        try:
            response = await self._answer(request, route, extensions)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except _Unreadable as error:
            response = self._refuse(error.problem)
        except Exception as error:
            response = self._refuse(Problem.of(error))
        response.headers.update(headers)
        return response

    async def _answer(self, request: Request, route: Route, extensions: tuple[str, ...]) -> Response:
        identity = await self._authenticator.authenticate(credentials_of(request))
        operation = route.operation
        self._check_version(request)
        asked = self._dialect.read_request(operation, await self._fields(request))
        caller = Caller(
            identity.user,
            getattr(asked, "tenant", ""),
            speaks=self._dialect.version,
            extensions=extensions,
            send_key=request.headers.get("idempotency-key", ""),
        )
        if operation.streams:
            stream = await self._operations.stream(
                operation,
                asked,
                caller,
                after=cursor_of(request) if operation is Operation.SUBSCRIBE_TO_TASK else None,
                repeat_finished=self._dialect.repeats_finished,
            )
            framing = Framing(stream, self._dialect)
            return sse_response(
                self._frames(framing, ends=route.ends),
                settings=self._settings,
                headers={},
                streams=self._operations.streams,
                framing=framing,
            )
        result = await self._operations.answer(operation, asked, caller)
        body = self._dialect.write_result(operation, result)
        if operation is Operation.GET_EXTENDED_CARD:
            return cached_response(request, body, private=True, vary=_CREDENTIALS)
        return Response(body, media_type=_media_type(request))

    def _check_version(self, request: Request) -> None:
        asked = asked_version(request)
        if asked not in ("", self._dialect.version):
            raise VersionNotSupportedError(
                f"{asked!r}; supported: {self._dialect.version}",
                metadata={"supportedVersions": self._dialect.version},
            )

    async def _fields(self, request: Request) -> dict[str, Any]:
        """The request's fields: of its body or its query, under those of its path."""
        fields: dict[str, Any] = {}
        if request.method == "POST":
            fields |= await self._body(request)
        else:
            for name in request.query_params:
                if name not in _NOT_FIELDS:
                    fields[name] = _query_value(name, request.query_params[name])
        return fields | request.path_params

    async def _body(self, request: Request) -> Mapping[str, Any]:
        if not is_json(request) and _has_body(request):
            raise _Unreadable(
                415, "ContentTypeNotSupportedError", "A request has Content-Type: application/json"
            )
        body = await read_body(request, self._settings.max_request_bytes)
        if not body.strip():
            return {}
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ParseError(str(error)) from None
        if not isinstance(value, dict):
            raise InvalidParamsError("the body must be a JSON object")
        return cast("Mapping[str, Any]", value)

    async def _frames(self, framing: Framing, *, ends: bool) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(framing.stream.batches()) as batches:
                async for events in batches:
                    yield framing.frame(events)
        except StoreError as error:
            yield frame_data(self._version.write_problem(Problem.of(error)))
            return
        if self._operations.stopping.is_set():
            yield farewell()
            ends = ends and framing.closed  # else it is to come back
        if ends:
            yield b"event: end\ndata: {}\n\n"

    def _refuse(self, problem: Problem) -> Response:
        body = self._version.write_problem(problem)
        return Response(body, problem.code, headers=problem.headers, media_type="application/json")


class _Unreadable(Exception):
    """A request whose body is not looked at, for a reason that only HTTP has a word for."""

    def __init__(self, code: int, name: str, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(code, "INVALID_ARGUMENT", name, message)


def _query_value(name: str, value: str) -> object:
    """A query parameter in the type that its field has; what is not of that type is left for the field to refuse."""
    if name in _NUMBERS and value.lstrip("-").isdigit():
        return int(value)
    if name in _FLAGS and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value


def _has_body(request: Request) -> bool:
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


def _media_type(request: Request) -> str:
    """As the client speaks: ``application/a2a+json`` for one that names it, else what every client takes."""
    named = request.headers.get("content-type", "") + request.headers.get("accept", "")
    return "application/a2a+json" if "application/a2a+json" in named else "application/json"

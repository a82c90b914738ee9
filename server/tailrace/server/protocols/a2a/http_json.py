"""The HTTP+JSON binding of A2A, and a route for EventSource in browsers.

Values in the path override members of the body with the same name. The media type of errors is always ``application/json``.

`Version` contains the differences between protocol versions. This module defines version 1.0 (section 11 of the specification).
Each route exists with and without a tenant as its prefix. Errors are ``google.rpc.Status``.
`tailrace.server.protocols.a2a.http_json_v0_3` defines version 0.3.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from tailrace.server.auth.authentication import API_KEY_QUERY, TOKEN_QUERY, Authenticator
from tailrace.server.http.caching import cached_response
from tailrace.server.http.error_responses import Problem
from tailrace.server.http.request_body import read_json
from tailrace.server.http.request_headers import (
    EXTENSIONS_QUERY,
    accepts,
    credentials_of,
    cursor_of,
    extension_headers,
    requested_extensions,
    requested_version,
)
from tailrace.server.http.sse import EventFrames, EventResponse
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.operations import Operations
from tailrace.server.settings import Settings
from tailrace.streaming.a2a.errors import VersionNotSupportedError
from tailrace.streaming.a2a.json_value_counts import cost_of_result
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.a2a.v1_0 import Version10
from tailrace.streaming.a2a.version_codec import Dialect, Operation
from tailrace.wrappers import StoreError
from tailrace.wrappers.concurrency.worker_thread import run_bounded
from tailrace.wrappers.messages import shortened


@dataclass(frozen=True)
class Route:
    """A route of an operation.

    Attributes:
        path: The path. Names in braces are members of the request.
        for_event_source: True for EventSource in browsers, which reconnects when a stream ends. If the request activates the
            extension, the last event of the stream has the type ``end``, so that the page can close the EventSource. Other
            clients may treat this event as an event of the task, so it is not sent without the extension. An EventSource that
            reconnects after the last event of the task gets 204 (No Content), and stops.
    """

    method: str
    path: str
    operation: Operation
    for_event_source: bool = False


@dataclass(frozen=True)
class Version:
    """A version of the protocol over HTTP+JSON.

    Attributes:
        dialect: Decodes requests, and encodes results and events.
        prefixes: Each route exists with each of these prefixes.
        write_problem: Encodes the body of an error response.
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
    Route("GET", "/tasks/{id}:subscribe", Operation.SUBSCRIBE_TO_TASK, for_event_source=True),
    Route("POST", "/tasks/{taskId}/pushNotificationConfigs", Operation.CREATE_PUSH_CONFIG),
    Route("GET", "/tasks/{taskId}/pushNotificationConfigs", Operation.LIST_PUSH_CONFIGS),
    Route("GET", "/tasks/{taskId}/pushNotificationConfigs/{id}", Operation.GET_PUSH_CONFIG),
    Route("DELETE", "/tasks/{taskId}/pushNotificationConfigs/{id}", Operation.DELETE_PUSH_CONFIG),
    Route("GET", "/tasks/{id}", Operation.GET_TASK),
    Route("GET", "/extendedAgentCard", Operation.GET_EXTENDED_CARD),
    Route("DELETE", "/tasks/{id}", Operation.DELETE_TASK),
    Route("GET", "/conversations", Operation.LIST_CONVERSATIONS),
    Route("GET", "/conversations/{contextId}", Operation.GET_CONVERSATION),
    Route("PATCH", "/conversations/{contextId}", Operation.RENAME_CONVERSATION),
    Route("DELETE", "/conversations/{contextId}", Operation.DELETE_CONVERSATION),
)

# Routes without a tenant come first, because routes with a tenant would also match their paths.
VERSION_1_0 = Version(Version10(), ROUTES, prefixes=("", "/{tenant}"))

METHODS_WITH_BODY = ("POST", "PATCH")

# Query parameters that are not members of a request.
_NOT_FIELDS = frozenset({"A2A-Version", EXTENSIONS_QUERY, "after", API_KEY_QUERY, TOKEN_QUERY})
_NUMBERS = frozenset({"historyLength", "pageSize", "history_length", "page_size"})
_NUMBER = re.compile(r"-?[0-9]{1,10}")
_FLAGS = frozenset(
    {"includeArtifacts", "include_artifacts", "omitTaskFiles", "omit_task_files", "omitFiles", "omit_files"}
)

# The value of ``Vary``: the headers with credentials or the protocol version.
_CREDENTIALS = "Authorization, X-API-Key, Cookie, A2A-Version"


class HttpJsonBinding:
    """Handles the requests to the routes of one version."""

    def __init__(
        self, operations: Operations, settings: Settings, authenticator: Authenticator, version: Version
    ) -> None:
        self._operations = operations
        self._authenticator = authenticator
        self._settings = settings
        self._dialect = version.dialect
        self._version = version

    def add_to(self, router: APIRouter) -> None:
        """Add the routes to a router."""
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
        extensions = self._operations.capabilities.activated(requested_extensions(request))
        headers = extension_headers(request, extensions)
        try:
            response = await self._handle_operation(request, route, extensions)
        except ClientDisconnect:
            return Response(status_code=400)  # the client does not receive it
        except Exception as error:
            response = self._error_response(Problem.of(error))
        response.headers.update(headers)
        return response

    async def _handle_operation(
        self, request: Request, route: Route, extensions: tuple[str, ...]
    ) -> Response:
        identity = await self._authenticator.authenticate(credentials_of(request))
        operation = route.operation
        self._check_version(request)
        dialect = self._dialect.for_client(request.headers.get("user-agent", ""))
        cost, fields = await self._fields(request)
        message = await run_bounded(cost, dialect.read_request, operation, fields)
        caller = Caller(
            identity.user,
            getattr(message, "tenant", ""),
            protocol_version=dialect.version,
            extensions=extensions,
            send_key=request.headers.get("idempotency-key", ""),
            cost=cost,
            claims=identity.claims,
            namespace=identity.namespace,
        )
        if operation.streams:
            after = cursor_of(request) if operation is Operation.SUBSCRIBE_TO_TASK else None
            ends = route.for_event_source and EXTENSION_URI in extensions
            if route.for_event_source and not ends and after is not None:
                if await self._operations.has_ended_at(request.path_params["id"], caller, after):
                    return Response(status_code=204)
            stream = await self._operations.stream(
                operation, message, caller, after=after, repeat_finished=dialect.subscribes_to_ended_tasks
            )
            frames = EventFrames(stream, dialect, self._write_failure, self._operations.stopping, ends=ends)
            return EventResponse(
                frames, settings=self._settings, headers={}, streams=self._operations.streams
            )
        result = await self._operations.execute(operation, message, caller)
        body = await run_bounded(cost_of_result(result), dialect.write_result, operation, result)
        if operation is Operation.GET_EXTENDED_CARD:
            return cached_response(request, body, private=True, vary=_CREDENTIALS)
        return Response(body, media_type=_media_type(request))

    def _check_version(self, request: Request) -> None:
        requested = requested_version(request)
        if requested not in ("", self._dialect.version):
            raise VersionNotSupportedError(
                f"{shortened(requested)}; supported: {self._dialect.version}",
                metadata={"supportedVersions": self._dialect.version},
            )

    async def _fields(self, request: Request) -> tuple[int, dict[str, Any]]:
        if request.method not in METHODS_WITH_BODY:
            query = request.query_params
            fields = {name: _query_value(name, query[name]) for name in query if name not in _NOT_FIELDS}
            return len(fields), fields | request.path_params
        body = await read_json(request, self._settings, optional=True)
        return body.cost, body.members | request.path_params

    def _write_failure(self, error: StoreError) -> bytes:
        return self._version.write_problem(Problem.of(error))

    def _error_response(self, problem: Problem) -> Response:
        body = self._version.write_problem(problem)
        return Response(body, problem.code, headers=problem.headers, media_type="application/json")


def _query_value(name: str, value: str) -> object:
    if name in _NUMBERS and _NUMBER.fullmatch(value):
        return int(value)
    if name in _FLAGS and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value


def _media_type(request: Request) -> str:
    media_type = "application/a2a+json"
    named = media_type in request.headers.get("content-type", "") or accepts(request, media_type)
    return media_type if named else "application/json"

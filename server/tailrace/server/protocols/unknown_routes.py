"""Errors for unknown paths (404) and unsupported methods (405), in the format of the protocol.

Only `create_app` installs these handlers, not `create_router`.
"""

import re
from collections.abc import Sequence
from typing import cast

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import Scope

from tailrace.server.http.error_responses import Problem
from tailrace.server.observability.query_secrets import redact_query
from tailrace.server.protocols.a2a.http_json_v0_3 import write_problem
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.wrappers.messages import clipped

_AGENT = re.compile(r"^/agents/[^/]+(?=/|$)")
"""The path prefix of an agent on a server with several agents."""

_OPENAI_PREFIX = "/v1/"
# HTTP+JSON of A2A 0.3.
_OLD_PREFIXES = ("/v1/message", "/v1/tasks", "/v1/card")


def add_unknown_route_handlers(app: FastAPI, *, has_openai_api: bool) -> None:
    """Install error handlers for 404 and 405. The path determines the format of the error.

    Args:
        app: The application.
        has_openai_api: Whether the application has the routes of the OpenAI-compatible API.
    """

    async def respond(request: Request, error: Exception) -> Response:
        failure = cast("HTTPException", error)
        redact_query(request.scope)
        path = request.url.path
        shown = clipped(path)
        if failure.status_code == 404:
            problem = Problem(404, "NOT_FOUND", "NotFoundError", f"There is no resource at {shown}")
        elif failure.status_code == 405:
            # `matches` needs the scope without the path prefix of the mounted agent.
            scope = {**request.scope, "root_path": _AGENT.sub("", request.scope["root_path"])}
            allowed = ", ".join(sorted(_methods_at(scope, app.routes)))
            message = f"{shown} does not support {request.method}; supported: {allowed}"
            problem = Problem(
                405, "UNIMPLEMENTED", "MethodNotAllowedError", message, headers={"Allow": allowed}
            )
        else:
            return await http_exception_handler(request, failure)
        path = _AGENT.sub("", path)
        if path.startswith(_OLD_PREFIXES):
            body = write_problem(problem)
        elif has_openai_api and path.startswith(_OPENAI_PREFIX):
            body = OpenAIError(problem.code, problem.message).body()
        else:
            body = problem.body()
        return Response(body, problem.code, headers=problem.headers, media_type="application/json")

    app.add_exception_handler(HTTPException, respond)


def _methods_at(scope: Scope, routes: Sequence[BaseRoute]) -> set[str]:
    """Return all methods that a path supports. Each method has a separate route.

    A path can also match the parameter of another route (``/tasks/{id}`` matches ``/tasks/1:cancel``). Therefore, only routes
    with the path template of the first matching route count.
    """
    found: set[str] = set()
    path = None
    for route in routes:
        match, child = route.matches(scope)
        if match is Match.NONE:
            continue
        if isinstance(route, Mount):
            return found or _methods_at({**scope, **child}, route.routes)
        methods: set[str] = getattr(route, "methods", None) or set()
        if methods:
            path = path or getattr(route, "path", None)
            found |= methods if getattr(route, "path", None) == path else set()
    return found

"""Answers for addresses that do not exist, and for methods that an address does not take, as the protocol's errors.

Only an application that is the agent's alone answers so: in somebody else's, what becomes of an unknown address is that
application's to say.
"""

from typing import cast

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.routing import Match

from tailrace.server.http.problems import Problem
from tailrace.server.observability.query_secrets import redact_query
from tailrace.server.protocols.a2a.http_json_v0_3 import write_problem

# Where a client of 0.3 is that has lost its way.
_OLD_PREFIXES = ("/v1/message", "/v1/tasks", "/v1/card")


def answer_unknown_routes(app: FastAPI, router: APIRouter) -> None:
    """Have an application answer 404 and 405 in the form of the version that the address belongs to.

    Args:
        app: The application.
        router: The agent's addresses, which are at its root.
    """

    async def answer(request: Request, error: Exception) -> Response:
        failure = cast("HTTPException", error)
        redact_query(request.scope)
        path = request.url.path
        if failure.status_code == 404:
            problem = Problem(404, "NOT_FOUND", "NotFoundError", f"There is nothing at {path}")
        elif failure.status_code == 405:
            allowed = _methods_at(request, app, router)
            message = f"{path} takes {allowed}, not {request.method}"
            problem = Problem(
                405, "UNIMPLEMENTED", "MethodNotAllowedError", message, headers={"Allow": allowed}
            )
        else:
            return await http_exception_handler(request, failure)
        body = write_problem(problem) if path.startswith(_OLD_PREFIXES) else problem.body()
        return Response(body, problem.code, headers=problem.headers, media_type="application/json")

    app.add_exception_handler(HTTPException, answer)


def _methods_at(request: Request, app: FastAPI, router: APIRouter) -> str:
    """The methods that an address supports: a path has a route for each method, and the framework names those of one.

    A path can match another route's parameter too (``/tasks/{id}`` matches ``/tasks/1:cancel``): the first one counts,
    as it does for a request.
    """
    found: set[str] = set()
    path = None
    for route in (*router.routes, *app.routes):
        methods: set[str] = getattr(route, "methods", None) or set()
        if methods and route.matches(request.scope)[0] is not Match.NONE:
            path = path or getattr(route, "path", None)
            found |= methods if getattr(route, "path", None) == path else set()
    return ", ".join(sorted(found))

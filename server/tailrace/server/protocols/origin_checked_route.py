"""Routes that check each request with the origin guard before the endpoint runs."""

import logging

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from tailrace.server.http.error_responses import Problem
from tailrace.server.http.origin_guard import EXEMPT, OriginGuard
from tailrace.server.http.upload_deadlines import UploadDeadlines, has_body
from tailrace.server.observability.query_secrets import MAX_QUERY_BYTES, query_of
from tailrace.server.protocols.a2a.http_json_v0_3 import write_problem
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.server.runtime.auth_error import AuthError
from tailrace.server.runtime.observer import OBSERVER

logger = logging.getLogger("tailrace.server")

_WITHOUT_BODY = frozenset({"GET", "HEAD"})

# Paths with one of these parts have errors in OpenAI's format.
_OPENAI_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/conversations",
    "/v1/embeddings",
    "/v1/models",
    "/v1/responses",
)

# Paths with one of these parts have errors in the format of A2A 0.3.
_V0_3_PATHS = ("/v1/message", "/v1/tasks", "/v1/card")


def origin_checked_route(origin_guard: OriginGuard, upload_deadlines: UploadDeadlines) -> type[APIRoute]:
    """Return a route class that checks requests, also if the router is included in another application.

    A rejected request gets an error in the format of the route. All responses have the header
    ``X-Content-Type-Options: nosniff``.

    Args:
        origin_guard: Checks each request to an endpoint that is not exempt (`exempt_from_guard`).
        upload_deadlines: The deadlines of request bodies.
    """

    class OriginCheckedRoute(APIRoute):
        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            response = self._refused(scope)
            if response is None and scope["method"] not in self.methods:
                await super().handle(scope, receive, send)
                return
            if response is None:
                upload_deadlines.attach_to(scope)
                request = Request(scope, receive, send)
                if scope["method"] in _WITHOUT_BODY and has_body(request):
                    await upload_deadlines.discard(request)
                # FastAPI's resolution of dependencies is skipped, because the routes have none.
                response = await self.endpoint(request)
            response.headers["X-Content-Type-Options"] = "nosniff"
            await response(scope, receive, send)

        def _refused(self, scope: Scope) -> Response | None:
            size = len(query_of(scope))
            if size > MAX_QUERY_BYTES:
                return _query_refusal(size, self.path)
            if not getattr(self.endpoint, EXEMPT, False):
                try:
                    origin_guard.check(scope)
                except AuthError as error:
                    OBSERVER.get().error_occurred(error)
                    logger.warning("request rejected (403): %s", error)
                    return _refusal(error, self.path)
            return None

    return OriginCheckedRoute


def _query_refusal(size: int, path: str) -> Response:
    message = f"The query has {size} bytes; the maximum is {MAX_QUERY_BYTES}. Send a POST request with a body"
    if any(part in path for part in _OPENAI_PATHS):
        return OpenAIError(414, message).response()
    problem = Problem(414, "INVALID_ARGUMENT", "UriTooLongError", message)
    body = write_problem(problem) if any(part in path for part in _V0_3_PATHS) else problem.body()
    return Response(body, problem.code, media_type="application/json")


def _refusal(error: AuthError, path: str) -> Response:
    if any(part in path for part in _OPENAI_PATHS):
        return OpenAIError.from_exception(error).response()
    problem = Problem.of(error)
    body = write_problem(problem) if any(part in path for part in _V0_3_PATHS) else problem.body()
    return Response(body, problem.code, headers=problem.headers, media_type="application/json")

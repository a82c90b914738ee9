"""The playground's addresses: the page at the agent's root, the element, its modules, and a page that embeds it.

The files are in this folder; ``ui/`` in the repository has the sources of the modules. They contain nothing of the agent: the
page requests its content over A2A, as any other client, with the caller's credentials.
"""

import gzip
from functools import cached_property
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from tailrace.server.http.caching import cached_response

PAGE_PATH = "/"
COMPONENT_PATH = "/tailrace-chat.js"
EMBED_PATH = "/embed.html"
MODULE_PATHS = {
    "playgroundClient": "/tailrace-client.js",
    "playgroundHighlight": "/tailrace-highlight.js",
    "playgroundMath": "/tailrace-math.js",
}
"""The client, and the modules that the element loads when a response needs them, by operation id in the OpenAPI description."""

_FOLDER = Path(__file__).parent
_FILES = {
    PAGE_PATH: ("index.html", "text/html; charset=utf-8"),
    EMBED_PATH: ("embed.html", "text/html; charset=utf-8"),
    **{
        path: (path.removeprefix("/"), "text/javascript; charset=utf-8")
        for path in (COMPONENT_PATH, *MODULE_PATHS.values())
    },
}

# Nothing but what this server sends itself; files that a model made are shown from data: addresses, which can do nothing.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "media-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Playground:
    """Serves the playground."""

    def add_to(self, router: APIRouter) -> None:
        """Put its addresses into a router; where an application has a page of its own at one of them, that is served."""
        route_class = _playground_route(router.route_class)
        for path, (name, media_type) in _FILES.items():
            endpoint = _File((_FOLDER / name).read_bytes(), media_type)
            router.add_api_route(
                path,
                endpoint.answer,
                methods=["GET", "HEAD"],
                include_in_schema=False,
                route_class_override=route_class,
            )


class _File:
    def __init__(self, body: bytes, media_type: str) -> None:
        self._body = body
        self._media_type = media_type

    @cached_property
    def _compressed(self) -> bytes:
        return gzip.compress(self._body, mtime=0)

    async def answer(self, request: Request) -> Response:
        headers, body = _HEADERS, self._body
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers, body = {**_HEADERS, "Content-Encoding": "gzip"}, self._compressed
        return cached_response(
            request, body, vary="Accept-Encoding", headers=headers, media_type=self._media_type
        )


def _playground_route(base: type[APIRoute]) -> type[APIRoute]:
    """A class of routes that are not there where the application that includes them has another for the same request.

    The router may be included at the root of another application, before or after that application's own pages.

    Args:
        base: The class of the router's other routes.
    """

    class PlaygroundRoute(base):
        def matches(self, scope: Scope) -> tuple[Match, Scope]:
            found, child = super().matches(scope)
            if found is not Match.FULL or scope.get(_MATCHING):
                return (Match.NONE if scope.get(_MATCHING) else found), child
            # The others are asked as if this one were not there.
            others = {**scope, _MATCHING: True}
            if any(route.matches(others)[0] is Match.FULL for route in scope["app"].routes):
                return Match.NONE, {}
            return found, child

    return PlaygroundRoute


_MATCHING = "tailrace.playground.asking"

"""The routes of the playground.

The TypeScript sources are in ``ui/`` in the repository. The files contain no data of the agent: the page requests all data over
A2A with the caller's credentials.
"""

import gzip
from functools import cached_property
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from tailrace.server.http.caching import cached_response, version_of

PAGE_PATH = "/"
COMPONENT_PATH = "/tailrace-chat.js"
EMBED_PATH = "/embed.html"
MODULE_PATHS = {
    "playgroundClient": "/tailrace-client.js",
    "playgroundHighlight": "/tailrace-highlight.js",
    "playgroundMath": "/tailrace-math.js",
}
"""Paths of the JavaScript modules, by operation id in the OpenAPI description."""

_FOLDER = Path(__file__).parent
_FILES = {
    PAGE_PATH: ("index.html", "text/html; charset=utf-8"),
    EMBED_PATH: ("embed.html", "text/html; charset=utf-8"),
    **{
        path: (path.removeprefix("/"), "text/javascript; charset=utf-8")
        for path in (COMPONENT_PATH, *MODULE_PATHS.values())
    },
}

# The content security policy permits only resources of this server, and ``data:`` URLs for images and media from a model.
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
    """Serves the playground.

    Args:
        yields: True if the application's own routes have precedence over the routes of the playground.
    """

    def __init__(self, *, yields: bool = True) -> None:
        self._yields = yields

    def add_to(self, router: APIRouter) -> None:
        """Add the routes to a router."""
        route_class = _playground_route(router.route_class) if self._yields else router.route_class
        for path, (name, media_type) in _FILES.items():
            endpoint = _File(_FOLDER / name, media_type)
            router.add_api_route(
                path,
                endpoint.respond,
                methods=["GET", "HEAD"],
                include_in_schema=False,
                route_class_override=route_class,
            )


class _File:
    """A file, which is read for the first request."""

    def __init__(self, path: Path, media_type: str) -> None:
        self._path = path
        self._media_type = media_type

    @cached_property
    def _body(self) -> bytes:
        return self._path.read_bytes()

    @cached_property
    def _version(self) -> str:
        return version_of(self._body)  # the same version for the compressed and the uncompressed body

    @cached_property
    def _compressed(self) -> bytes:
        return gzip.compress(self._body, mtime=0)

    async def respond(self, request: Request) -> Response:
        headers, body = _HEADERS, self._body
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers, body = {**_HEADERS, "Content-Encoding": "gzip"}, self._compressed
        return cached_response(
            request,
            body,
            vary="Accept-Encoding",
            immutable=request.query_params.get("v") == self._version,
            headers=headers,
            media_type=self._media_type,
        )


def _playground_route(base: type[APIRoute]) -> type[APIRoute]:
    """Return a route class whose routes match a request only if no other route of the application matches it.

    Applications may include the router before their own routes.
    """

    class PlaygroundRoute(base):
        def matches(self, scope: Scope) -> tuple[Match, Scope]:
            found, child = super().matches(scope)
            if found is not Match.FULL or scope.get(_MATCHING):
                return (Match.NONE if scope.get(_MATCHING) else found), child
            # With `_MATCHING`, routes of the playground do not match.
            others = {**scope, _MATCHING: True}
            if any(route.matches(others)[0] is Match.FULL for route in scope["app"].routes):
                return Match.NONE, {}
            return found, child

    return PlaygroundRoute


_MATCHING = "tailrace.playground.matching"

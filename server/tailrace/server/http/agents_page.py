"""A page with links to the agents of a server, and a catalog of the agents for programs (RFC 9727)."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from tailrace.server.http.caching import cached_response, this_second
from tailrace.server.http.origin_guard import OriginGuard

CATALOG_PATH = "/.well-known/api-catalog"
"""The path of the catalog (RFC 9727, section 2)."""

_CATALOG_TYPE = 'application/linkset+json; profile="https://www.rfc-editor.org/info/rfc9727"'

_STYLE = (
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:3rem auto;padding:0 1rem}"
    "li{margin:.75rem 0}ul{padding:0;list-style:none}small{display:block;opacity:.75}"
)


@dataclass(frozen=True)
class ListedAgent:
    """An agent of the server.

    Attributes:
        path: The path of the agent relative to the path of the server. It ends with a slash.
        name: The name on the agent card.
        description: The description on the agent card.
        has_page: Whether the agent has a playground.
    """

    path: str
    name: str
    description: str
    has_page: bool


class AgentsPage:
    """Serves the page and the catalog, and redirects paths of agents without a final slash.

    Args:
        agents: The agents.
        origin_guard: Checks the host of a request.
        public_url: The public URL of the server; empty for the host of the request.
    """

    def __init__(self, agents: Sequence[ListedAgent], origin_guard: OriginGuard, public_url: str) -> None:
        self._agents = agents
        self._origin_guard = origin_guard
        self._public_url = public_url
        self._since = this_second()
        self._page = _page_of([agent for agent in agents if agent.has_page]).encode()
        digest = base64.b64encode(sha256(_STYLE.encode()).digest()).decode()
        self._headers = {
            "Content-Security-Policy": f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; frame-ancestors 'none'",
            "Referrer-Policy": "no-referrer",
        }

    def add_to(self, router: APIRouter) -> None:
        """Add the routes to a router."""
        methods = ["GET", "HEAD"]
        router.add_api_route(CATALOG_PATH, self._catalog, methods=methods, include_in_schema=False)
        if any(agent.has_page for agent in self._agents):
            router.add_api_route("/", self._show, methods=methods, include_in_schema=False)
        for agent in self._agents:
            path = f"/{agent.path.removesuffix('/')}"
            router.add_api_route(path, _redirect, methods=methods, include_in_schema=False)

    async def _show(self, request: Request) -> Response:
        return cached_response(
            request,
            self._page,
            since=self._since,
            headers=self._headers,
            media_type="text/html; charset=utf-8",
        )

    async def _catalog(self, request: Request) -> Response:
        """Return the catalog."""
        base = self._public_url.rstrip("/")
        if not base:
            authority = self._origin_guard.authority(request.scope)
            path = request.url.path.removesuffix(CATALOG_PATH)
            base = str(request.url.replace(netloc=authority, path=path, query="")).rstrip("/")
        card = {"type": "application/json", "title": "Agent card (A2A)"}
        linkset = [
            {
                "anchor": f"{base}{CATALOG_PATH}",
                "item": [{"href": f"{base}/{agent.path}", "title": agent.name} for agent in self._agents],
            },
            *(
                {
                    "anchor": f"{base}/{agent.path}",
                    "service-desc": [{"href": f"{base}/{agent.path}.well-known/agent-card.json", **card}],
                }
                for agent in self._agents
            ),
        ]
        body = json.dumps({"linkset": linkset}).encode()
        headers = {"Link": f'<{base}{CATALOG_PATH}>; rel="api-catalog"'}
        return cached_response(request, body, since=self._since, headers=headers, media_type=_CATALOG_TYPE)


async def _redirect(request: Request) -> Response:
    return RedirectResponse(f"{request.url.path.rpartition('/')[2]}/")


def _page_of(agents: Sequence[ListedAgent]) -> str:
    items = "".join(
        f'<li><a href="{escape(agent.path)}">{escape(agent.name)}</a>'
        f"<small>{escape(agent.description)}</small></li>"
        for agent in agents
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>Agents</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>Agents</h1><ul>{items}</ul></main></body></html>\n"
    )

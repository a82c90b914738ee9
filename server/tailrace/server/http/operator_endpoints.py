"""The endpoints for operators: ``/healthz``, ``/readyz`` and ``/metrics``."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request, Response

from tailrace.server.auth.authentication import Authenticator
from tailrace.server.http.error_responses import Problem, encode_ascii
from tailrace.server.http.origin_guard import OriginGuard, exempt_from_origin_guard
from tailrace.server.http.request_headers import credentials_of
from tailrace.server.observability.metrics import Metrics
from tailrace.server.runtime.auth_error import AuthError
from tailrace.server.runtime.health import Health

LIVE_PATH, READY_PATH, METRICS_PATH = "/healthz", "/readyz", "/metrics"

PATHS = frozenset({LIVE_PATH, READY_PATH, METRICS_PATH})
"""The paths of these endpoints."""

_UNCACHED = {"Cache-Control": "no-store"}


class OperatorEndpoints:
    """The endpoints for health probes and for Prometheus.

    Args:
        health: Checks the health of the server.
        authenticator: Authenticates requests for metrics without ``token``.
        metrics: The metrics; None to disable ``/metrics``.
        token: The bearer token for ``/metrics``. None: only callers on this machine that ``authenticator`` accepts.
        origin_guard: Checks whether a request comes from this machine.
    """

    def __init__(
        self,
        health: Callable[[], Awaitable[Health]],
        authenticator: Authenticator,
        metrics: Metrics | None = None,
        *,
        token: str | None = None,
        origin_guard: OriginGuard,
    ) -> None:
        self._health = health
        self._authenticator = authenticator
        self._metrics = metrics
        self._token = token
        self._origin_guard = origin_guard

    def add_to(self, router: APIRouter) -> None:
        """Add the routes to a router."""
        endpoints: dict[str, Callable[..., Awaitable[Response]]] = {
            LIVE_PATH: self._live,
            READY_PATH: self._ready,
        }
        if self._metrics is not None:
            endpoints[METRICS_PATH] = self._scrape
        for path, endpoint in endpoints.items():
            router.add_api_route(
                path, endpoint, methods=["GET", "HEAD"], include_in_schema=False, response_model=None
            )

    @exempt_from_origin_guard
    async def _live(self, _request: Request) -> Response:
        """Return 200. Other components are not checked: a restart would not repair them."""
        return _json({"status": "ok"}, 200)

    @exempt_from_origin_guard
    async def _ready(self, _request: Request) -> Response:
        health = await self._health()
        return _json(health.to_dict(), 200 if health.ready else 503)

    async def _scrape(self, request: Request) -> Response:
        assert self._metrics is not None  # noqa: S101 — the route exists only with metrics
        try:
            await self._admit(request)
        except Exception as error:
            return Problem.of(error).response()
        body, media_type = self._metrics.exposition(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": media_type, **_UNCACHED})

    async def _admit(self, request: Request) -> None:
        credentials = credentials_of(request)
        if self._token is None:
            await self._authenticator.authenticate(credentials)
            if not self._origin_guard.is_local(request.scope):
                raise AuthError(
                    "without TAILRACE_METRICS_TOKEN, only this machine can read the metrics; set the token and send it as "
                    "a bearer token",
                    challenge="",
                    forbidden=True,
                )
        elif not credentials.has_bearer(self._token):
            raise AuthError(
                "the metrics require the bearer token of the server", challenge='Bearer realm="metrics"'
            )


def _json(body: object, status: int) -> Response:
    return Response(encode_ascii(body), status, headers=_UNCACHED, media_type="application/json")

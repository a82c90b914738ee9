"""The parts of a server that all of its agents share: store, engine, limits, webhooks, authentication and metrics."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from opentelemetry.trace import TracerProvider

from tailrace.server.auth.authentication import Anonymous, Authenticator, LoggingAuthenticator
from tailrace.server.auth.authenticator_factory import create_authenticator
from tailrace.server.http.operator_endpoints import PATHS as OPERATOR_PATHS
from tailrace.server.http.operator_endpoints import OperatorEndpoints
from tailrace.server.http.origin_guard import OriginGuard
from tailrace.server.http.shutdown_signals import handle_signals
from tailrace.server.http.sse_frames import STOP_TIMEOUT
from tailrace.server.http.upload_deadlines import UploadDeadlines
from tailrace.server.http.usage_endpoint import UsageEndpoint
from tailrace.server.observability.metrics import Metrics
from tailrace.server.observability.request_observation import observed_route
from tailrace.server.observability.telemetry_factory import create_telemetry
from tailrace.server.protocols.cors import allow_origins
from tailrace.server.protocols.origin_checked_route import origin_checked_route
from tailrace.server.protocols.unknown_routes import add_unknown_route_handlers
from tailrace.server.push_notification_factory import create_notifier
from tailrace.server.runtime.budgets import Budgets
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.limits import Limits
from tailrace.server.runtime.observer import Observer
from tailrace.server.runtime.prices import PriceTable
from tailrace.server.runtime.served_agents import ServedAgents
from tailrace.server.runtime.stream_registry import OpenStreams
from tailrace.server.runtime.upstream_gate import UpstreamGate
from tailrace.server.runtime.usage_ledger import UsageLedger
from tailrace.server.settings import Settings
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.server.store.store import Retention, Store
from tailrace.wrappers import ConfigurationError

if TYPE_CHECKING:
    from tailrace.server.cluster.node_factory import Cluster  # an optional dependency
    from tailrace.server.protocols.a2a.card_signing import CardSigner  # imports the cryptography library

_ANY_NUMBER = 2**31 - 1  # no limit: the largest integer that every database accepts


class ServerCore:
    """The parts of a server that all of its agents share.

    Args:
        settings: The settings of the server.
        store: Persists tasks and conversations; created from ``settings.store`` when None.
        authenticator: Authenticates callers; created from the settings when None.
        card_signers: Sign the cards; created from the settings when empty.
        tracer_provider: Records spans; the global tracer provider when None.

    Attributes:
        settings: The settings of the server.
        telemetry: Records turns, model responses and errors.
        store: Persists tasks and conversations.
        signers: Sign the cards.
        push: Delivers push notifications; None if push notifications are disabled.
        gate: Limits the concurrent calls to providers.
        limits: The limits on streams, tasks and messages.
        schemes: The security schemes that the cards declare.
        authenticated: Whether the server authenticates callers.
        authenticator: Authenticates callers.
        authentication: Authenticates callers, and logs rejected requests.
        origin_guard: Checks the host, the origin and the address of requests.
        streams: The open SSE streams.

    Raises:
        ConfigurationError: A setting is invalid.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        store: Store | None = None,
        authenticator: Authenticator | None = None,
        card_signers: "Sequence[CardSigner]" = (),
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self.settings = settings
        self._keys = SecretKeys(settings.secret_key.get_secret_value() if settings.secret_key else "")
        self.telemetry = create_telemetry(settings, tracer_provider)
        self._cluster = _create_cluster(settings, store, self._keys, self.telemetry)
        self.store = (
            self._cluster.store
            if self._cluster
            else store or Store(settings.store, _retention(settings), durability=settings.durability)
        )
        self.store.use_keys(self._keys)
        self.signers = tuple(card_signers) or _create_signers(settings)
        self.push = create_notifier(settings, self.store, self.telemetry, self.signers)
        bounds = settings.bounds
        self.gate = UpstreamGate(bounds.max_upstream_calls, bounds.max_upstream_waiting, self.telemetry)
        self.limits = _limits(settings)
        self._prices = PriceTable(settings.prices)
        authenticator = authenticator or create_authenticator(settings)
        self.schemes = authenticator.schemes()
        self.authenticated = not isinstance(authenticator, Anonymous)
        self.authenticator = authenticator
        self.authentication = LoggingAuthenticator(authenticator)
        self.origin_guard = OriginGuard(settings, authenticated=self.authenticated)
        self._upload_deadlines = UploadDeadlines(bounds.body_timeout)
        self.streams = OpenStreams()

    @property
    def webhook_keys(self) -> str:
        """The URL of the public keys for signed push notifications; empty if they are not signed."""
        return self.signers[0].keys_url if self.signers and self.push else ""

    def create_engine(self, agents: ServedAgents, *, can_continue: bool) -> Engine:
        """Create the engine.

        Args:
            agents: The agents that the server serves.
            can_continue: Whether the handlers can continue turns that a crash interrupted.
        """
        settings = self.settings
        create = self._cluster.engine if self._cluster else partial(Engine, self.store)
        engine = create(
            agents,
            max_history_messages=settings.bounds.max_history_messages or _ANY_NUMBER,
            max_lag=settings.bounds.max_lag,
            restart_interrupted=settings.on_crash == "restart"
            or (settings.on_crash == "continue" and can_continue),
            push=self.push,
            running_tasks=self.limits.tasks,
            gate=self.gate,
            max_turn_seconds=settings.bounds.max_turn_seconds,
            max_context_wait=settings.bounds.max_context_wait,
            parallel_tasks=settings.parallel_tasks,
            max_event_bytes=settings.bounds.max_event_bytes,
            stop_grace=settings.shutdown_grace,
            keys=self._keys,
            ledger=self._create_ledger(),
            observer=self.telemetry,
        )
        if self.telemetry.metrics is not None:
            _watch_state(self.telemetry.metrics, engine, self.limits, self.gate)
        return engine

    def _create_ledger(self) -> UsageLedger:
        settings, telemetry = self.settings, self.telemetry
        budgets = (
            Budgets(settings.budgets, self.store, self._prices, is_shared=bool(settings.events))
            if settings.budgets
            else None
        )
        return UsageLedger(telemetry.agent, self._prices, telemetry.usage_recorded, budgets)

    def create_router(self, **options: Any) -> APIRouter:
        """Create a router that checks and observes its requests. ``options`` are arguments of `APIRouter`."""
        route_class = observed_route(
            self.telemetry, origin_checked_route(self.origin_guard, self._upload_deadlines)
        )
        # A redirect would be sent before the guard checks the host.
        return APIRouter(route_class=route_class, redirect_slashes=False, **options)

    def add_routes(self, router: APIRouter, engine: Engine) -> None:
        """Add the routes that belong to no agent: routes for operators, and the public keys of the signers."""
        if self.signers:
            from tailrace.server.protocols.a2a.card_signing import add_keys_to

            add_keys_to(router, self.signers)
        token = self.settings.metrics_token
        OperatorEndpoints(
            engine.health,
            self.authentication,
            self.telemetry.metrics,
            token=token.get_secret_value() if token else None,
            origin_guard=self.origin_guard,
        ).add_to(router)
        token = self.settings.operator_token
        UsageEndpoint(
            self.store,
            self.authentication,
            token=token.get_secret_value() if token else None,
            origin_guard=self.origin_guard,
        ).add_to(router)

    @asynccontextmanager
    async def running(
        self, engine: Engine, *resources: AbstractAsyncContextManager[object]
    ) -> AsyncGenerator[None]:
        """Run the engine, and hold further resources, during the block.

        Raises:
            TailraceError: A resource is not available.
        """
        if any(budget.usd is not None for budget in self.settings.budgets):
            await self._prices.load()
        async with self.authentication.running(), engine.running(), AsyncExitStack() as stack:
            for resource in resources:
                await stack.enter_async_context(resource)
            stopping, timeout = engine.stop_requested, self.settings.shutdown_grace + STOP_TIMEOUT
            async with self._upload_deadlines.ending_with(stopping), self.streams.cut_off(stopping, timeout):
                with handle_signals(lambda: stopping.set()):
                    yield


def create_application(
    router: APIRouter, settings: Settings, tracer_provider: TracerProvider | None = None
) -> FastAPI:
    """Create the application with the routes of a router.

    Args:
        router: The routes, and the lifespan.
        settings: The settings of the server.
        tracer_provider: As for `ServerCore`.
    """
    app = FastAPI(
        title="tailrace",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        # FastAPI's request spans are the parents of the agent's spans. Its other spans are disabled.
        telemetry={
            "tracer_provider": tracer_provider,
            "operation_spans": False,
            "exclude": lambda scope: scope["path"] in OPERATOR_PATHS,
        },
        routes=list(router.routes),
        lifespan=router.lifespan_context,
    )
    add_unknown_route_handlers(app, has_openai_api="openai" in settings.endpoints)
    allow_origins(app, settings.allowed_origins)
    return app


def _watch_state(metrics: Metrics, engine: Engine, limits: Limits, gate: UpstreamGate) -> None:
    """Add metrics whose values are read from the server at each scrape."""
    metrics.watch("tailrace_streams_open", "Open streams", lambda: limits.streams.used)
    metrics.watch("tailrace_tasks_running", "Running tasks", lambda: limits.tasks.used)
    metrics.watch(
        "tailrace_upstream_calls_running", "Calls to the provider in progress", lambda: gate.running_calls
    )
    metrics.watch("tailrace_upstream_calls_waiting", "Waiting calls to the provider", lambda: gate.waiting)
    metrics.watch(
        "tailrace_store_events_waiting", "Events that wait for a commit", lambda: engine.events_waiting
    )
    metrics.watch_distribution(
        "tailrace_store_lag_seconds",
        "Time from the oldest event of a transaction to its commit",
        engine.writer.lag,
    )
    metrics.watch_distribution(
        "tailrace_store_commit_events", "Events in a transaction", engine.writer.group_sizes
    )


def _create_signers(settings: Settings) -> "tuple[CardSigner, ...]":
    if not settings.card.signing_keys:
        return ()
    from tailrace.server.protocols.a2a.card_signing import create_signers

    return create_signers(settings)


def _retention(settings: Settings) -> Retention:
    retention = settings.retention
    return Retention(retention.events or None, retention.tasks or None, retention.usage or None)


def _create_cluster(
    settings: Settings, store: Store | None, keys: SecretKeys, observer: Observer
) -> "Cluster | None":
    """Create the parts of a cluster node; None for a single server."""
    if not settings.events:
        if settings.workers > 1:
            raise ConfigurationError(
                "several workers (--workers, TAILRACE_WORKERS) need a broker and a PostgreSQL that they share: set "
                "TAILRACE_EVENTS=redis://HOST:PORT/0 and TAILRACE_STORE=postgresql://USER:PASSWORD@HOST/DATABASE"
            )
        return None
    if store is not None:
        raise ConfigurationError(
            "TAILRACE_EVENTS: several servers use the store of TAILRACE_STORE; remove the argument store"
        )
    from tailrace.server.cluster.node_factory import Cluster

    return Cluster(settings, _retention(settings), keys, observer)


def _limits(settings: Settings) -> Limits:
    bounds = settings.bounds
    return Limits(
        max_streams=bounds.max_streams,
        max_caller_streams=bounds.max_caller_streams,
        max_tasks=bounds.max_tasks,
        max_caller_tasks=bounds.max_caller_tasks,
        max_part_bytes=bounds.max_part_bytes,
        file_schemes=settings.file_schemes,
    )

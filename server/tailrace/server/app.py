"""The ASGI application, and a router to mount in another application.

This module alone creates the parts of a server: handler, store, and routes.
"""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI
from opentelemetry.trace import TracerProvider

from tailrace.server.agent_factory import create_agent, create_embedding_models
from tailrace.server.auth.authentication import Anonymous, Authenticator, Reporting
from tailrace.server.auth.authenticator_factory import create_authenticator
from tailrace.server.former_settings import unread_env_file
from tailrace.server.http.operator_endpoints import PATHS as OPERATOR_PATHS
from tailrace.server.http.operator_endpoints import OperatorEndpoints
from tailrace.server.http.playground import Playground
from tailrace.server.http.request_guard import RequestGuard
from tailrace.server.http.shutdown_signals import handle_signals
from tailrace.server.http.sse_frames import STOP_TIMEOUT
from tailrace.server.http.upload_deadlines import Uploads
from tailrace.server.http.usage_endpoint import UsageEndpoint
from tailrace.server.observability.metrics import Metrics
from tailrace.server.observability.request_observation import observed_route
from tailrace.server.observability.telemetry import Telemetry
from tailrace.server.observability.telemetry_factory import create_telemetry
from tailrace.server.protocols.a2a.card import CardEndpoint
from tailrace.server.protocols.a2a.http_json import VERSION_1_0, HttpJsonBinding
from tailrace.server.protocols.a2a.http_json_v0_3 import VERSION_0_3
from tailrace.server.protocols.a2a.jsonrpc import JsonRpcBinding
from tailrace.server.protocols.ag_ui import AgUiEndpoint
from tailrace.server.protocols.ai_sdk import AiSdkEndpoint
from tailrace.server.protocols.cors import allow_origins
from tailrace.server.protocols.guarded_route import guarded_route
from tailrace.server.protocols.openai import OpenAIFacade
from tailrace.server.protocols.openai.models import ServedModels
from tailrace.server.protocols.openapi import add_description_to
from tailrace.server.protocols.unknown_routes import add_unknown_route_handlers
from tailrace.server.push_notification_factory import create_notifier
from tailrace.server.runtime.agent_capabilities import Capabilities
from tailrace.server.runtime.agent_handler import AgentHandler
from tailrace.server.runtime.approvals import parse_approvers
from tailrace.server.runtime.budgets import Budgets
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import FunctionHandler, Handler, HandlerFunction
from tailrace.server.runtime.limits import Limits
from tailrace.server.runtime.observer import Observer
from tailrace.server.runtime.operations import ExtendedCard, Operations
from tailrace.server.runtime.prices import PriceTable
from tailrace.server.runtime.stream_filter import StreamFilter
from tailrace.server.runtime.upstream_gate import UpstreamGate
from tailrace.server.runtime.usage_ledger import UsageLedger
from tailrace.server.settings import Settings
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.server.store.store import Retention, Store
from tailrace.streaming.a2a.models import AgentCard, AgentExtension, AgentSkill
from tailrace.streaming.a2a.v0_1 import Version01
from tailrace.streaming.a2a.v0_3 import Version03
from tailrace.streaming.a2a.v1_0 import Version10
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.providers import find_provider

if TYPE_CHECKING:
    from tailrace.server.cluster.node_factory import Cluster  # an extra, too
    from tailrace.server.protocols.a2a.card_signing import CardSigner  # imports the cryptography library
    from tailrace.server.protocols.a2a.grpc import GrpcServer  # an extra
    from tailrace.server.remote.agent_proxy import AgentProxy

logger = logging.getLogger("tailrace.server")

_ANY_NUMBER = 2**31 - 1  # of messages: the largest number that every database accepts


def create_app(
    settings: Settings | None = None,
    *,
    handler: Handler | HandlerFunction | None = None,
    store: Store | None = None,
    authenticator: Authenticator | None = None,
    extended_card: ExtendedCard | AgentCard | None = None,
    extensions: Sequence[AgentExtension] = (),
    skills: Sequence[AgentSkill] = (),
    input_modes: Sequence[str] = (),
    output_modes: Sequence[str] = (),
    card_signers: "Sequence[CardSigner]" = (),
    openai_user_is_key: bool = False,
    tracer_provider: TracerProvider | None = None,
    filters: Sequence[StreamFilter] = (),
    input_filters: Sequence[StreamFilter] = (),
) -> FastAPI:
    """Create an application that serves one agent at its root.

    Args:
        settings: Read from the environment when None.
        handler: Runs the turns; created from ``settings.model`` or ``settings.agent`` when None.
        store: Persists tasks and conversations; created from ``settings.store`` when None.
        authenticator: Authenticates callers; created from the settings when None.
        extended_card: A further card for authenticated callers, or a function that returns the card of each caller (None
            for a caller without one). The agent's card declares it.
        extensions: Extensions that the handler supports; `Turn.extensions` has those that a request activates. Every
            request must activate those that are ``required``.
        skills: The agent's skills, for the card.
        input_modes: Media types of accepted messages (``image/*``); ``settings.card.input_modes`` when empty.
        output_modes: Media types of the agent's output, for the card; ``settings.card.output_modes`` when empty.
        card_signers: Sign the cards; created from the settings when empty.
        openai_user_is_key: The member ``user`` of a request to the OpenAI-compatible API names its conversation if
            nothing else in the request does.
        tracer_provider: Records spans (``docs/observability.md``); the one of the process when None.
        filters: Applied to the output of each turn, in order (``docs/filters.md``), before those of ``settings.filters``.
        input_filters: A message of a caller is refused if one of them, or of ``settings.input_filters``, changes or blocks a
            part of it.

    Raises:
        ConfigurationError: There is neither a handler nor a model nor an agent, or a setting cannot be used.
        UpstreamError: The agent of ``settings.agent``, whose card is fetched here, cannot be reached.
    """
    settings = settings or _settings_of_environment()
    router = create_router(
        settings,
        handler=handler,
        store=store,
        authenticator=authenticator,
        extended_card=extended_card,
        extensions=extensions,
        skills=skills,
        input_modes=input_modes,
        output_modes=output_modes,
        card_signers=card_signers,
        openai_user_is_key=openai_user_is_key,
        tracer_provider=tracer_provider,
        filters=filters,
        input_filters=input_filters,
    )
    app = FastAPI(
        title="tailrace",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        # FastAPI's request spans are the parents of the agent's spans. Its inner spans, and spans of probes, are not needed.
        telemetry={
            "tracer_provider": tracer_provider,
            "operation_spans": False,
            "exclude": lambda scope: scope["path"] in OPERATOR_PATHS,
        },
        routes=list(router.routes),
        lifespan=router.lifespan_context,
    )
    add_unknown_route_handlers(app, router, has_openai_api="openai" in settings.endpoints)
    allow_origins(app, settings.allowed_origins)
    return app


def create_router(
    settings: Settings | None = None,
    *,
    handler: Handler | HandlerFunction | None = None,
    store: Store | None = None,
    authenticator: Authenticator | None = None,
    extended_card: ExtendedCard | AgentCard | None = None,
    extensions: Sequence[AgentExtension] = (),
    skills: Sequence[AgentSkill] = (),
    input_modes: Sequence[str] = (),
    output_modes: Sequence[str] = (),
    card_signers: "Sequence[CardSigner]" = (),
    openai_user_is_key: bool = False,
    tracer_provider: TracerProvider | None = None,
    filters: Sequence[StreamFilter] = (),
    input_filters: Sequence[StreamFilter] = (),
) -> APIRouter:
    """Create a router with the agent's routes, for a FastAPI application under any prefix.

    The engine starts and stops with the application that includes the router.

    Args:
        settings: As for `create_app`.
        handler: As for `create_app`.
        store: As for `create_app`.
        authenticator: As for `create_app`.
        extended_card: As for `create_app`.
        extensions: As for `create_app`.
        skills: As for `create_app`.
        input_modes: As for `create_app`.
        output_modes: As for `create_app`.
        card_signers: As for `create_app`.
        openai_user_is_key: As for `create_app`.
        tracer_provider: As for `create_app`.
        filters: As for `create_app`.
        input_filters: As for `create_app`.

    Raises:
        ConfigurationError: As `create_app`.
        UpstreamError: As `create_app`.
    """
    settings = settings or _settings_of_environment()
    keys = SecretKeys(settings.secret_key.get_secret_value() if settings.secret_key else "")
    filters = (*filters, *_read_filters(settings.filters))
    input_filters = (*input_filters, *_read_filters(settings.input_filters))
    if (filters or input_filters) and settings.trace_content:
        raise ConfigurationError(
            "TAILRACE_TRACE_CONTENT adds unfiltered messages to spans: set it to false, or use no filters"
        )
    telemetry = create_telemetry(settings, tracer_provider)
    cluster = _create_cluster(settings, store, keys, telemetry)
    store = (
        cluster.store
        if cluster
        else store or Store(settings.store, _retention(settings), durability=settings.durability)
    )
    store.use_keys(keys)
    signers = tuple(card_signers) or _create_signers(settings)
    push = create_notifier(settings, store, telemetry, signers)
    gate = UpstreamGate(settings.bounds.max_upstream_calls, settings.bounds.max_upstream_waiting, telemetry)
    proxy = _create_proxy(handler, settings, gate)
    if proxy is not None:
        settings, handler = proxy.settings, proxy.handler
        telemetry.agent = settings.agent_name
    limits = _limits(settings)
    create_engine = cluster.engine if cluster else partial(Engine, store)
    work = _as_handler(handler, settings, gate)
    prices = PriceTable(settings.prices)
    engine = create_engine(
        work,
        max_history_messages=settings.bounds.max_history_messages or _ANY_NUMBER,
        max_lag=settings.bounds.max_lag,
        restart_interrupted=settings.on_crash == "restart"
        or (settings.on_crash == "continue" and work.continues),
        push=push,
        working=limits.tasks,
        gate=gate,
        max_turn_seconds=settings.bounds.max_turn_seconds,
        max_context_wait=settings.bounds.max_context_wait,
        parallel_tasks=settings.parallel_tasks,
        max_event_bytes=settings.bounds.max_event_bytes,
        stop_grace=settings.shutdown_grace,
        keys=keys,
        filters=filters,
        input_filters=input_filters,
        ledger=_create_ledger(settings, store, prices, telemetry, has_model=handler is None),
        observer=telemetry,
    )
    if telemetry.metrics is not None:
        _watch_state(telemetry.metrics, engine, limits, gate)
    authenticator = authenticator or create_authenticator(settings)
    authenticated = not isinstance(authenticator, Anonymous)
    capabilities = Capabilities(
        tuple(extensions),
        tuple(skills),
        tuple(input_modes) or settings.card.input_modes,
        tuple(output_modes) or settings.card.output_modes,
        webhook_keys=signers[0].keys_url if signers and push else "",
    )
    if proxy is not None:
        capabilities = proxy.capabilities(capabilities)
    operations = Operations(
        engine,
        push,
        capabilities=capabilities,
        extended_card=_signed(extended_card, signers),
        challenge='Bearer realm="tailrace"' if authenticated else "",
        limits=limits,
        approvers=parse_approvers(settings.approvers),
        observer=telemetry,
    )
    guard = RequestGuard(settings, authenticated=authenticated)
    uploads = Uploads(settings.bounds.body_timeout)
    models = ServedModels(settings, _names(settings), create_embedding_models(settings))
    authentication = Reporting(authenticator)
    jsonrpc = JsonRpcBinding(operations, settings, authentication, (Version10(), Version03(), Version01()))
    grpc_server = _create_grpc_server(operations, settings, authentication, telemetry, guard)

    @asynccontextmanager
    async def lifespan(_app: object) -> AsyncGenerator[None]:
        await prices.load()
        async with (
            authentication.running(),
            engine.running(),
            models.running(),
            uploads.ending_with(operations.stopping),
            grpc_server.running() if grpc_server else nullcontext(),
            operations.streams.cut_off(operations.stopping, settings.shutdown_grace + STOP_TIMEOUT),
        ):
            with handle_signals(lambda: operations.stopping.set()):
                yield

    route_class = observed_route(telemetry, guarded_route(guard, uploads))
    # No redirects between paths with and without a slash: they would respond before the guard, with an unverified host.
    router = APIRouter(lifespan=lifespan, route_class=route_class, redirect_slashes=False)

    CardEndpoint(
        settings,
        authenticator.schemes(),
        guard,
        lambda: grpc_server.port if grpc_server else None,
        capabilities=capabilities,
        has_extended=extended_card is not None,
        signers=signers,
    ).add_to(router)
    if signers:
        from tailrace.server.protocols.a2a.card_signing import add_keys_to

        add_keys_to(router, signers)

    token = settings.metrics_token
    OperatorEndpoints(
        engine.health,
        authentication,
        telemetry.metrics,
        token=token.get_secret_value() if token else None,
        guard=guard,
    ).add_to(router)
    token = settings.operator_token
    UsageEndpoint(
        store, authentication, token=token.get_secret_value() if token else None, guard=guard
    ).add_to(router)
    router.add_api_route("/", jsonrpc.handle, methods=["POST"], include_in_schema=False)
    if "openai" in settings.endpoints:
        facade = OpenAIFacade(
            operations,
            settings,
            authentication,
            models,
            gate,
            user_is_key=openai_user_is_key,
            native_tools=work.accepts_native_tools,
        )
        facade.add_to(router)
    if "ai-sdk" in settings.endpoints:
        AiSdkEndpoint(operations, settings, authentication).add_to(router)
    if "ag-ui" in settings.endpoints:
        AgUiEndpoint(operations, settings, authentication).add_to(router)
    # 0.3 first: its routes would match those of a tenant named v1.
    for version in (VERSION_0_3, VERSION_1_0):
        HttpJsonBinding(operations, settings, authentication, version).add_to(router)
    if "playground" in settings.endpoints:
        Playground().add_to(router)
    if "openapi" in settings.endpoints:
        add_description_to(router, security=authenticator.schemes())
    return router


def _watch_state(metrics: Metrics, engine: Engine, limits: Limits, gate: UpstreamGate) -> None:
    """Add metrics that are read from the state of the server at each scrape."""
    metrics.watch("tailrace_streams_open", "Open streams", lambda: limits.streams.used)
    metrics.watch("tailrace_tasks_running", "Running tasks", lambda: limits.tasks.used)
    metrics.watch(
        "tailrace_upstream_calls_running", "Calls to the provider in progress", lambda: gate.under_way
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


def _settings_of_environment() -> Settings:
    warning = unread_env_file()
    if warning:
        logger.warning("%s (in code: Settings(_env_file=…))", warning)
    return Settings()


def _names(settings: Settings) -> tuple[str, ...]:
    """Return the model names that OpenAI clients may use: the agent's name, and its model's."""
    model = (settings.model or "").partition(":")[2]
    return tuple(dict.fromkeys(name for name in (settings.agent_name, model) if name))


def _signed(card: ExtendedCard | AgentCard | None, signers: "Sequence[CardSigner]") -> ExtendedCard | None:
    """Return the extended card, signed."""
    if card is None or not signers:
        return card if callable(card) or card is None else lambda _: card
    from tailrace.server.protocols.a2a.card_signing import sign_card

    def signed_card(caller: Caller) -> AgentCard | None:
        unsigned = card if isinstance(card, AgentCard) else card(caller)
        return sign_card(unsigned, signers) if unsigned is not None else None

    return signed_card


def _create_signers(settings: Settings) -> "Sequence[CardSigner]":
    if not settings.card.signing_keys:
        return ()
    from tailrace.server.protocols.a2a.card_signing import create_signers

    return create_signers(settings)


def _retention(settings: Settings) -> Retention:
    retention = settings.retention
    return Retention(retention.events or None, retention.tasks or None, retention.usage or None)


def _create_ledger(
    settings: Settings, store: Store, prices: PriceTable, observer: Telemetry, *, has_model: bool
) -> UsageLedger:
    """Create the ledger. A handler in code or a remote agent calls models that the server does not know."""
    provider, _, model = (settings.model or "").partition(":") if has_model else ("", "", "")
    provider = find_provider(provider).name if provider else ""
    budgets = (
        Budgets(settings.budgets, store, prices, is_shared=bool(settings.events))
        if settings.budgets
        else None
    )
    return UsageLedger(observer.agent, provider, model, prices, observer.usage_recorded, budgets)


def _create_cluster(
    settings: Settings, store: Store | None, keys: SecretKeys, observer: Observer
) -> "Cluster | None":
    """Create the parts of a node; None for a single server."""
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


def _create_grpc_server(
    operations: Operations,
    settings: Settings,
    authenticator: Authenticator,
    observer: Observer,
    guard: RequestGuard,
) -> "GrpcServer | None":
    if settings.grpc_port is None:
        return None
    try:
        from tailrace.server.protocols.a2a.grpc import GrpcServer
    except ImportError as error:
        raise ConfigurationError(
            f"TAILRACE_GRPC_PORT: gRPC requires further packages: pip install 'tailrace[grpc]' ({error})"
        ) from None
    return GrpcServer(operations, settings, authenticator, observer, guard=guard)


def _create_proxy(
    handler: Handler | HandlerFunction | None, settings: Settings, gate: UpstreamGate
) -> "AgentProxy | None":
    """Create the proxy of a remote agent, whose card is fetched here; None without one.

    Raises:
        ConfigurationError: A model or a handler is set as well.
        UpstreamError: The agent cannot be reached.
    """
    if not settings.agent:
        return None
    if handler is not None or settings.model is not None:
        raise ConfigurationError(
            "more than one of these is set: an agent (--agent, TAILRACE_AGENT), a model (--model, TAILRACE_MODEL), a "
            "handler in code; set only one"
        )
    from tailrace.server.remote.agent_proxy import AgentProxy

    return AgentProxy(settings, gate)


def _read_filters(path: Path | None) -> tuple[StreamFilter, ...]:
    """Read a file of filters."""
    if path is None:
        return ()
    try:
        from tailrace.server.runtime.word_filters import read_filters  # an extra
    except ImportError as error:
        raise ConfigurationError(str(error)) from error
    return read_filters(path)


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


def _as_handler(handler: Handler | HandlerFunction | None, settings: Settings, gate: UpstreamGate) -> Handler:
    if isinstance(handler, Handler):
        return handler
    if handler is not None:
        return FunctionHandler(handler)
    return AgentHandler(create_agent(settings, gate), on_lost_result=settings.on_lost_result)

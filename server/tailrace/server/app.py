"""The ASGI application, and a router to mount in somebody else's.

What a server needs is decided here and nowhere else: which handler does the work, where tasks are kept, and which
addresses answer.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from opentelemetry.trace import TracerProvider
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from tailrace.server.agent_handler import AgentHandler
from tailrace.server.auth import Anonymous, Authenticator, Reporting, create_authenticator
from tailrace.server.bindings.http_json import VERSION_1_0, HttpJsonBinding
from tailrace.server.bindings.http_json_v0_3 import VERSION_0_3
from tailrace.server.bindings.jsonrpc import JsonRpcBinding
from tailrace.server.bindings.unknown_routes import answer_unknown_routes
from tailrace.server.card import CardEndpoint
from tailrace.server.engine import Engine
from tailrace.server.facade import OpenAIFacade
from tailrace.server.handlers import FunctionHandler, Handler, HandlerFunction
from tailrace.server.limits import GatedModel, Limits, UpstreamGate
from tailrace.server.observability import NO_OBSERVER, Observer
from tailrace.server.observability.creation import create_telemetry, watch_state
from tailrace.server.observability.endpoints import PATHS as OPERATOR_PATHS
from tailrace.server.observability.endpoints import OperatorEndpoints
from tailrace.server.observability.requests import observed_route
from tailrace.server.offer import Offer
from tailrace.server.openapi import add_description_to
from tailrace.server.operations import Caller, ExtendedCard, Operations
from tailrace.server.origins import allow_origins
from tailrace.server.playground import Playground
from tailrace.server.push import PushNotifier
from tailrace.server.settings import Settings
from tailrace.server.shutdown import told_of_signals
from tailrace.server.sse import STOP_TIMEOUT
from tailrace.server.store import Retention, Store
from tailrace.server.ui_streams import AgUiEndpoint, AiSdkEndpoint
from tailrace.server.webhook_client import WebhookClient
from tailrace.server.webhooks import WebhookGuard
from tailrace.streaming.a2a.models import AgentCard, AgentExtension, AgentSkill
from tailrace.streaming.a2a.v0_1 import Version01
from tailrace.streaming.a2a.v0_3 import Version03
from tailrace.streaming.a2a.v1_0 import Version10
from tailrace.streaming.agent import Agent
from tailrace.streaming.tool_specs import parse_tools
from tailrace.streaming.tools import Tool, Toolset
from tailrace.streaming.trimming import TokenBudget, keep_all
from tailrace.wrappers import ConfigurationError, providers
from tailrace.wrappers.model import Model

if TYPE_CHECKING:
    from tailrace.server.bindings.grpc import GrpcServer  # an extra
    from tailrace.server.cluster.assembly import Cluster  # an extra, too
    from tailrace.server.sdk.front import Front  # an extra
    from tailrace.server.signing import CardSigner  # brings much with it

_ANY_NUMBER = 2**31 - 1  # of messages: what every database takes for one


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
    tracer_provider: TracerProvider | None = None,
) -> FastAPI:
    """An application that serves one agent at its root.

    Args:
        settings: Read from the environment when None.
        handler: Does the work; made from ``settings.model`` or ``settings.agent`` when None.
        store: Keeps tasks and conversations; made from ``settings.store`` when None.
        authenticator: Says who asks; made from the settings when None.
        extended_card: A further card for callers that are known, or what gives each caller its own (None for one
            that has none). The agent declares that there is one when this is given.
        extensions: Extensions that the handler speaks; it finds those that a request uses in `Turn.extensions`. One
            that is ``required`` must be asked for by every request.
        skills: What the agent is good at, for the card.
        input_modes: Media types that messages may hold (``image/*``); ``settings.input_modes`` when empty.
        output_modes: Media types that the agent gives, for the card; ``settings.output_modes`` when empty.
        card_signers: Sign the cards; made from the settings when empty.
        tracer_provider: Records spans (``docs/observability.md``); the one that is configured for the process when None.

    Raises:
        ConfigurationError: Neither a handler nor a model nor an agent is given, or a setting cannot be used.
        UpstreamError: The agent of ``settings.agent``, which is asked for its card here, cannot be reached.
    """
    settings = settings or Settings()
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
        tracer_provider=tracer_provider,
    )
    app = FastAPI(
        title="tailrace",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # Its spans of requests are the beginning of ours; those within them, and of probes, say nothing to anybody.
        telemetry={
            "tracer_provider": tracer_provider,
            "operation_spans": False,
            "exclude": lambda scope: scope["path"] in OPERATOR_PATHS,
        },
        routes=[_plain(route) for route in router.routes],
        lifespan=router.lifespan_context,
    )
    answer_unknown_routes(app, router)
    allow_origins(app, settings.allowed_origins)
    return app


def _plain(route: BaseRoute) -> BaseRoute:
    """A route without what FastAPI does for dependencies, of which this application has none.

    It would cost every request time, and every open stream memory.
    """
    if isinstance(route, APIRoute):
        route.app = _answering(route.endpoint)
    return route


def _answering(endpoint: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
    """An endpoint as an application; what it raises is for the whole application's handlers."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)

    return answer


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
    tracer_provider: TracerProvider | None = None,
) -> APIRouter:
    """The agent's addresses as a router, to be included in a FastAPI application under any prefix.

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
        tracer_provider: As for `create_app`.

    Raises:
        ConfigurationError: As `create_app`.
        UpstreamError: As `create_app`.
    """
    settings = settings or Settings()
    cluster = _create_cluster(settings, store)
    store = cluster.store if cluster else store or Store(settings.store, _retention(settings))
    telemetry = create_telemetry(settings, tracer_provider)
    push = create_notifier(settings, store, telemetry)
    gate = UpstreamGate(settings.max_upstream_calls, settings.max_upstream_waiting, telemetry)
    front = _create_front(handler, settings, gate)
    if front is not None:
        settings, handler = front.settings, front.handler
        telemetry.agent = settings.agent_name
    limits = _limits(settings)
    create_engine = cluster.engine if cluster else partial(Engine, store)
    engine = create_engine(
        _as_handler(handler, settings, gate),
        max_history_messages=settings.max_history_messages or _ANY_NUMBER,
        max_lag=settings.max_lag,
        restart_interrupted=settings.on_orphan == "restart",
        push=push,
        working=limits.tasks,
        gate=gate,
        max_turn_seconds=settings.max_turn_seconds,
        max_event_bytes=settings.max_event_bytes,
        stop_grace=settings.shutdown_grace,
        observer=telemetry,
    )
    if telemetry.metrics is not None:
        watch_state(telemetry.metrics, engine, limits, gate)
    authenticator = authenticator or create_authenticator(settings)
    offer = Offer(
        tuple(extensions),
        tuple(skills),
        tuple(input_modes) or _listed(settings.input_modes),
        tuple(output_modes) or _listed(settings.output_modes),
    )
    if front is not None:
        offer = front.offer(offer)
    signers = tuple(card_signers) or _create_signers(settings)
    operations = Operations(
        engine,
        push,
        offer=offer,
        extended_card=_signed(extended_card, signers),
        challenge="" if isinstance(authenticator, Anonymous) else 'Bearer realm="tailrace"',
        limits=limits,
        observer=telemetry,
    )
    asked = Reporting(authenticator)
    jsonrpc = JsonRpcBinding(operations, settings, asked, (Version10(), Version03(), Version01()))
    grpc_server = _create_grpc_server(operations, settings, asked, telemetry)

    @asynccontextmanager
    async def lifespan(_app: object) -> AsyncGenerator[None]:
        async with (
            asked.running(),
            engine.running(),
            grpc_server.running() if grpc_server else nullcontext(),
            operations.streams.cut_off(operations.stopping, settings.shutdown_grace + STOP_TIMEOUT),
        ):
            with told_of_signals(lambda: operations.stopping.set()):
                yield

    router = APIRouter(lifespan=lifespan, route_class=observed_route(telemetry))

    CardEndpoint(
        settings,
        authenticator.schemes(),
        lambda: grpc_server.port if grpc_server else None,
        offer=offer,
        has_extended=extended_card is not None,
        signers=signers,
    ).add_to(router)
    if signers:
        from tailrace.server.signing import add_keys_to

        add_keys_to(router, signers)
    if settings.openapi:
        add_description_to(router)

    token = settings.metrics_token
    OperatorEndpoints(
        engine.health, asked, telemetry.metrics, token=token.get_secret_value() if token else None
    ).add_to(router)
    router.add_api_route("/", jsonrpc.handle, methods=["POST"], include_in_schema=False)
    if settings.openai_facade:
        OpenAIFacade(operations, settings, asked, _names(settings)).add_to(router)
    if settings.ai_sdk:
        AiSdkEndpoint(operations, settings, asked).add_to(router)
    if settings.ag_ui:
        AgUiEndpoint(operations, settings, asked).add_to(router)
    # 0.3 first: its addresses would be those of a tenant named v1.
    for version in (VERSION_0_3, VERSION_1_0):
        HttpJsonBinding(operations, settings, asked, version).add_to(router)
    if settings.playground:
        Playground().add_to(router)
    return router


def _names(settings: Settings) -> tuple[str, ...]:
    """What clients of OpenAI may call the agent: by its own name, or by its model's."""
    model = (settings.model or "").partition(":")[2]
    return tuple(dict.fromkeys(name for name in (settings.agent_name, model) if name))


def _listed(setting: str) -> tuple[str, ...]:
    return tuple(item for each in setting.split(",") if (item := each.strip()))


def _signed(card: ExtendedCard | AgentCard | None, signers: "Sequence[CardSigner]") -> ExtendedCard | None:
    """What gives the extended card, signed."""
    if card is None or not signers:
        return card if callable(card) or card is None else lambda _: card
    from tailrace.server.signing import sign_card

    def give(caller: Caller) -> AgentCard | None:
        given = card if isinstance(card, AgentCard) else card(caller)
        return sign_card(given, signers) if given is not None else None

    return give


def _create_signers(settings: Settings) -> "Sequence[CardSigner]":
    if not settings.card_signing_keys:
        return ()
    from tailrace.server.signing import create_signers

    return create_signers(settings)


def _retention(settings: Settings) -> Retention:
    return Retention(settings.event_retention or None, settings.task_retention or None)


def _create_cluster(settings: Settings, store: Store | None) -> "Cluster | None":
    """What makes this server one of several; None where it is the only one."""
    if not settings.events:
        if settings.workers > 1:
            raise ConfigurationError(
                "several workers (--workers, TAILRACE_WORKERS) need a broker and a PostgreSQL that they share: set "
                "TAILRACE_EVENTS=redis://HOST:PORT/0 and TAILRACE_STORE=postgresql://USER:PASSWORD@HOST/DATABASE"
            )
        return None
    if store is not None:
        raise ConfigurationError(
            "TAILRACE_EVENTS: the store of several servers is made from TAILRACE_STORE, and one is given in code"
        )
    from tailrace.server.cluster.assembly import Cluster

    return Cluster(settings, _retention(settings))


def create_notifier(
    settings: Settings, store: Store, observer: Observer = NO_OBSERVER
) -> PushNotifier | None:
    """What tells webhooks, as the settings say; None where push notifications are switched off."""
    if not settings.push_notifications:
        return None
    client = WebhookClient(
        WebhookGuard(allow_private=settings.push_allow_private),
        timeout=settings.push_timeout,
        attempts=settings.push_attempts,
        observer=observer,
    )
    return PushNotifier(store, client)


def _create_grpc_server(
    operations: Operations, settings: Settings, authenticator: Authenticator, observer: Observer
) -> "GrpcServer | None":
    if settings.grpc_port is None:
        return None
    try:
        from tailrace.server.bindings.grpc import GrpcServer
    except ImportError as error:
        raise ConfigurationError(
            f"TAILRACE_GRPC_PORT: gRPC needs more packages: pip install 'tailrace[grpc]' ({error})"
        ) from None
    return GrpcServer(operations, settings, authenticator, observer)


def _create_front(
    handler: Handler | HandlerFunction | None, settings: Settings, gate: UpstreamGate
) -> "Front | None":
    """What stands in front of a remote agent, whose card is fetched here; None where there is none.

    Raises:
        ConfigurationError: There is something else to do the work, or the SDK is not installed.
        UpstreamError: The agent cannot be reached.
    """
    if not settings.agent:
        return None
    if handler is not None or settings.model is not None:
        raise ConfigurationError(
            "one of an agent (--agent, TAILRACE_AGENT), a model (--model, TAILRACE_MODEL) and a handler does the "
            "work, and more than one is given"
        )
    try:
        from tailrace.server.sdk.front import Front
    except ImportError as error:
        raise ConfigurationError(
            f"TAILRACE_AGENT: a remote agent needs more packages: pip install 'tailrace[sdk]' ({error})"
        ) from None
    return Front(settings, gate)


def create_model(settings: Settings) -> Model:
    """The model that ``settings.model`` names as ``provider:model``.

    Raises:
        ConfigurationError: No model is set, its provider is unknown, or its key is missing.
    """
    if not settings.model:
        raise ConfigurationError(
            "no model: give --model PROVIDER:MODEL or set TAILRACE_MODEL, for example openai:gpt-5-mini; or "
            "--agent URL, or TAILRACE_AGENT, for a remote agent"
        )
    timeouts = {"read_timeout": settings.read_timeout} if settings.read_timeout is not None else {}
    return providers.create_model(
        settings.model,
        base_url=settings.base_url,
        api_key=settings.api_key.get_secret_value() if settings.api_key else None,
        connect_timeout=settings.connect_timeout,
        max_retries=settings.upstream_retries,
        **timeouts,
    )


def _tools(settings: Settings) -> list[Tool | Toolset]:
    tools: list[Tool | Toolset] = []
    for spec in settings.tools:
        parsed = parse_tools(spec)
        tools += parsed if isinstance(parsed, list) else [parsed]
    return tools


def _limits(settings: Settings) -> Limits:
    return Limits(
        max_streams=settings.max_streams,
        max_caller_streams=settings.max_caller_streams,
        max_tasks=settings.max_tasks,
        max_caller_tasks=settings.max_caller_tasks,
        max_part_bytes=settings.max_part_bytes,
    )


def _as_handler(handler: Handler | HandlerFunction | None, settings: Settings, gate: UpstreamGate) -> Handler:
    if isinstance(handler, Handler):
        return handler
    if handler is not None:
        return FunctionHandler(handler)
    agent: Agent[str] = Agent(
        GatedModel(create_model(settings), gate),
        tools=_tools(settings),
        instructions=settings.instructions,
        max_rounds=settings.max_rounds,
        tool_timeout=settings.tool_timeout,
        history_policy=TokenBudget(settings.history_tokens) if settings.history_tokens else keep_all,
        merge_reads=settings.coalesce == "read",
        think_tags=settings.think_tags,
    )
    return AgentHandler(agent)

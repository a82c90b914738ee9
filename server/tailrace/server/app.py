"""The ASGI application, and a router to mount in another application."""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI
from opentelemetry.trace import TracerProvider

from tailrace.server.agent_factory import agent_names, create_embedding_models, prepare_agent
from tailrace.server.agent_routes import AgentRoutes
from tailrace.server.auth.authentication import Authenticator
from tailrace.server.former_settings import unread_env_file
from tailrace.server.protocols.openai.models import ServedModels
from tailrace.server.runtime.agent_capabilities import Capabilities
from tailrace.server.runtime.handlers import Handler, HandlerFunction
from tailrace.server.runtime.operations import ExtendedCard, Operations
from tailrace.server.runtime.served_agents import ServedAgents
from tailrace.server.runtime.stream_filter import StreamFilter
from tailrace.server.server_core import ServerCore, create_application
from tailrace.server.settings import Settings
from tailrace.server.store.store import Store
from tailrace.streaming.a2a.models import AgentCard, AgentExtension, AgentSkill
from tailrace.wrappers import ConfigurationError

if TYPE_CHECKING:
    from tailrace.server.protocols.a2a.card_signing import CardSigner  # imports the cryptography library
    from tailrace.server.protocols.a2a.grpc import GrpcServer  # an optional dependency

logger = logging.getLogger("tailrace.server")


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
        extended_card: An extended card for authenticated callers, or a function that returns the card of a caller (None if there
            is none).
        extensions: Extensions that the handler supports. Every request must activate those that are ``required``.
        skills: The agent's skills, for the card.
        input_modes: Media types of accepted messages (``image/*``); ``settings.card.input_modes`` when empty.
        output_modes: Media types of the agent's output; ``settings.card.output_modes`` when empty.
        card_signers: Sign the cards; created from the settings when empty.
        openai_user_is_key: True to use the member ``user`` of a request to the OpenAI-compatible API as the id of the
            conversation, unless the request has another one.
        tracer_provider: Records spans (``docs/observability.md``); the global tracer provider when None.
        filters: Filters for the output of each turn, in the order in which they are applied, before those of ``settings.filters``
            (``docs/filters.md``).
        input_filters: Filters for messages of callers, in addition to ``settings.input_filters``. A message that a filter changes
            or blocks is refused.

    Raises:
        ConfigurationError: A setting is invalid, or not exactly one of these is set: a handler, a model, a remote agent.
        UpstreamError: The card of the remote agent cannot be fetched.
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
    return create_application(router, settings, tracer_provider)


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
    """Create a router with the agent's routes, to mount in a FastAPI application. The arguments are as for `create_app`.

    The lifespan of the router, which FastAPI runs in the lifespan of the application, starts and stops the engine.

    Raises:
        ConfigurationError: See `create_app`.
        UpstreamError: See `create_app`.
    """
    settings = settings or _settings_of_environment()
    core = ServerCore(
        settings,
        store=store,
        authenticator=authenticator,
        card_signers=card_signers,
        tracer_provider=tracer_provider,
    )
    capabilities = Capabilities(
        tuple(extensions),
        tuple(skills),
        tuple(input_modes),
        tuple(output_modes),
        webhook_keys=core.webhook_keys,
    )
    agent = prepare_agent(
        settings,
        core.gate,
        handler=handler,
        capabilities=capabilities,
        filters=filters,
        input_filters=input_filters,
    )
    settings = agent.settings
    core.telemetry.agent = settings.agent_name
    engine = core.create_engine(
        ServedAgents([agent.served]), can_continue=agent.served.handler.continues_after_crash
    )
    routes = AgentRoutes(core, engine, agent, core.authentication, extended_card=extended_card)
    models = ServedModels(
        settings,
        agent_names(settings),
        create_embedding_models(settings),
        accepts_native_tools=agent.served.handler.accepts_native_tools,
    )
    grpc_server = _create_grpc_server(core, settings, routes.operations)

    @asynccontextmanager
    async def lifespan(_app: object) -> AsyncGenerator[None]:
        grpc = grpc_server.running() if grpc_server else nullcontext()
        async with core.running(engine, models.running(), grpc):
            yield

    router = core.create_router(lifespan=lifespan)
    core.add_routes(router, engine)
    routes.add_to(
        router,
        models,
        user_is_key=openai_user_is_key,
        grpc_port=lambda: grpc_server.port if grpc_server else None,
    )
    return router


def _settings_of_environment() -> Settings:
    warning = unread_env_file()
    if warning:
        logger.warning("%s (in code: Settings(_env_file=…))", warning)
    return Settings()


def _create_grpc_server(core: ServerCore, settings: Settings, operations: Operations) -> "GrpcServer | None":
    if settings.grpc_port is None:
        return None
    try:
        from tailrace.server.protocols.a2a.grpc import GrpcServer
    except ImportError as error:
        raise ConfigurationError(
            f"TAILRACE_GRPC_PORT: gRPC requires further packages: pip install 'tailrace[grpc]' ({error})"
        ) from None
    return GrpcServer(
        operations, settings, core.authentication, core.telemetry, origin_guard=core.origin_guard
    )

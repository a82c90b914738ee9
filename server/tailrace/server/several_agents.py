"""A server for the agents of a configuration file. SIGHUP reloads the file.

Each agent has all protocols at ``/agents/NAME/``. The root has the OpenAI-compatible API (each agent is a model), the routes for
operators, a catalog, and a page with links to the agents.
"""

import logging
import signal
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from fastapi import APIRouter, FastAPI
from opentelemetry.trace import TracerProvider
from starlette.routing import Mount

from tailrace.server.agent_factory import PreparedAgent, agent_names, prepare_agent
from tailrace.server.agent_routes import AgentRoutes
from tailrace.server.auth.agent_authentication import (
    AgentAuthenticator,
    Permission,
    ReplaceableKeys,
    parse_callers,
)
from tailrace.server.auth.authentication import LoggingAuthenticator
from tailrace.server.auth.authenticator_factory import create_authenticator, create_keys
from tailrace.server.http.agents_page import AgentsPage, ListedAgent
from tailrace.server.protocols.openai import OpenAIFacade
from tailrace.server.protocols.openai.models import ModelNames, ServedModels, unknown_model
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.server.runtime.agent_capabilities import Capabilities
from tailrace.server.runtime.approvals import parse_approvers
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.operations import Operations
from tailrace.server.runtime.served_agents import ServedAgents
from tailrace.server.server_config import AgentConfig, LoadConfig, ServerConfig
from tailrace.server.server_core import ServerCore, create_application
from tailrace.server.settings import Settings
from tailrace.wrappers import TailraceError

logger = logging.getLogger("tailrace.server")


@dataclass(eq=False)
class _Agent:
    """An agent with its configuration and, after their creation, its routes."""

    config: AgentConfig
    prepared: PreparedAgent
    permits: Permission
    routes: APIRouter | None = None

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def path(self) -> str:
        return f"agents/{self.name}/"

    def is_unchanged(self, config: AgentConfig) -> bool:
        """Return whether a configuration describes the same agent; False if it has filter files, which may have changed."""
        own = self.config
        has_files = config.settings.filters or config.settings.input_filters
        return not has_files and (own.settings, own.fallbacks) == (config.settings, config.fallbacks)


def create_several_agents_app(
    config: ServerConfig,
    load_config: LoadConfig | None = None,
    *,
    tracer_provider: TracerProvider | None = None,
) -> FastAPI:
    """Create an application that serves the agents of a configuration file.

    Args:
        config: The content of the file.
        load_config: Reads the file again on SIGHUP, in a thread; None to leave the handling of SIGHUP unchanged. A running turn
            completes with the agent that began it. If the file is not valid, nothing changes.
        tracer_provider: As for `tailrace.server.create_app`.

    Raises:
        ConfigurationError: A setting is invalid.
        UpstreamError: The card of a remote agent cannot be fetched.
    """
    return _SeveralAgents(config, load_config, tracer_provider).app


class _SeveralAgents:
    def __init__(
        self,
        config: ServerConfig,
        load_config: LoadConfig | None,
        tracer_provider: TracerProvider | None,
    ) -> None:
        self._settings = config.settings
        self._load_config = load_config
        keys = create_keys(config.settings)
        self._keys = keys and ReplaceableKeys(keys)
        try:
            self._core = ServerCore(
                config.settings,
                authenticator=create_authenticator(config.settings, self._keys),
                tracer_provider=tracer_provider,
            )
        except TailraceError as error:
            raise config.error(f"[server]: {error}") from error
        agents = self._prepare(config, ())
        self._served = ServedAgents(agent.prepared.served for agent in agents)
        self._agents = agents
        self._engine = self._core.create_engine(self._served, can_continue=True)
        router = self._router(agents, lifespan=self._running)
        self.app = create_application(router, config.settings, tracer_provider)

    def _prepare(self, config: ServerConfig, current: Sequence[_Agent]) -> list[_Agent]:
        """Create the agents of a configuration, or reuse them if their configuration has not changed."""
        by_name = {agent.name: agent for agent in current}
        found: list[_Agent] = []
        for each in config.agents:
            known = by_name.get(each.name)
            if known is None or not known.is_unchanged(each):
                found.append(_Agent(each, self._prepare_agent(config, each), parse_callers(each.callers)))
            elif known.config.callers != each.callers:
                found.append(_Agent(each, known.prepared, parse_callers(each.callers)))
            else:
                found.append(known)
        return found

    def _prepare_agent(self, config: ServerConfig, agent: AgentConfig) -> PreparedAgent:
        try:
            prepared = prepare_agent(
                agent.settings,
                self._core.gate,
                name=agent.name,
                fallbacks=agent.fallbacks,
                capabilities=Capabilities(webhook_keys=self._core.webhook_keys),
            )
        except TailraceError as error:
            raise _error_of(config, agent.name, error) from error
        served = replace(prepared.served, start_error=partial(_error_of, config, agent.name))
        return replace(prepared, served=served)

    # --- routes -------------------------------------------------------------------------------------------------

    def _router(self, agents: Sequence[_Agent], **options: object) -> APIRouter:
        core = self._core
        router = core.create_router(**options)
        core.add_routes(router, self._engine)
        listed = [
            ListedAgent(
                agent.path,
                agent.prepared.settings.agent_name,
                agent.prepared.settings.card.description,
                has_page="playground" in agent.prepared.settings.endpoints,
            )
            for agent in agents
        ]
        AgentsPage(listed, core.origin_guard, self._settings.public_url or "").add_to(router)
        if "openai" in self._settings.endpoints:
            by_name = {agent.name: agent for agent in agents}
            operations = _RootOperations(core, self._engine, by_name)
            models = AgentModels(by_name)
            OpenAIFacade(operations, self._settings, core.authentication, models, core.gate).add_to(router)
        for agent in agents:
            agent.routes = agent.routes or self._agent_routes(agent)
            router.routes.append(Mount(f"/{agent.path.removesuffix('/')}", agent.routes))
        return router

    def _agent_routes(self, agent: _Agent) -> APIRouter:
        core, prepared = self._core, agent.prepared
        router = core.create_router()
        authentication = LoggingAuthenticator(
            AgentAuthenticator(core.authenticator, agent.name, agent.permits)
        )
        names = agent_names(prepared.settings)
        native_tools = prepared.served.handler.accepts_native_tools
        models = ServedModels(prepared.settings, names, {}, accepts_native_tools=native_tools)
        AgentRoutes(core, self._engine, prepared, authentication).add_to(router, models, owns_router=True)
        return router

    # --- running ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _running(self, _app: object) -> AsyncGenerator[None]:
        is_main = threading.current_thread() is threading.main_thread()
        # Only the main thread can receive signals. Windows has no SIGHUP.
        if self._load_config is None or not is_main or not hasattr(signal, "SIGHUP"):
            async with self._core.running(self._engine):
                yield
            return
        before = signal.getsignal(signal.SIGHUP)
        try:
            # A signal that is not received would end the process.
            requests, receiver = anyio.create_memory_object_stream[None](1)
            async with requests, receiver, anyio.create_task_group() as group:
                await group.start(_receive_signals, requests)
                async with self._core.running(self._engine):
                    group.start_soon(self._reload_on_request, receiver, self._load_config)
                    yield
                group.cancel_scope.cancel()
        finally:
            signal.signal(signal.SIGHUP, before)

    async def _reload_on_request(
        self, requests: MemoryObjectReceiveStream[None], load_config: LoadConfig
    ) -> None:
        async for _ in requests:
            if self._engine.stop_requested.is_set():
                continue
            try:
                await self._reload(load_config)
            except TailraceError as error:
                logger.error("the configuration is not reloaded: %s", error)
            except Exception:
                logger.exception("the configuration is not reloaded")

    async def _reload(self, load_config: LoadConfig) -> None:
        """Read the configuration and replace the agents and the keys of callers.

        Raises:
            TailraceError: The configuration cannot be used.
        """
        config = await anyio.to_thread.run_sync(load_config, self._settings)
        keys = create_keys(config.settings)
        if (keys is None) != (self._keys is None):
            raise config.error(
                "adding the first table [callers.NAME], or removing the last one, requires a restart"
            )
        agents = await anyio.to_thread.run_sync(self._prepare, config, self._agents)
        router = await anyio.to_thread.run_sync(self._router, agents)
        await self._served.replace(agent.prepared.served for agent in agents)
        if self._keys is not None and keys is not None:
            self._keys.current = keys
        self._agents = agents
        self.app.router.routes[:] = router.routes
        logger.info("the configuration is reloaded; agents: %s", ", ".join(agent.name for agent in agents))
        changed = _changed(self._settings, config.settings)
        if changed:
            logger.warning("changes of [server] require a restart: %s", ", ".join(changed))


class _RootOperations(Operations):
    """The operations of the API at the root, where the name of the model selects the agent."""

    def __init__(self, core: ServerCore, engine: Engine, agents: Mapping[str, _Agent]) -> None:
        approvers = {name: parse_approvers(agent.config.settings.approvers) for name, agent in agents.items()}

        def may_approve(caller: Caller) -> bool:
            return caller.agent in approvers and approvers[caller.agent](caller)

        super().__init__(
            engine,
            core.push,
            limits=core.limits,
            approvers=may_approve,
            observer=core.telemetry,
            streams=core.streams,
        )
        self._agents = agents

    def capabilities_for(self, caller: Caller) -> Capabilities:
        """Return the capabilities of the selected agent, or else the general capabilities."""
        agent = self._agents.get(caller.agent)
        return agent.prepared.served.capabilities if agent is not None else self.capabilities


def _error_of(config: ServerConfig, name: str, error: TailraceError) -> TailraceError:
    """Return an error about the configuration file for an agent that cannot be served."""
    return config.error(f"[agents.{name}]: {error}")


async def _receive_signals(requests: MemoryObjectSendStream[None], *, task_status: TaskStatus[None]) -> None:
    """Request a reload for each SIGHUP, unless a request already waits."""
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # blocked since the start of the process
        task_status.started()
        async for _ in signals:
            with suppress(anyio.WouldBlock):
                requests.send_nowait(None)


class AgentModels(ModelNames):
    """The agents of a server as models."""

    def __init__(self, agents: Mapping[str, _Agent]) -> None:
        self._agents = agents

    def listed_for(self, caller: Caller) -> Sequence[str]:
        """Return the names of the agents that the caller may use."""
        return [name for name, agent in self._agents.items() if agent.permits(caller)]

    def known_name(self, name: str, caller: Caller) -> str:
        """Return the name of an agent that the caller may use."""
        agent = self._agents.get(name)
        if agent is None or not agent.permits(caller):
            raise unknown_model(name, "")
        return name

    def select(self, name: str, caller: Caller) -> tuple[str, Caller]:
        """Select an agent that the caller may use."""
        if not name:
            message = "model: required; GET /v1/models lists the names"
            raise OpenAIError(400, message, code="missing_required_parameter", param="model")
        return self.known_name(name, caller), replace(caller, agent=name)

    def accepts_native_tools(self, name: str) -> bool:
        """Return whether the model of an agent accepts native tools."""
        agent = self._agents.get(name)
        return agent is not None and agent.prepared.served.handler.accepts_native_tools

    def embedding(self, name: str) -> NoReturn:
        """Raise an error: there are no models for embeddings."""
        message = "this server has no models for embeddings, only agents"
        raise OpenAIError(400, message, code="unsupported_value", param="model")


def _changed(before: Settings, after: Settings) -> list[str]:
    """Return the names of changed settings of ``[server]`` that a reload does not apply."""
    return [
        name
        for name in Settings.model_fields
        if name != "caller_keys" and getattr(before, name) != getattr(after, name)
    ]

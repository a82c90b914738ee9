"""A server and a client of the official SDK."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from a2a.auth.user import User
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.server.agent_execution import AgentExecutor
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.server.tasks import InMemoryTaskStore, TaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from starlette.applications import Starlette
from starlette.requests import Request

from support.live_server import serving


class Named(User):
    """A user of an SDK server. By default, a user with a name is authenticated."""

    def __init__(self, name: str, *, known: bool = True) -> None:
        self._name = name
        self._known = known

    @property
    def is_authenticated(self) -> bool:
        return self._known and bool(self._name)

    @property
    def user_name(self) -> str:
        return self._name


class _ByHeader(DefaultServerCallContextBuilder):
    def build_user(self, request: Request) -> User:
        return Named(request.headers.get("x-user", ""))


@dataclass
class SdkServer:
    """A running server.

    Attributes:
        client: A client that streams.
        patient: A client that waits for the complete task.
        handler: The request handler of the server.
    """

    client: Client
    patient: Client
    handler: DefaultRequestHandler
    url: str

    @asynccontextmanager
    async def client_of(self, user: str) -> AsyncGenerator[Client]:
        """The client of a user."""
        async with httpx.AsyncClient(headers={"x-user": user}) as http:
            async with ClientFactory(ClientConfig(httpx_client=http)).create(card_at(self.url)) as client:
                yield client


def card_at(url: str) -> AgentCard:
    return AgentCard(
        name="theirs",
        description="An agent made with the SDK.",
        version="1",
        supported_interfaces=[AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="s", name="s", description="s", tags=["s"])],
    )


@asynccontextmanager
async def client_at(url: str) -> AsyncGenerator[Client]:
    """The official client of an agent at an address."""
    async with httpx.AsyncClient(timeout=60) as http:
        async with ClientFactory(ClientConfig(httpx_client=http)).create(card_at(url + "/")) as client:
            yield client


@asynccontextmanager
async def sdk_server(
    executor: AgentExecutor, store: TaskStore | None = None, **options: Any
) -> AsyncGenerator[SdkServer]:
    """Serve an executor with the SDK's own handler and routes until the block ends."""
    handler = DefaultRequestHandler(
        agent_executor=executor,
        task_store=store or InMemoryTaskStore(),
        agent_card=card_at("http://unused/"),
        **options,
    )
    routes = create_jsonrpc_routes(handler, "/", context_builder=_ByHeader())
    try:
        async with serving(Starlette(routes=routes)) as url, httpx.AsyncClient() as http:
            streaming = ClientFactory(ClientConfig(httpx_client=http)).create(card_at(url))
            waiting = ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create(card_at(url))
            yield SdkServer(streaming, waiting, handler, url)
    finally:
        await handler.aclose()


def context_of(user: str = "", tenant: str = "", state: Mapping[str, Any] | None = None) -> ServerCallContext:
    """The SDK's context for a user."""
    return ServerCallContext(user=Named(user), tenant=tenant, state=dict(state or {}))

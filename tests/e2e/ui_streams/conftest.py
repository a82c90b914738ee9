"""One server for every client of user interfaces; each client's program runs once."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from e2e.clients.agent import Agent, serving_agent
from e2e.clients.kinds import HERE as CLIENTS
from e2e.clients.kinds import Kind
from e2e.clients.programs import Client, running_client
from e2e.ui_streams.node import NODE
from support.fixture_contexts import in_own_task

PROGRAMS = CLIENTS.parent / "ui_streams/javascript"


def program(name: str, argument: str = "") -> Kind:
    """Run a program in the Node that these clients need."""
    return Kind(name, (NODE, str(PROGRAMS / f"{name}.mjs")), "", argument)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Agent]:
    # Pages have other origins than the server.
    folder = tmp_path_factory.mktemp("ui")
    async with in_own_task(serving_agent(folder, TAILRACE_ALLOWED_ORIGINS="*")) as agent:
        yield agent


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=["7", "6"])
async def ai_sdk(request: pytest.FixtureRequest, agent: Agent) -> AsyncGenerator[Client]:
    """The AI SDK, current and previous version."""
    async with in_own_task(running_client(program("ai_sdk", request.param), agent.url)) as client:
        yield client


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ag_ui(agent: Agent) -> AsyncGenerator[Client]:
    async with in_own_task(running_client(program("ag_ui"), agent.url)) as client:
        yield client


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def event_source(agent: Agent) -> AsyncGenerator[Client]:
    async with in_own_task(running_client(program("event_source"), agent.url)) as client:
        yield client

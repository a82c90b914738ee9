"""One server for every client of the session; each client's program runs once."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from e2e.clients.agent import Agent, serving_agent
from e2e.clients.kinds import CARD_PATH, EVERY_KIND, NEWEST, Kind
from e2e.clients.programs import Client, running_client
from support.fixture_contexts import in_own_task


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Agent]:
    async with in_own_task(serving_agent(tmp_path_factory.mktemp("agent"))) as agent:
        yield agent


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def another(agent: Agent) -> AsyncGenerator[Client]:
    """A client of the newest version, beside the tested one."""
    async with in_own_task(running_client(NEWEST, agent.url, CARD_PATH)) as client:
        yield client


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=EVERY_KIND)
async def client(request: pytest.FixtureRequest, agent: Agent) -> AsyncGenerator[Client]:
    kind: Kind = request.param
    async with in_own_task(running_client(kind, agent.url, CARD_PATH)) as client:
        yield client

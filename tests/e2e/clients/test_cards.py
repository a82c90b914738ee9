"""Cards that the official clients can read at the usual address, by the operator's settings, and the extended card."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from e2e.clients.agent import ANSWER, Agent, serving_agent
from e2e.clients.heard import state_of, task_of, texts_of
from e2e.clients.kinds import CARD_PATH, EVERY_KIND, Kind
from e2e.clients.programs import running_client
from support.agents import Scripted
from support.fixture_contexts import in_own_task
from support.live_server import serving
from tailrace.server import Settings, create_app
from tailrace.server.protocols.a2a.card import build_card

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def serving_card(version: str, factory: pytest.TempPathFactory) -> AsyncGenerator[Agent]:
    folder = factory.mktemp("agent")
    async with in_own_task(
        serving_agent(folder, TAILRACE_CARD=f'{{"protocol_version": "{version}"}}')
    ) as agent:
        yield agent


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def with_0_3(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Agent]:
    async for agent in serving_card("0.3", tmp_path_factory):
        yield agent


async def converse(kind: Kind, agent: Agent) -> None:
    async with running_client(kind, agent.url, CARD_PATH) as client:
        assert (await client.ask("card"))["name"] == "tailrace"
        task = task_of(await client.ask("send", text="hello"))
    assert (state_of(task), texts_of(task)) == ("completed", [ANSWER])


@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_a_card_of_0_3_is_read_by_every_client_too(kind: Kind, with_0_3: Agent) -> None:
    await converse(kind, with_0_3)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def with_extended_card() -> AsyncGenerator[str]:
    """Run an agent with an extended card, which ``tailrace serve`` does not have; yield its address."""
    settings = Settings.model_validate({"store": "sqlite://", "grpc_port": 0})
    named = settings.model_copy(update={"agent_name": "extended"})
    card = build_card(named, "https://agent.example/", has_extended=True)
    app = create_app(settings, handler=Scripted(), extended_card=card)
    async with in_own_task(serving(app)) as url:
        yield url


@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_the_extended_card_is_given(kind: Kind, with_extended_card: str) -> None:
    async with running_client(kind, with_extended_card, CARD_PATH) as client:
        assert (await client.ask("extended_card"))["name"] == "extended"

"""The server as a proxy of a remote agent: its settings, its handler, and what its card takes from the agent's."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import anyio

from tailrace.server.remote.agent_card import RemoteCard
from tailrace.server.remote.agent_handler import RemoteAgentHandler
from tailrace.server.remote.remote_agent import READ_TIMEOUT, RemoteAgent
from tailrace.server.runtime.agent_capabilities import Capabilities
from tailrace.server.runtime.upstream_gate import UpstreamGate
from tailrace.server.settings import Settings


class AgentProxy:
    """A server's parts for the remote agent that the settings name.

    The agent is asked for its card here, and waited for.

    Args:
        settings: ``agent`` says where the agent is.
        gate: Passed by each turn before it calls the agent.

    Attributes:
        settings: The same, with the name and the description of the agent's card where they say none.
        handler: Answers by the agent.

    Raises:
        UpstreamError: The agent is away, or has no card that can be used.
        ConfigurationError: ``agent`` is no URL.
    """

    def __init__(self, settings: Settings, gate: UpstreamGate) -> None:
        # In a thread, since an event loop may run here already.
        with ThreadPoolExecutor(1) as pool:
            self._card = pool.submit(anyio.run, _fetch_card, settings).result()
        named: dict[str, Any] = {}
        if self._card.name and "agent_name" not in settings.model_fields_set:
            named["agent_name"] = self._card.name
        if self._card.description and "description" not in settings.card.model_fields_set:
            named["card"] = settings.card.model_copy(update={"description": self._card.description})
        self.settings = settings.model_copy(update=named)
        self.handler = RemoteAgentHandler(_agent(settings, self._card), gate=gate)

    def capabilities(self, capabilities: Capabilities) -> Capabilities:
        """What we offer, with what the agent offers where we say nothing.

        Which media types it takes is the agent's to say for each message: cards are often wrong about it.
        """
        return replace(
            capabilities,
            skills=capabilities.skills or self._card.skills,
            input_modes=capabilities.input_modes or self._card.input_modes,
            output_modes=capabilities.output_modes or self._card.output_modes,
            checks_input=bool(capabilities.input_modes),
        )


async def _fetch_card(settings: Settings) -> RemoteCard:
    async with _agent(settings) as agent:
        return await agent.card()


def _agent(settings: Settings, card: RemoteCard | None = None) -> RemoteAgent:
    return RemoteAgent(
        settings.agent or "",
        token=settings.agent_token.get_secret_value() if settings.agent_token else "",
        card=card,
        allowed_origins=settings.agent_origins,
        connect_timeout=settings.bounds.connect_timeout,
        read_timeout=settings.bounds.read_timeout or READ_TIMEOUT,
    )

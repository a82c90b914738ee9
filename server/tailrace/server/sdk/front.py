"""Our server in front of a remote agent: what the settings say of it, its handler, and what our card takes from its."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import anyio

from tailrace.server.limits import UpstreamGate
from tailrace.server.offer import Offer
from tailrace.server.sdk.agent_cards import RemoteCard
from tailrace.server.sdk.remote_agent import READ_TIMEOUT, RemoteAgent
from tailrace.server.sdk.remote_handler import RemoteAgentHandler
from tailrace.server.settings import Settings


class Front:
    """What a server needs that fronts the agent which the settings name.

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
        named = {"agent_name": self._card.name, "agent_description": self._card.description}
        own = settings.model_fields_set
        self.settings = settings.model_copy(
            update={name: value for name, value in named.items() if value and name not in own}
        )
        self.handler = RemoteAgentHandler(_agent(settings, self._card), gate=gate)

    def offer(self, offer: Offer) -> Offer:
        """What we offer, with what the agent offers where we say nothing.

        Which media types it takes is the agent's to say for each message: cards are often wrong about it.
        """
        return replace(
            offer,
            skills=offer.skills or self._card.skills,
            input_modes=offer.input_modes or self._card.input_modes,
            output_modes=offer.output_modes or self._card.output_modes,
            checks_input=bool(offer.input_modes),
        )


async def _fetch_card(settings: Settings) -> RemoteCard:
    async with _agent(settings) as agent:
        return await agent.card()


def _agent(settings: Settings, card: RemoteCard | None = None) -> RemoteAgent:
    return RemoteAgent(
        settings.agent or "",
        token=settings.agent_token.get_secret_value() if settings.agent_token else "",
        card=card,
        connect_timeout=settings.connect_timeout,
        read_timeout=settings.read_timeout or READ_TIMEOUT,
    )

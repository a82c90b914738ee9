"""Configuration of a proxy server for a remote agent: settings, handler and agent card."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import anyio

from tailrace.server.remote.agent_card import RemoteCard
from tailrace.server.remote.agent_handler import RemoteAgentHandler
from tailrace.server.remote.client import RETRY_DELAYS
from tailrace.server.remote.remote_agent import READ_TIMEOUT, RemoteAgent
from tailrace.server.runtime.agent_capabilities import Capabilities
from tailrace.server.runtime.upstream_gate import UpstreamGate
from tailrace.server.settings import Settings
from tailrace.wrappers import UpstreamError, UpstreamFault

CARD_TIMEOUT = 10.0
"""Timeout in seconds for fetching the card of the remote agent at the start."""

DOUBLED_DELAYS = 8
"""Number of increasing delays between attempts to subscribe to a remote task again."""


class AgentProxy:
    """Settings, handler and capabilities of a server that forwards requests to a remote agent.

    The constructor blocks until it has fetched the card of the agent.

    Args:
        settings: Settings of the server; ``agent`` is the URL of the remote agent.
        gate: Limits the number of concurrent requests to the agent.

    Attributes:
        settings: The settings. The name and the description default to those of the remote agent.
        handler: Handler that forwards turns to the agent.

    Raises:
        UpstreamError: The agent cannot be reached, or its card is not valid.
        ConfigurationError: ``agent`` is not a URL.
    """

    def __init__(self, settings: Settings, gate: UpstreamGate) -> None:
        # An event loop may already run in this thread.
        with ThreadPoolExecutor(1) as pool:
            self._card = pool.submit(anyio.run, _fetch_card, settings).result()
        named: dict[str, Any] = {}
        if self._card.name and "agent_name" not in settings.model_fields_set:
            named["agent_name"] = self._card.name
        if self._card.description and "description" not in settings.card.model_fields_set:
            named["card"] = settings.card.model_copy(update={"description": self._card.description})
        self.settings = settings.model_copy(update=named)
        self.handler = RemoteAgentHandler(
            _agent(settings, self._card), gate=gate, resend=settings.on_crash == "restart"
        )

    def capabilities(self, capabilities: Capabilities) -> Capabilities:
        """Complete the capabilities of the server with those of the remote agent.

        The input media types of the card are not enforced, because they are often wrong.
        """
        return replace(
            capabilities,
            skills=capabilities.skills or self._card.skills,
            input_modes=capabilities.input_modes or self._card.input_modes,
            output_modes=capabilities.output_modes or self._card.output_modes,
            checks_input=bool(capabilities.input_modes),
        )


async def _fetch_card(settings: Settings) -> RemoteCard:
    try:
        with anyio.fail_after(CARD_TIMEOUT):
            async with _agent(settings) as agent:
                return await agent.card()
    except TimeoutError:
        raise UpstreamError(
            f"the agent did not send its card within {CARD_TIMEOUT:g} s", fault=UpstreamFault.TIMEOUT
        ) from None


def _agent(settings: Settings, card: RemoteCard | None = None) -> RemoteAgent:
    # Subscribing again costs no tokens, so only the deadline limits the number of attempts.
    continuation = settings.bounds.continuation
    delays = [max(continuation.pause(number), RETRY_DELAYS[0]) for number in range(DOUBLED_DELAYS)]
    return RemoteAgent(
        settings.agent or "",
        token=settings.agent_token.get_secret_value() if settings.agent_token else "",
        card=card,
        allowed_origins=settings.agent_origins,
        connect_timeout=settings.bounds.connect_timeout,
        read_timeout=settings.bounds.read_timeout or READ_TIMEOUT,
        retry_delays=delays,
        retry_deadline=continuation.deadline,
    )

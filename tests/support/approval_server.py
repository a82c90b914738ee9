"""A server whose tool requires an approval."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from support.live_server import serving
from support.rounds import model_at
from support.upstream import ScriptedUpstream, Step
from tailrace.server import AgentHandler, Settings, create_app
from tailrace.streaming import Agent
from tailrace.streaming.tools.approvals import ApprovalPolicy


class ApprovalServer(NamedTuple):
    """The server.

    Attributes:
        url: The URL of the server.
        upstream: The requests to its model.
        ran: The recipients of mails.
    """

    url: str
    upstream: ScriptedUpstream
    ran: list[str]


@asynccontextmanager
async def serving_approvals(
    *script: Sequence[Step], lifetime: float = 3600, **settings: Any
) -> AsyncGenerator[ApprovalServer]:
    """Serve an agent with the tool ``send_mail``, whose calls require an approval.

    Args:
        script: The responses of its model.
        lifetime: Seconds within which a call can be approved.
        settings: Settings of the server.
    """
    ran: list[str] = []

    async def send_mail(to: str, subject: str = "") -> str:
        """Send a mail."""
        ran.append(to)
        return f"sent to {to}"

    async with ScriptedUpstream(*script) as upstream:
        policy = ApprovalPolicy(["send_mail"], lifetime=lifetime)
        agent: Agent[str] = Agent(model_at(upstream), tools=[send_mail], approvals=policy)
        app = create_app(Settings(store="sqlite://", **settings), handler=AgentHandler(agent))
        async with serving(app) as url:
            yield ApprovalServer(url, upstream, ran)

"""One agent, several providers: each message selects a provider, which receives the complete conversation.

pip install 'tailrace[anthropic]'
OPENAI_API_KEY=… ANTHROPIC_API_KEY=… uvicorn --app-dir examples several_providers:app
curl -N http://127.0.0.1:8000/message:stream -H 'Content-Type: application/json' -d '{
  "message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "Name a river."}]},
  "metadata": {"provider": "anthropic"}}'
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from tailrace.server import AgentHandler, Handler, Item, Turn, create_app
from tailrace.streaming import Agent
from tailrace.streaming.a2a import InvalidParamsError


class AnyOf(Handler):
    """Runs each turn with the agent that the request names, by default the first agent.

    Args:
        models: The model of each agent, by the name of the agent.
    """

    def __init__(self, models: Mapping[str, str]) -> None:
        self._agents = {name: AgentHandler(Agent(model)) for name, model in models.items()}
        self._first = next(iter(models))

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Keep the connections of all agents open."""
        async with AsyncExitStack() as stack:
            for agent in self._agents.values():
                await stack.enter_async_context(agent.running())
            yield

    def run(self, turn: Turn) -> AsyncIterator[Item]:
        """Run the turn with the selected agent."""
        name = turn.metadata.get("provider", self._first)
        if name not in self._agents:
            raise InvalidParamsError(f"metadata: provider: there is no {name!r}")
        return self._agents[name].run(turn)


app = create_app(
    handler=AnyOf({"openai": "openai:gpt-5-mini", "anthropic": "anthropic:claude-sonnet-5-5"}),
)

"""Microsoft Agent Framework as a program: an `A2AAgent`, with its sessions saved as JSON."""

import json
import sys
from collections.abc import AsyncGenerator
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio

from e2e.clients.commands import carry_out_commands

# Installed in an environment of its own.
framework: Any = import_module("agent_framework")
a2a: Any = import_module("agent_framework_a2a")
a2a_client: Any = import_module("a2a.client")
httpx: Any = import_module("httpx")


class Operations:
    """The commands that the program carries out.

    Args:
        card: The agent's card: without it, the framework does not stream.
        folder: The folder for the sessions.
    """

    def __init__(self, card: Any, folder: Path) -> None:
        self._folder = folder
        self._history = framework.InMemoryHistoryProvider()
        self._agent = a2a.A2AAgent(agent_card=card, context_providers=[self._history])
        self._sessions: dict[str, Any] = {}

    async def stream(self, conversation: str, text: str) -> AsyncGenerator[object]:
        updates: list[Any] = []
        session = self._session(conversation)
        async for update in self._agent.run(text, stream=True, session=session):
            updates.append(update)
            yield {"message": {"text": framework.AgentResponse.from_updates(updates).text}}
        self._save(conversation)

    async def ask(self, conversation: str, text: str) -> str:
        response = await self._agent.run(text, session=self._session(conversation))
        self._save(conversation)
        return response.text

    async def history(self, conversation: str) -> list[dict[str, str]]:
        session = self._session(conversation)
        state = session.state[self._history.source_id]
        messages = await self._history.get_messages(session.session_id, state=state)
        return [{"role": _ROLES[str(message.role)], "text": message.text} for message in messages]

    async def reload(self, conversation: str) -> None:
        self._sessions.clear()

    def _session(self, conversation: str) -> Any:
        if conversation not in self._sessions:
            saved = self._folder / f"{conversation}.json"
            self._sessions[conversation] = (
                framework.AgentSession.from_dict(json.loads(saved.read_text()))
                if saved.exists()
                else framework.AgentSession()
            )
        return self._sessions[conversation]

    def _save(self, conversation: str) -> None:
        saved = json.dumps(self._sessions[conversation].to_dict())
        (self._folder / f"{conversation}.json").write_text(saved)


_ROLES = {"user": "user", "assistant": "agent"}


async def main(url: str, folder: str) -> None:
    async with httpx.AsyncClient() as http:
        card = await a2a_client.A2ACardResolver(http, url).get_agent_card()
    operations = Operations(card, Path(folder))
    names = [name for name in vars(Operations) if not name.startswith("_")]
    await carry_out_commands({name: getattr(operations, name) for name in names})


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[3])

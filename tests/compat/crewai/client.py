"""CrewAI as a program: its delegation to an agent. It stores nothing; its history is that of the results that it returns."""

import os
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator
from importlib import import_module
from typing import Any

import anyio

from e2e.clients.commands import carry_out_commands

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"
sys.stdout = sys.stderr  # it prints what it does

# Installed in an environment of its own.
delegation: Any = import_module("crewai.a2a.utils.delegation")

_TIMEOUT = 60


class Operations:
    """The commands that the program carries out.

    Args:
        url: The server.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._turns: dict[str, list[dict[str, str]]] = defaultdict(list)

    async def stream(self, conversation: str, text: str) -> AsyncGenerator[object]:
        yield {"message": {"text": await self.ask(conversation, text)}}

    async def ask(self, conversation: str, text: str) -> str:
        result = await delegation.aexecute_a2a_delegation(
            endpoint=f"{self._url}/.well-known/agent-card.json",
            auth=None,
            timeout=_TIMEOUT,
            task_description=text,
            context_id=conversation,
        )
        if result.get("error"):
            raise RuntimeError(result["error"])
        response = result["result"]
        self._turns[conversation] += [{"role": "user", "text": text}, {"role": "agent", "text": response}]
        return response

    async def history(self, conversation: str) -> list[dict[str, str]]:
        return self._turns[conversation]


async def main(url: str) -> None:
    operations = Operations(url)
    names = [name for name in vars(Operations) if not name.startswith("_")]
    await carry_out_commands({name: getattr(operations, name) for name in names})


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])

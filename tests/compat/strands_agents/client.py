"""Strands Agents as a program: an `A2AAgent`. It stores nothing; its history is that of the results that it returns."""

import sys
from collections import defaultdict
from collections.abc import AsyncGenerator
from importlib import import_module
from typing import Any

import anyio

from e2e.clients.commands import carry_out_commands

# Installed in an environment of its own.
a2a_agent: Any = import_module("strands.agent.a2a_agent")


class Operations:
    """The commands that the program carries out.

    Args:
        url: The server.
    """

    def __init__(self, url: str) -> None:
        self._agent = a2a_agent.A2AAgent(endpoint=url)
        self._turns: dict[str, list[dict[str, str]]] = defaultdict(list)

    async def stream(self, conversation: str, text: str) -> AsyncGenerator[object]:
        async for event in self._agent.stream_async(text):
            if "result" in event:
                latest = self._record(conversation, text, event["result"])
            else:
                artifacts: list[Any] = event["event"][0].artifacts or []
                latest = "".join(map(_text, artifacts))
            yield {"message": {"text": latest}}

    async def ask(self, conversation: str, text: str) -> str:
        return self._record(conversation, text, await self._agent.invoke_async(text))

    async def history(self, conversation: str) -> list[dict[str, str]]:
        return self._turns[conversation]

    def _record(self, conversation: str, text: str, result: Any) -> str:
        response = "".join(block["text"] for block in result.message["content"])
        self._turns[conversation] += [{"role": "user", "text": text}, {"role": "agent", "text": response}]
        return response


def _text(artifact: Any) -> str:
    parts: list[Any] = artifact.parts
    return "".join(part.root.text for part in parts)


async def main(url: str) -> None:
    operations = Operations(url)
    names = [name for name in vars(Operations) if not name.startswith("_")]
    await carry_out_commands({name: getattr(operations, name) for name in names})


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])

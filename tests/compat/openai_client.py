"""What the clients of the OpenAI API in Python have in common: their commands, and the tool that they have."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

from e2e.clients.commands import carry_out_commands

PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}

TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": PARAMETERS},
}


def headers(conversation: str) -> dict[str, str]:
    """Return the header that names a conversation; without it, each request is a conversation of its own."""
    return {"X-Conversation-Id": conversation}


def get_weather(city: str) -> str:
    """The weather in a city."""
    assert city
    return "sunny"


class Polls:
    """Observes how OpenAI's client retrieves background responses."""

    def __init__(self) -> None:
        self._next = anyio.Event()

    def client_options(self, openai: Any, base_url: str) -> dict[str, Any]:
        """Return the options of a client that is observed, and repeats its requests while the server restarts.

        Args:
            openai: The package.
            base_url: The base URL of the API.
        """
        return {
            "base_url": base_url,
            "api_key": "none",
            "max_retries": 60,
            "http_client": openai.DefaultAsyncHttpxClient(event_hooks={"response": [self._note]}),
        }

    async def wait(self) -> None:
        """Wait until the client next retrieves a response."""
        self._next = anyio.Event()
        await self._next.wait()

    async def _note(self, response: Any) -> None:
        if response.request.method == "GET":
            self._next.set()


def run_client(operations: type[Any]) -> None:
    """Carry out the commands of a client.

    Args:
        operations: Its class; an object is made with the base URL of the API, and a folder.
    """
    url, _, folder = sys.argv[1:]
    made = operations(f"{url}/v1", Path(folder))
    names: list[str] = [name for name in vars(operations) if not name.startswith("_")]
    anyio.run(carry_out_commands, {name: getattr(made, name) for name in names})

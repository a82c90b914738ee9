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


def run_client(operations: type[Any]) -> None:
    """Carry out the commands of a client.

    Args:
        operations: Its class; an object is made with the base URL of the API, and a folder.
    """
    url, _, folder = sys.argv[1:]
    made = operations(f"{url}/v1", Path(folder))
    names: list[str] = [name for name in vars(operations) if not name.startswith("_")]
    anyio.run(carry_out_commands, {name: getattr(made, name) for name in names})

"""Google ADK as an agent: `to_a2a` of an `LlmAgent` with a Gemini model, with every option at its default."""

import os
import sys
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

port, public, model, _folder = sys.argv[1:]
os.environ["GOOGLE_API_KEY"] = "none"
os.environ["GOOGLE_GEMINI_BASE_URL"] = model.removesuffix("/v1")

# Installed in an environment of its own.
agents: Any = import_module("google.adk.agents")
tools: Any = import_module("google.adk.tools")
a2a: Any = import_module("google.adk.a2a.utils.agent_to_a2a")
uvicorn: Any = import_module("uvicorn")


def get_weather(city: str) -> str:
    """The weather in a city."""
    assert city
    return "sunny"


def ask_user(question: str) -> None:
    """Ask the user."""
    assert question


agent = agents.LlmAgent(
    name="adk",
    description="Answers.",
    model="gemini-2.5-flash",
    tools=[get_weather, tools.LongRunningFunctionTool(ask_user)],
)
address = urlsplit(public)
uvicorn.run(a2a.to_a2a(agent, host=address.hostname, port=address.port), host="127.0.0.1", port=int(port))

"""FastA2A as an agent: `agent_to_a2a` of a Pydantic AI agent, with every option but its address at its default."""

import sys
from importlib import import_module
from typing import Any

port, public, base_url, _folder = sys.argv[1:]

# Installed in an environment of its own.
pydantic_ai: Any = import_module("pydantic_ai")
openai: Any = import_module("pydantic_ai.models.openai")
providers: Any = import_module("pydantic_ai.providers.openai")
bridge: Any = import_module("fasta2a.pydantic_ai")
uvicorn: Any = import_module("uvicorn")

provider = providers.OpenAIProvider(base_url=base_url, api_key="none")
agent = pydantic_ai.Agent(openai.OpenAIChatModel("scripted", provider=provider), name="fasta2a")


@agent.tool_plain
def get_weather(city: str) -> str:
    """The weather in a city."""
    assert city
    return "sunny"


uvicorn.run(bridge.agent_to_a2a(agent, url=public), host="127.0.0.1", port=int(port))

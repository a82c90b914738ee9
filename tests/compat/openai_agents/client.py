"""The OpenAI Agents SDK as a program: an `Agent` over the Responses API, with its sessions in SQLite."""

from collections.abc import AsyncGenerator
from importlib import import_module
from pathlib import Path
from typing import Any

from compat.openai_agents.background_responses import BackgroundResponses
from compat.openai_client import Polls, get_weather, headers, run_client

# Installed in an environment of its own.
agents: Any = import_module("agents")
openai: Any = import_module("openai")


class Operations:
    """The commands that the program carries out."""

    def __init__(self, base_url: str, folder: Path) -> None:
        agents.set_tracing_disabled(True)
        client = openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
        self._model = agents.OpenAIResponsesModel(model="tailrace", openai_client=client)
        self._polls = Polls()
        client = openai.AsyncOpenAI(**self._polls.client_options(openai, base_url))
        client.responses = BackgroundResponses(client.responses)
        self._background_model = agents.OpenAIResponsesModel(model="tailrace", openai_client=client)
        self._agent = agents.Agent(name="compat", model=self._model)
        self._database = str(folder / "sessions.db")
        self._sessions: dict[str, Any] = {}

    async def stream(self, conversation: str, text: str) -> AsyncGenerator[object]:
        result = agents.Runner.run_streamed(self._agent, text, **self._options(conversation))
        latest = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                latest += event.data.delta
                yield {"message": {"text": latest}}
        yield {"message": {"text": result.final_output}}

    async def ask(self, conversation: str, text: str) -> str:
        result = await agents.Runner.run(self._agent, text, **self._options(conversation))
        return result.final_output

    async def call(self, conversation: str, text: str) -> str:
        agent = agents.Agent(name="compat", model=self._model, tools=[agents.function_tool(get_weather)])
        result = await agents.Runner.run(agent, text, **self._options(conversation))
        return result.final_output

    async def background(self, text: str) -> str:
        tools = [agents.function_tool(get_weather)]
        agent = agents.Agent(name="compat", model=self._background_model, tools=tools)
        return (await agents.Runner.run(agent, text)).final_output

    async def polled(self) -> None:
        await self._polls.wait()

    async def history(self, conversation: str) -> list[dict[str, str]]:
        items = await self._session(conversation).get_items()
        return [
            {"role": "agent" if item["role"] == "assistant" else "user", "text": _text(item["content"])}
            for item in items
        ]

    async def reload(self, conversation: str) -> None:
        self._sessions.pop(conversation).close()

    def _options(self, conversation: str) -> dict[str, Any]:
        settings = agents.ModelSettings(extra_headers=headers(conversation))
        return {
            "session": self._session(conversation),
            "run_config": agents.RunConfig(model_settings=settings),
        }

    def _session(self, conversation: str) -> Any:
        if conversation not in self._sessions:
            self._sessions[conversation] = agents.SQLiteSession(conversation, self._database)
        return self._sessions[conversation]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


if __name__ == "__main__":
    run_client(Operations)

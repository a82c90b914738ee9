"""Pydantic AI as a program: an `Agent` over Chat Completions, with its messages stored as it serializes them."""

from collections.abc import AsyncGenerator
from importlib import import_module
from pathlib import Path
from typing import Any

from compat.openai_client import Polls, get_weather, headers, run_client

# Installed in an environment of its own.
pydantic_ai: Any = import_module("pydantic_ai")
openai: Any = import_module("openai")
messages: Any = import_module("pydantic_ai.messages")
models: Any = import_module("pydantic_ai.models.openai")
providers: Any = import_module("pydantic_ai.providers.openai")


class Operations:
    """The commands that the program carries out."""

    def __init__(self, base_url: str, folder: Path) -> None:
        provider = providers.OpenAIProvider(base_url=base_url, api_key="none")
        self._model = models.OpenAIChatModel("tailrace", provider=provider)
        self._polls = Polls()
        client = openai.AsyncOpenAI(**self._polls.client_options(openai, base_url))
        self._background_model = models.OpenAIResponsesModel(
            "tailrace",
            provider=providers.OpenAIProvider(openai_client=client),
            settings={"openai_background": True},
        )
        self._agent = pydantic_ai.Agent(self._model)
        self._folder = folder
        self._conversations: dict[str, list[Any]] = {}

    async def stream(self, conversation: str, text: str) -> AsyncGenerator[object]:
        history = self._messages(conversation)
        async with self._agent.run_stream(
            text, message_history=history, model_settings={"extra_headers": headers(conversation)}
        ) as result:
            async for latest in result.stream_text(debounce_by=None):
                yield {"message": {"text": latest}}
            self._save(conversation, result)

    async def ask(self, conversation: str, text: str) -> str:
        result = await self._agent.run(
            text,
            message_history=self._messages(conversation),
            model_settings={"extra_headers": headers(conversation)},
        )
        self._save(conversation, result)
        return result.output

    async def call(self, conversation: str, text: str) -> str:
        agent = pydantic_ai.Agent(self._model, tools=[get_weather])
        return (await agent.run(text)).output

    async def background(self, text: str) -> str:
        agent = pydantic_ai.Agent(self._background_model, tools=[get_weather])
        return (await agent.run(text)).output

    async def polled(self) -> None:
        await self._polls.wait()

    async def history(self, conversation: str) -> list[dict[str, str]]:
        return [
            {"role": "user" if message.kind == "request" else "agent", "text": part.content}
            for message in self._messages(conversation)
            for part in message.parts
        ]

    async def reload(self, conversation: str) -> None:
        self._conversations.clear()

    def _messages(self, conversation: str) -> list[Any]:
        if conversation not in self._conversations:
            saved = self._folder / f"{conversation}.json"
            stored: Any = None
            if saved.exists():
                stored = messages.ModelMessagesTypeAdapter.validate_json(saved.read_bytes())
            self._conversations[conversation] = stored or []
        return self._conversations[conversation]

    def _save(self, conversation: str, result: Any) -> None:
        self._conversations[conversation] = result.all_messages()
        (self._folder / f"{conversation}.json").write_bytes(result.all_messages_json())


if __name__ == "__main__":
    run_client(Operations)

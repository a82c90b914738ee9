"""LangChain as a program: `ChatOpenAI`, with the history stored as LangChain serializes messages."""

import json
from collections.abc import AsyncGenerator
from importlib import import_module
from pathlib import Path
from typing import Any

from compat.openai_client import get_weather, headers, run_client

# Installed in an environment of its own.
langchain: Any = import_module("langchain_openai")
core: Any = import_module("langchain_core.messages")
tools: Any = import_module("langchain_core.tools")

_ROLES = {"human": "user", "ai": "agent"}


class Operations:
    """The commands that the program carries out."""

    def __init__(self, base_url: str, folder: Path) -> None:
        self._model = langchain.ChatOpenAI(model="tailrace", base_url=base_url, api_key="none", max_retries=0)
        self._folder = folder
        self._conversations: dict[str, list[Any]] = {}

    async def stream(self, conversation: str, text: str) -> AsyncGenerator[object]:
        messages = self._messages(conversation)
        messages.append(core.HumanMessage(text))
        complete: Any = None
        async for chunk in self._model.astream(messages, extra_headers=headers(conversation)):
            complete = chunk if complete is None else complete + chunk
            yield {"message": {"text": complete.text}}
        messages.append(core.AIMessage(complete.content))
        self._save(conversation)

    async def ask(self, conversation: str, text: str) -> str:
        messages = self._messages(conversation)
        messages.append(core.HumanMessage(text))
        messages.append(await self._model.ainvoke(messages, extra_headers=headers(conversation)))
        self._save(conversation)
        return messages[-1].text

    async def call(self, conversation: str, text: str) -> str:
        tool = tools.tool(get_weather)
        model = self._model.bind_tools([tool])
        messages = self._messages(conversation)
        messages.append(core.HumanMessage(text))
        messages.append(await model.ainvoke(messages, extra_headers=headers(conversation)))
        messages += [await tool.ainvoke(call) for call in messages[-1].tool_calls]
        messages.append(await model.ainvoke(messages, extra_headers=headers(conversation)))
        return messages[-1].text

    async def history(self, conversation: str) -> list[dict[str, str]]:
        return [
            {"role": _ROLES[message.type], "text": message.text} for message in self._messages(conversation)
        ]

    async def reload(self, conversation: str) -> None:
        self._conversations.clear()

    def _messages(self, conversation: str) -> list[Any]:
        if conversation not in self._conversations:
            saved = self._folder / f"{conversation}.json"
            items: list[Any] = json.loads(saved.read_text()) if saved.exists() else []
            self._conversations[conversation] = core.messages_from_dict(items)
        return self._conversations[conversation]

    def _save(self, conversation: str) -> None:
        items = core.messages_to_dict(self._conversations[conversation])
        (self._folder / f"{conversation}.json").write_text(json.dumps(items))


if __name__ == "__main__":
    run_client(Operations)

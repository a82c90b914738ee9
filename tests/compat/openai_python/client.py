"""The openai package as a program: Chat Completions for text and tools, with the messages stored as its users do."""

import json
from collections.abc import AsyncGenerator
from importlib import import_module
from pathlib import Path
from typing import Any

from compat.openai_client import TOOL, headers, run_client

# Installed in an environment of its own.
openai: Any = import_module("openai")

_ROLES = {"user": "user", "assistant": "agent"}


class Operations:
    """The commands that the program carries out."""

    def __init__(self, base_url: str, folder: Path) -> None:
        self._client = openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
        self._folder = folder
        self._conversations: dict[str, list[Any]] = {}
        self._response_id = ""

    async def stream(self, conversation: str, text: str) -> AsyncGenerator[object]:
        messages = self._messages(conversation)
        messages.append({"role": "user", "content": text})
        latest = ""
        async with self._client.chat.completions.stream(
            model="tailrace", messages=messages, extra_headers=headers(conversation)
        ) as stream:
            async for event in stream:
                if event.type == "content.delta":
                    latest = event.snapshot
                    yield {"message": {"text": latest}}
            completion = await stream.get_final_completion()
        messages.append({"role": "assistant", "content": completion.choices[0].message.content})
        self._save(conversation)

    async def ask(self, conversation: str, text: str) -> str:
        messages = self._messages(conversation)
        messages.append({"role": "user", "content": text})
        completion = await self._client.chat.completions.create(
            model="tailrace", messages=messages, extra_headers=headers(conversation)
        )
        messages.append({"role": "assistant", "content": completion.choices[0].message.content})
        self._save(conversation)
        return completion.choices[0].message.content

    async def call(self, conversation: str, text: str) -> str:
        messages = self._messages(conversation)
        messages.append({"role": "user", "content": text})
        completion = await self._client.chat.completions.create(
            model="tailrace", messages=messages, tools=[TOOL], extra_headers=headers(conversation)
        )
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            assert json.loads(call.function.arguments)["city"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
        completion = await self._client.chat.completions.create(
            model="tailrace", messages=messages, tools=[TOOL], extra_headers=headers(conversation)
        )
        return completion.choices[0].message.content

    async def history(self, conversation: str) -> list[dict[str, str]]:
        return [
            {"role": _ROLES[message["role"]], "text": message["content"]}
            for message in self._messages(conversation)
        ]

    async def reload(self, conversation: str) -> None:
        self._conversations.clear()

    def _messages(self, conversation: str) -> list[Any]:
        if conversation not in self._conversations:
            saved = self._folder / f"{conversation}.json"
            self._conversations[conversation] = json.loads(saved.read_text()) if saved.exists() else []
        return self._conversations[conversation]

    def _save(self, conversation: str) -> None:
        saved = json.dumps(self._conversations[conversation])
        (self._folder / f"{conversation}.json").write_text(saved)


if __name__ == "__main__":
    run_client(Operations)

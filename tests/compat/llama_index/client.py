"""LlamaIndex as a program: `OpenAILike` with a `ChatMemoryBuffer`, which is stored as LlamaIndex serializes it."""

from collections.abc import AsyncGenerator
from importlib import import_module
from pathlib import Path
from typing import Any

from compat.openai_client import get_weather, headers, run_client

# Installed in an environment of its own.
openai_like: Any = import_module("llama_index.llms.openai_like")
llms: Any = import_module("llama_index.core.llms")
memory: Any = import_module("llama_index.core.memory")
tools: Any = import_module("llama_index.core.tools")

_ROLES = {"user": "user", "assistant": "agent"}


class Operations:
    """The commands that the program carries out."""

    def __init__(self, base_url: str, folder: Path) -> None:
        self._model = openai_like.OpenAILike(
            model="tailrace",
            api_base=base_url,
            api_key="none",
            is_chat_model=True,
            is_function_calling_model=True,
            max_retries=0,
        )
        self._folder = folder
        self._conversations: dict[str, Any] = {}

    async def stream(self, conversation: str, text: str) -> AsyncGenerator[object]:
        history = self._memory(conversation)
        history.put(llms.ChatMessage(role="user", content=text))
        latest: Any = None
        async for latest in await self._model.astream_chat(
            history.get_all(), extra_headers=headers(conversation)
        ):
            yield {"message": {"text": latest.message.content or ""}}
        history.put(latest.message)
        self._save(conversation)

    async def ask(self, conversation: str, text: str) -> str:
        history = self._memory(conversation)
        history.put(llms.ChatMessage(role="user", content=text))
        response = await self._model.achat(history.get_all(), extra_headers=headers(conversation))
        history.put(response.message)
        self._save(conversation)
        return response.message.content

    async def call(self, conversation: str, text: str) -> str:
        tool = tools.FunctionTool.from_defaults(get_weather)
        messages = [llms.ChatMessage(role="user", content=text)]
        response = await self._model.achat_with_tools([tool], chat_history=messages)
        messages.append(response.message)
        for call in self._model.get_tool_calls_from_response(response):
            output = str(tool(**call.tool_kwargs))
            more = {"tool_call_id": call.tool_id}
            messages.append(llms.ChatMessage(role="tool", content=output, additional_kwargs=more))
        return (await self._model.achat_with_tools([tool], chat_history=messages)).message.content

    async def history(self, conversation: str) -> list[dict[str, str]]:
        return [
            {"role": _ROLES[message.role.value], "text": message.content}
            for message in self._memory(conversation).get_all()
        ]

    async def reload(self, conversation: str) -> None:
        self._conversations.clear()

    def _memory(self, conversation: str) -> Any:
        if conversation not in self._conversations:
            saved = self._folder / f"{conversation}.json"
            buffer = memory.ChatMemoryBuffer
            self._conversations[conversation] = (
                buffer.from_string(saved.read_text())
                if saved.exists()
                else buffer.from_defaults(token_limit=100_000, tokenizer_fn=str.split)
            )
        return self._conversations[conversation]

    def _save(self, conversation: str) -> None:
        saved = self._conversations[conversation].to_string()
        (self._folder / f"{conversation}.json").write_text(saved)


if __name__ == "__main__":
    run_client(Operations)

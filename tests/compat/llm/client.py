"""``llm`` as a program: an OpenAI-compatible model of its configuration, with conversations in its SQLite log."""

import os
from collections.abc import AsyncGenerator
from importlib import import_module
from pathlib import Path
from typing import Any

from compat.openai_client import get_weather, run_client


class Operations:
    """The commands that the program carries out."""

    def __init__(self, base_url: str, folder: Path) -> None:
        os.environ["LLM_USER_PATH"] = str(folder)
        model = (
            f"- model_id: tailrace\n  model_name: tailrace\n  api_base: {base_url}\n  supports_tools: true\n"
        )
        (folder / "extra-openai-models.yaml").write_text(model)
        # Installed in an environment of its own; it reads its folder.
        self._llm: Any = import_module("llm")
        self._folder = folder
        self._conversations: dict[str, Any] = {}

    async def stream(self, conversation: str, text: str) -> AsyncGenerator[object]:
        response = self._conversation(conversation).prompt(text, key="none")
        latest = ""
        async for chunk in response:
            latest += chunk
            yield {"message": {"text": latest}}

    async def ask(self, conversation: str, text: str) -> str:
        return await self._conversation(conversation).prompt(text, stream=False, key="none").text()

    async def call(self, conversation: str, text: str) -> str:
        model = self._llm.get_async_model("tailrace")
        chain = model.conversation(tools=[get_weather]).chain(text, key="none")
        return [await response.text() async for response in chain.responses()][-1]

    async def history(self, conversation: str) -> list[dict[str, str]]:
        stored = [
            [
                {"role": "user", "text": response.prompt.prompt},
                {"role": "agent", "text": await response.text()},
            ]
            for response in self._conversation(conversation).responses
        ]
        return [message for pair in stored for message in pair]

    def _conversation(self, conversation: str) -> Any:
        if conversation not in self._conversations:
            self._conversations[conversation] = self._llm.get_async_model("tailrace").conversation()
        return self._conversations[conversation]


if __name__ == "__main__":
    run_client(Operations)

"""aider as a program: its coder in the mode for questions, with the Markdown file that it stores conversations in."""

import os
import sys
from collections.abc import AsyncGenerator
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio

from compat.openai_client import headers, run_client

_ROLES = {"user": "user", "assistant": "agent"}


class Operations:
    """The commands that the program carries out."""

    def __init__(self, base_url: str, folder: Path) -> None:
        os.environ["OPENAI_API_BASE"] = base_url
        os.environ["OPENAI_API_KEY"] = "none"
        os.environ["HOME"] = str(folder)
        sys.stdout = sys.stderr  # it prints; the standard output is that of the commands
        os.chdir(folder)  # the files that it works on are those of the current folder
        self._folder = folder
        # Installed in an environment of its own; it reads the variables above.
        self._coders: Any = import_module("aider.coders")
        self._models: Any = import_module("aider.models")
        self._io: Any = import_module("aider.io")
        self._conversations: dict[str, Any] = {}
        self._errors: list[str] = []  # that it shows in its terminal

    async def stream(self, conversation: str, text: str) -> AsyncGenerator[object]:
        chunks = self._coder(conversation).run_stream(text)
        latest = ""
        while (chunk := await anyio.to_thread.run_sync(next, chunks, None)) is not None:
            latest += chunk
            yield {"message": {"text": latest}}
        self._check()

    async def ask(self, conversation: str, text: str) -> str:
        coder = self._coder(conversation)
        coder.stream = False
        returned = await anyio.to_thread.run_sync(coder.run, text)
        self._check()
        return returned

    async def history(self, conversation: str) -> list[dict[str, str]]:
        coder = self._coder(conversation)
        return [
            {"role": _ROLES[message["role"]], "text": message["content"]}
            for message in (*coder.done_messages, *coder.cur_messages)
        ]

    async def reload(self, conversation: str) -> None:
        del self._conversations[conversation]

    def _coder(self, conversation: str) -> Any:
        if conversation not in self._conversations:
            model = self._models.Model("openai/tailrace")
            # A reminder would change the last prompt, by which the scripted model chooses its response.
            model.reminder = ""
            model.extra_params = {"extra_headers": headers(conversation)}
            history = self._folder / f"{conversation}.md"
            terminal = self._io.InputOutput(
                pretty=False, yes=True, fancy_input=False, chat_history_file=str(history)
            )
            terminal.tool_error = self._show_error
            self._conversations[conversation] = self._coders.Coder.create(
                main_model=model, edit_format="ask", io=terminal, use_git=False, restore_chat_history=True
            )
        return self._conversations[conversation]

    def _show_error(self, message: str = "", **_: object) -> None:
        self._errors.append(message)

    def _check(self) -> None:
        if self._errors:
            raise RuntimeError("\n".join(self._errors))


if __name__ == "__main__":
    run_client(Operations)

"""Google ADK as a program: a `RemoteA2aAgent` under a `Runner`, with ADK's own sessions in SQLite."""

import sys
from collections.abc import AsyncGenerator
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio

from e2e.clients.commands import carry_out_commands

# Installed in an environment of its own.
agents: Any = import_module("google.adk.agents.remote_a2a_agent")
run_config: Any = import_module("google.adk.agents.run_config")
runners: Any = import_module("google.adk.runners")
sessions: Any = import_module("google.adk.sessions.sqlite_session_service")
types: Any = import_module("google.genai.types")

_APP, _USER = "compat", "user"


class Operations:
    """The commands that the program carries out.

    Args:
        url: The server.
        folder: The folder for the sessions.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._database = str(folder / "sessions.db")
        self._open()

    def _open(self) -> None:
        self._sessions = sessions.SqliteSessionService(db_path=self._database)
        agent = agents.RemoteA2aAgent(name="remote", agent_card=f"{self._url}/.well-known/agent-card.json")
        self._runner = runners.Runner(
            app_name=_APP, agent=agent, session_service=self._sessions, auto_create_session=True
        )

    async def stream(self, conversation: str, text: str) -> AsyncGenerator[object]:
        """Yield the text so far: partial events are added up, a complete one replaces them."""
        latest = ""
        async for event in self._run(conversation, text, "SSE"):
            if event.error_message:
                raise RuntimeError(event.error_message)
            text = _text(event.content)
            latest = latest + text if event.partial else text or latest
            yield {"message": {"text": latest}}

    async def ask(self, conversation: str, text: str) -> str:
        complete = [event async for event in self._run(conversation, text, "NONE") if not event.partial]
        return "".join(_text(event.content) for event in complete)

    async def history(self, conversation: str) -> list[dict[str, str]]:
        session = await self._sessions.get_session(app_name=_APP, user_id=_USER, session_id=conversation)
        messages = [
            {"role": "user" if event.author == "user" else "agent", "text": _text(event.content)}
            for event in session.events
        ]
        return [message for message in messages if message["text"]]

    async def reload(self, conversation: str) -> None:
        self._open()

    def _run(self, conversation: str, text: str, mode: str) -> Any:
        return self._runner.run_async(
            user_id=_USER,
            session_id=conversation,
            new_message=types.Content(role="user", parts=[types.Part(text=text)]),
            run_config=run_config.RunConfig(streaming_mode=run_config.StreamingMode[mode]),
        )


def _text(content: Any) -> str:
    parts: list[Any] = (content and content.parts) or []
    return "".join(part.text or "" for part in parts)


async def main(url: str, folder: str) -> None:
    operations = Operations(url, Path(folder))
    names = [name for name in vars(Operations) if not name.startswith("_")]
    await carry_out_commands({name: getattr(operations, name) for name in names})


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[3])
